"""A sandbox that is a Docker container: as the sandbox of namespaces, with the same agent, but made and ended by a
daemon."""

import asyncio

from sandboxes.backends.docker import network
from sandboxes.backends.docker.container import ANSWERS, Container
from sandboxes.backends.docker.listener import agents_listener
from sandboxes.backends.docker.stream import AttachedLink
from sandboxes.backends.namespaces import limits, probe
from sandboxes.backends.namespaces.inside import frames
from sandboxes.backends.namespaces.sandbox import START_S, NamespaceSandbox
from sandboxes.egress.gateway.ledger import OnRecord, OnStatement
from sandboxes.egress.gateway.upstream import Upstream
from sandboxes.egress.interception.watched import Watched
from sandboxes.egress.policy import EgressPolicy
from sandboxes.images.reference import ImageRefused
from sandboxes.images.registry import Registry
from sandboxes.interface import SandboxLost, SandboxUnavailable
from sandboxes.observation.filter import observing_filter, seccomp_call
from sandboxes.observation.observation import OnAction
from sandboxes.spec import SandboxSpec


class DockerSandbox(NamespaceSandbox):
    """One container and its agent.  Made by ``start``; every call has a deadline."""

    _link: AttachedLink
    _process: Container | None  # type: ignore[assignment]

    def __init__(
        self, spec: SandboxSpec, on_action: OnAction | None = None, on_statement: OnStatement | None = None
    ) -> None:
        super().__init__(spec, on_action, on_statement)
        self._link = AttachedLink(self._lose)

    async def _start(self, on_record: OnRecord | None, upstream: Upstream) -> None:
        try:
            image = Registry().resolve(self.spec.image or "")
        except ImageRefused as refusal:
            raise SandboxUnavailable(str(refusal)) from None
        self._process = container = await Container.start(self.spec, image)
        await asyncio.get_running_loop().create_unix_connection(lambda: self._link, sock=container.stream)
        if self.spec.network == "watched":
            descriptors = await network.entered(container.init_pid, container.init)
            policy = self.spec.egress or EgressPolicy()
            self._watched = Watched(descriptors, policy, on_record, self._on_statement, upstream)
        # Until now an interpreter of the image has waited for this, its network without a route.
        code = probe.agent_texts()
        observing = (observing_filter(), seccomp_call(), -1) if self.observed else None
        arguments = (self._rlimits(), self.spec.output_bytes, ANSWERS, observing)
        self._link.send(frames.LENGTH.pack(len(code)) + code + frames.block(arguments))
        try:
            async with asyncio.timeout(START_S):
                if self.observed:
                    await self._observe_container(container)
                await self._link.hello
        except SandboxLost:
            raise self._unavailable() from None
        except TimeoutError:
            raise self._too_slow() from None

    async def _observe_container(self, container: Container) -> None:
        """Fetch the listener of the agent's filter, while the agent waits with everything else until it is served."""
        assert self._watched is not None
        assert self._on_action is not None
        listener = await agents_listener(container.init_pid, container.init)
        tasks = limits.bounds(self.spec).processes
        await self._watched.observe(listener, container.init_pid, tasks, self._on_action, self._lose)
        self._link.send(b"!")

    def _rlimits(self) -> dict[str, int]:
        """Processes are counted by the container's cgroup, its user id may be another container's as well."""
        return {name: value for name, value in limits.rlimits(self.spec).items() if name != "RLIMIT_NPROC"}

    def _unavailable(self) -> SandboxUnavailable:
        agent_complaint = self._complaint() or "its agent did not begin to speak"
        return SandboxUnavailable(f"image {self.spec.image} runs no agent: {agent_complaint}")

    def _complaint(self) -> str:
        return self._link.complaint.decode(errors="replace").strip()
