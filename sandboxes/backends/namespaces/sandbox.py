"""A sandbox of Linux namespaces: the ``Sandbox`` of this backend, seen from the host."""

import asyncio
import errno
import itertools
import logging
import os
import secrets
import socket
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager, nullcontext, suppress

from sandboxes.backends.namespaces import limits, probe, replies, sockets
from sandboxes.backends.namespaces.inside import frames
from sandboxes.backends.namespaces.link import Link, Reply
from sandboxes.backends.namespaces.process import SandboxProcess
from sandboxes.backends.namespaces.process_limit import ProcessLimit
from sandboxes.backends.namespaces.zygote import Zygotes
from sandboxes.bounds import fits, read_limit, sent, wait_s
from sandboxes.cgroups.group import warn_of_unbounded_sockets
from sandboxes.descriptors import unavailable_without
from sandboxes.egress.gateway.ledger import OnRecord, OnStatement
from sandboxes.egress.gateway.upstream import UPSTREAM, Upstream
from sandboxes.egress.interception.watched import NetnsEntry, NoNetnsEntry, Watched
from sandboxes.egress.policy import EgressPolicy
from sandboxes.egress.record import EgressRecord
from sandboxes.interface import (
    ExecResult,
    Inspection,
    SandboxFrozen,
    SandboxLost,
    SandboxUnavailable,
    Snapshot,
    SnapshotUnavailable,
)
from sandboxes.observation.filter import observing_filter, seccomp_call
from sandboxes.observation.observation import OnAction
from sandboxes.spec import SandboxSpec
from sandboxes.teardown import completed
from sandboxes.tree import Tree, TreeLimits, chosen

log = logging.getLogger(__name__)
START_S = 30.0
"""A machine that is many times overcommitted takes seconds; one whose sandbox never answers is told of it this late."""
GRACE_S = 5.0
"""How long the agent may take beyond the time that the code was given, before the sandbox counts as lost."""
WAITS = 5
"""In so many parts the time for an answer passes.  While this process or the machine stands still one part passes, and
one more is waited for."""
RESET_S = 5.0
ALONE_S = 5.0
"""How long everybody else may take to die, before something that is to be alone."""
DEFAULT_LIMITS = TreeLimits()
SNAPSHOT_S = 10.0
SNAPSHOTS = 8
"""How many a sandbox may keep: each holds a process and a copy of the files."""
_names = map(str, itertools.count(1))


class NamespaceSandbox:
    """One bubblewrap container and its agent.  Made by ``start``; every call has a deadline."""

    def __init__(
        self, spec: SandboxSpec, on_action: OnAction | None = None, on_statement: OnStatement | None = None
    ) -> None:
        self.spec = spec
        self._zygotes: Zygotes | None = None
        self._on_statement = on_statement
        self._on_action = on_action if spec.network == "watched" else None
        self._process_limit: ProcessLimit | None = None
        self._link = Link(self._lose)
        self._process: SandboxProcess | None = None
        self._watched: Watched | None = None
        self._name = _new_name()
        self._lost: str | None = None
        self._frozen: str | None = None
        self._interpreter = asyncio.Lock()
        """Cells run one at a time; everything else may overlap."""
        self._alone = asyncio.Lock()
        """Held while something is alone in the sandbox: no program begins meanwhile."""
        self._snapshots: set[Snapshot] = set()
        self._network = asyncio.Lock()
        """Held while the network is renewed or ended."""
        self._freezing: asyncio.Task[None] | None = None
        self._closing: asyncio.Task[None] | None = None

    @classmethod
    async def start(
        cls,
        spec: SandboxSpec,
        on_record: OnRecord | None = None,
        upstream: Upstream = UPSTREAM,
        on_action: OnAction | None = None,
        zygotes: Zygotes | None = None,
        on_statement: OnStatement | None = None,
    ) -> "NamespaceSandbox":
        """A sandbox that answers, or ``SandboxUnavailable`` and nothing left behind.

        With ``on_action`` the processes of a watched one are observed.  One of ``zygotes``, which are of the same spec,
        makes it, if they are given.
        """
        sandbox = cls(spec, on_action, on_statement)
        sandbox._zygotes = zygotes
        try:
            with unavailable_without():
                await sandbox._start(on_record, upstream)
        except BaseException:
            await completed(sandbox.close())
            raise
        return sandbox

    async def _start(self, on_record: OnRecord | None, upstream: Upstream) -> None:
        if self._zygotes is not None:
            await self._start_by_zygote(self._zygotes)
            return
        code = await probe.agent_code()
        netns_entry = NetnsEntry(observed=self._on_action is not None) if self.spec.network == "watched" else None
        try:
            await self._start_through(netns_entry, code, on_record, upstream)
        finally:
            if netns_entry is not None:
                netns_entry.close()

    async def _start_through(
        self, netns_entry: NetnsEntry | None, code: bytes, on_record: OnRecord | None, upstream: Upstream
    ) -> None:
        with await self._connected() as agents:
            if netns_entry is not None:
                await self._start_watched(netns_entry, agents, on_record, upstream)
            else:
                self._process = await SandboxProcess.start(self._name, self.spec, agents)
        arguments: tuple[object, ...] = (limits.rlimits(self.spec), self.spec.output_bytes)
        if netns_entry is not None and netns_entry.observed:
            arguments += (None, (observing_filter(), seccomp_call(), netns_entry.number))
        self._link.send(frames.LENGTH.pack(len(code)) + code + frames.block(arguments))
        try:
            async with asyncio.timeout(START_S):
                if netns_entry is not None and netns_entry.observed:
                    await self._observe(netns_entry)
                await self._link.hello
        except NoNetnsEntry:
            raise self._unavailable() from None
        except SandboxLost:
            raise self._unavailable() from None
        except TimeoutError:
            raise self._too_slow() from None
        assert self._process is not None
        self._process.identify()
        self._bound_sockets(self._process.init_pid)

    async def _start_by_zygote(self, zygotes: Zygotes) -> None:
        with await self._connected() as agents:
            self._process = await SandboxProcess.made_by_zygote(self._name, agents, zygotes)
        try:
            async with asyncio.timeout(START_S):
                await self._link.hello
        except SandboxLost:
            raise self._unavailable() from None
        except TimeoutError:
            raise self._too_slow() from None
        self._process.identify()
        self._bound_sockets(self._process.init_pid)

    async def _connected(self) -> socket.socket:
        """The agent's end of a new socket, the other end of which is the link's."""
        ours, agents = socket.socketpair()
        ours.setblocking(False)
        try:
            await asyncio.get_running_loop().create_unix_connection(lambda: self._link, sock=ours)
        except BaseException:
            agents.close()
            raise
        return agents

    def _bound_sockets(self, init_pid: int) -> None:
        """No guest exists yet.  Namespace entry and zygote have done the first part in the networks that they made."""
        if self._watched is None and self._zygotes is None:
            try:
                sockets.bound(init_pid)
            except OSError as error:
                warn_of_unbounded_sockets(f"their size cannot be set ({error.strerror}), which needs root")

    def _guard_sockets(self) -> None:
        """From the first request until a reset: without guests nobody makes any."""
        assert self._process is not None
        sockets.socket_guard().add(
            self._process.init_pid,
            lambda found: self._lose(f"it held {found} sockets: {sockets.MOST_SOCKETS} at most"),
        )

    async def _observe(self, netns_entry: NetnsEntry) -> None:
        """The agent has added the filter, and waits with everything else until its listener is served."""
        listener = await netns_entry.agents_listener()
        assert self._process is not None
        assert self._watched is not None
        assert self._on_action is not None
        self._process.identify()
        tasks = limits.bounds(self.spec).processes
        await self._watched.observe(listener, self._process.init_pid, tasks, self._on_action, self._lose)
        self._process_limit = ProcessLimit.of(self._process.group, self.spec, self._watched.met_its_limit)

    async def _start_watched(
        self, netns_entry: NetnsEntry, agents: socket.socket, on_record: OnRecord | None, upstream: Upstream
    ) -> None:
        """The rules are in place, and their sockets served, before bubblewrap itself begins."""
        try:
            self._process = await SandboxProcess.start(self._name, self.spec, agents, netns_entry)
            netns_entry.theirs.close()
            async with asyncio.timeout(START_S):
                descriptors = await netns_entry.descriptors()
            policy = self.spec.egress or EgressPolicy()
            self._watched = Watched(descriptors, policy, on_record, self._on_statement, upstream)
        except NoNetnsEntry:
            raise self._unavailable() from None
        except TimeoutError:
            raise self._too_slow() from None

    def _unavailable(self) -> SandboxUnavailable:
        return probe.unavailable(self._complaint())

    def _too_slow(self) -> SandboxUnavailable:
        why = self._complaint() or "the machine has too much to do, or too many sandboxes"
        return SandboxUnavailable(f"a sandbox did not answer within {START_S:g} s: {why}")

    def _complaint(self) -> str:
        return "" if self._process is None else self._process.complaint().strip()

    @property
    def name(self) -> str:
        return self._name if self._watched is None else self._watched.ledger.sandbox

    @property
    def alive(self) -> bool:
        return self._lost is None

    @property
    def frozen(self) -> str | None:
        return self._frozen

    @property
    def observed(self) -> bool:
        """Return whether what its processes do is told."""
        return self._on_action is not None

    # -- what a sandbox can do --------------------------------------------------------------------

    async def exec(
        self,
        argv: list[str],
        *,
        stdin: bytes = b"",
        env: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
        alone: bool = False,
    ) -> ExecResult:
        if not argv:
            raise ValueError("exec needs a program")
        seconds = wait_s(timeout_s, self.spec.timeout_s)
        given = sent("stdin", bytes(stdin))
        arguments = (list(argv), given, dict(env or {}), seconds, alone)
        async with self._by_itself() if alone else self._among_others():
            return await self._job("exec", arguments, seconds + (ALONE_S if alone else 0))

    async def run_python(self, code: str, *, timeout_s: float | None = None) -> ExecResult:
        return await self._cell("python", code, timeout_s)

    async def set_prelude(self, code: str, *, timeout_s: float | None = None) -> ExecResult:
        return await self._cell("prelude", code, timeout_s)

    async def _cell(self, verb: str, code: str, timeout_s: float | None) -> ExecResult:
        seconds = wait_s(timeout_s, self.spec.timeout_s)
        given = sent("code", code.encode("utf-8", "replace"))
        async with self._interpreter:
            return await self._job(verb, (given, seconds), seconds)

    async def write_file(self, path: str, content: bytes) -> None:
        await self._file("write", path, fits(bytes(content), self.spec.disk_mib, path))

    async def read_file(self, path: str, *, limit_bytes: int = 2**20) -> bytes:
        return await self._file("read", path, read_limit(limit_bytes), largest_bytes=limit_bytes)

    async def read_tree(
        self, paths: Iterable[str], limits: TreeLimits = DEFAULT_LIMITS, *, alone: bool = False
    ) -> Tree:
        arguments = (chosen(paths), (limits.entries, limits.size_bytes, limits.partial), alone)
        async with self._by_itself() if alone else nullcontext():
            reply = await self._copied("take", arguments, replies.largest_tree_bytes(limits))
        try:
            return replies.tree(reply, limits)
        except frames.MalformedFrame as error:
            raise self._lose(f"its agent broke the protocol: {error}") from None

    async def write_tree(self, tree: Tree) -> None:
        if tree.size_bytes > self.spec.disk_mib * 2**20:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/work")
        entries = [(entry.path, entry.content, entry.executable) for entry in tree.entries]
        replies.refuse(await self._copied("put", (entries,), 0))

    async def _copied(self, verb: str, arguments: tuple[object, ...], largest_bytes: int) -> Reply:
        reply = await self._ask(verb, arguments, ALONE_S + GRACE_S, largest_bytes=largest_bytes)
        code = replies.error_number(reply)
        if code is not None:
            raise OSError(code, os.strerror(code), "/work")
        if reply.kind not in (frames.DATA, frames.REFUSED):
            raise self._lose("its agent broke the protocol: no files")
        return reply

    @asynccontextmanager
    async def _by_itself(self) -> AsyncIterator[None]:
        """What runs in this block finds nobody else alive; calls that would start somebody wait for its end."""
        async with self._interpreter, self._alone:
            self._snapshots.clear()  # the agent drops them: a frozen copy is a process of the user as well
            yield

    @asynccontextmanager
    async def _among_others(self) -> AsyncIterator[None]:
        async with self._alone:
            pass
        yield

    async def snapshot(self) -> Snapshot:
        if not self.spec.snapshots:
            raise SnapshotUnavailable("this sandbox was made without: set snapshots = true in its sandbox spec")
        if len(self._snapshots) >= SNAPSHOTS:
            raise ValueError(f"a sandbox keeps {SNAPSHOTS} snapshots at most: drop one that is no longer needed")
        snapshot = Snapshot(next(_names))
        self._snapshots.add(snapshot)
        try:
            async with self._interpreter:
                reply = await completed(self._ask("snapshot", (snapshot.id,), SNAPSHOT_S))
            if reply.kind != frames.DATA:
                raise SnapshotUnavailable(replies.why_not_kept(reply, self.spec))
        except SnapshotUnavailable:
            self._snapshots.discard(snapshot)
            raise
        except asyncio.CancelledError:
            with suppress(SandboxLost, SandboxFrozen):  # then it is kept nowhere
                await completed(self.drop(snapshot))
            raise
        return snapshot

    async def restore(self, snapshot: Snapshot) -> None:
        async with self._interpreter:
            if self._lost is self._frozen is None and snapshot not in self._snapshots:
                raise ValueError(f"snapshot {snapshot.id} was dropped, or is of another sandbox")
            reply = await completed(self._ask("restore", (snapshot.id,), SNAPSHOT_S))
            if reply.kind != frames.DATA:
                raise self._lose(f"it could not be set back: {replies.message(reply)}")

    async def drop(self, snapshot: Snapshot) -> None:
        if snapshot in self._snapshots:
            self._snapshots.discard(snapshot)
            await completed(self._ask("drop", (snapshot.id,), GRACE_S))

    def label(self, text: str | None) -> None:
        if self._watched is not None and self._lost is self._frozen is None:
            self._watched.label(text)

    async def settled(self) -> None:
        if self._watched is not None and self._lost is self._frozen is None:
            await self._watched.settled()

    async def egress(self, after: int = 0, *, limit: int = 1000) -> list[EgressRecord]:
        return [] if self._watched is None else await self._watched.records(after, limit)

    def acknowledge_egress(self, through: int) -> None:
        if self._watched is not None:
            self._watched.ledger.records.acknowledge(through)

    async def listen(self, port: int) -> socket.socket:
        self._refuse_if_gone()
        assert self._process is not None
        try:
            listener = sockets.listening(self._process.init_pid, port)
        except OSError as error:
            self._refuse_if_gone()
            raise SandboxUnavailable(
                f"no server can stand in a sandbox's network at port {port}: {error}; run as root on this machine"
            ) from error
        if self._lost is not None:  # whose network it was is not known any more
            listener.close()
        self._refuse_if_gone()
        return listener

    async def reset(self) -> None:
        self._snapshots.clear()
        asked = self._link.asked
        reply = await completed(self._ask("reset", (), RESET_S))
        if reply.kind != frames.DATA:
            raise self._lose(f"its reset failed: {replies.message(reply)}")
        if self._link.asked == asked + 1:  # else somebody may have begun something behind it
            assert self._process is not None
            sockets.socket_guard().remove(self._process.init_pid)
        await completed(self._renew())

    async def _renew(self) -> None:
        async with self._network:
            self._refuse_if_gone()
            if self._watched is not None:
                await self._watched.renew()
        self._refuse_if_gone()
        self._name = _new_name()

    # -- freezing, looking, ending ----------------------------------------------------------------

    async def freeze(self, reason: str) -> None:
        if self._lost is not None:
            return
        if self._freezing is None:
            self._frozen = reason
            self._link.fail(SandboxFrozen, reason)
            self._freezing = asyncio.ensure_future(self._freeze())
        await completed(_await(self._freezing))

    async def _freeze(self) -> None:
        assert self._process is not None
        try:
            await self._process.stop()
        except (OSError, TimeoutError) as error:
            log.error("sandbox %s does not stand still, and is killed: %s", self.name, error)
            self._process.kill()
            await self._process.dead()
        finally:
            await self._end_network()  # what the guests tried until now is recorded, and nothing is forwarded any more

    async def _end_network(self) -> None:
        async with self._network:
            if self._watched is not None:
                await self._watched.close()

    async def inspect(self) -> Inspection:
        self._refuse_if_gone(frozen_too=False)
        assert self._process is not None
        try:
            with unavailable_without():
                processes, files, complete = await self._process.inspected()
        except (ProcessLookupError, FileNotFoundError):
            raise self._lose("its process 1 ended") from None
        return Inspection(self._frozen, self._process.limits, processes, files, complete)

    async def close(self) -> None:
        if self._closing is None:
            self._closing = asyncio.ensure_future(self._close())
        await completed(_await(self._closing))

    async def _close(self) -> None:
        if self._freezing is not None:
            await asyncio.wait([self._freezing])
        self._end("it was closed")
        self._link.close()
        try:
            if self._process is not None:
                await self._process.gone()
        finally:
            await self._end_network()  # last: what the dead have tried is recorded too

    # -- requests ---------------------------------------------------------------------------------

    async def _job(self, verb: str, arguments: tuple[object, ...], seconds: float) -> ExecResult:
        if self._watched is not None:
            await self._watched.labelled()
        with self._process_limit.watched() if self._process_limit is not None else nullcontext():
            reply = await self._ask(verb, arguments, seconds + GRACE_S, largest_bytes=2 * self.spec.output_bytes)
        if reply.kind != frames.RESULT:
            raise self._lose(f"its agent could not run code: {replies.message(reply)}")
        try:
            return replies.executed(reply)
        except frames.MalformedFrame as error:
            raise self._lose(f"its agent broke the protocol: {error}") from None

    async def _file(self, verb: str, path: str, argument: object, *, largest_bytes: int = 0) -> bytes:
        reply = await self._ask(verb, (path, argument), GRACE_S, largest_bytes=largest_bytes)
        code = replies.error_number(reply)
        if code is not None:
            raise OSError(code, os.strerror(code), path)
        if reply.kind != frames.DATA or len(reply.payload) > largest_bytes:
            raise self._lose("its agent broke the protocol: not the file that was asked for")
        return reply.payload

    async def _ask(
        self, verb: str, arguments: tuple[object, ...], deadline_s: float, *, largest_bytes: int = 0
    ) -> Reply:
        self._refuse_if_gone()
        self._guard_sockets()
        number, answer = self._link.ask(verb, arguments, largest_bytes=largest_bytes)
        try:
            return await self._within(deadline_s, answer)
        except asyncio.CancelledError:
            # End what was started before the caller goes on: the sandbox is the caller's, in a known state.
            self._link.notify("cancel", number)
            await completed(self._settled(answer))
            raise

    async def _within(self, deadline_s: float, answer: asyncio.Future[Reply]) -> Reply:
        for _ in range(WAITS + 1):
            await asyncio.wait([answer], timeout=deadline_s / WAITS)
            if answer.done():
                return answer.result()
        raise self._lose(f"its agent did not answer within {deadline_s:g} s")

    async def _settled(self, answer: asyncio.Future[Reply]) -> None:
        try:
            await self._within(GRACE_S, answer)
        except (SandboxLost, SandboxFrozen):
            return  # the next call will say so

    def _refuse_if_gone(self, *, frozen_too: bool = True) -> None:
        if self._frozen is not None and (frozen_too or self._lost is not None):
            raise SandboxFrozen(self._frozen)
        if self._lost is not None:
            raise SandboxLost(self._lost)

    def _lose(self, reason: str) -> SandboxLost | SandboxFrozen:
        """The sandbox is gone, from now on and for everybody; its processes are killed, ``close`` clears up.

        A frozen one stays as it is: that it does not answer is what was wanted.
        """
        if self._frozen is not None:
            return SandboxFrozen(self._frozen)
        return SandboxLost(self._end(reason))

    def _end(self, reason: str) -> str:
        """Return why it is gone: the first reason counts."""
        if self._lost is None:
            self._lost = reason
            if self._process is not None:
                sockets.socket_guard().remove(self._process.init_pid)
                self._process.kill()
        self._link.fail(SandboxLost, self._lost)
        return self._lost


async def _await(task: asyncio.Task[None]) -> None:
    await asyncio.shield(task)


def _new_name() -> str:
    return f"sandbox-{secrets.token_hex(8)}"
