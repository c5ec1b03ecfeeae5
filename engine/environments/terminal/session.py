"""One episode of a terminal task: a sandbox with the task's files, a shell in it, and at the end the task's tests."""

import asyncio
from contextlib import AsyncExitStack
from typing import Self

from engine.environments.contract import Observation, Rewards, Sandboxes, SandboxesOfSpecs
from engine.environments.terminal.evidence import given_hooks, hooks_in, planted_files, report, waiting_processes
from engine.environments.terminal.preparation import prepared
from engine.environments.terminal.shell import Shell
from engine.environments.terminal.task_folder import TerminalTask
from engine.environments.terminal.tools import Tools
from engine.environments.terminal.verifier import Verification, handed_in, phase_spec, verified
from engine.spec.environment import Terminal
from engine.spec.message import AssistantMessage, Message
from engine.spec.trajectory import ToolCall
from sandboxes.interface import Sandbox
from sandboxes.tree import TreeRefused

PARTIAL = "tests"
"""The component of the reward that an episode is paid which does not pass."""


class TerminalSession:
    """Takes its sandbox at the first call.  Keeps no snapshots: a shell's processes do not come back.

    ``agent.timeout_sec`` of the task bounds the time of all tool calls together: the call that uses it up is
    interrupted, and the episode is over.
    """

    def __init__(
        self, settings: Terminal, task: TerminalTask, sandboxes: Sandboxes, scoring: asyncio.Semaphore
    ) -> None:
        """``scoring`` bounds the sandboxes in which tests run, beside those of the policies."""
        self._settings, self._task, self._sandboxes, self._scoring = settings, task, sandboxes, scoring
        self._exits = AsyncExitStack()
        self._sandbox: Sandbox | None = None
        self._tools: Tools | None = None
        self._given_hooks = frozenset[str]()
        self._left_s = task.file.agent.timeout_sec or float("inf")
        self.verification: Verification | None = None
        """What the tests came to, once they ran."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> bool | None:
        return await self._exits.__aexit__(*exception)  # type: ignore[arg-type]

    async def reset(self) -> list[Message]:
        return [Message("user", self._task.instruction)]

    async def act(self, message: AssistantMessage) -> Observation:
        if message.answers:
            return Observation(done=True)
        tools = await self._begun()
        calls = list[ToolCall]()
        for request in message.requests:
            calls.append(await tools.run(request, max(0.1, min(self._settings.command_timeout_s, self._left_s))))
            self._left_s -= calls[-1].seconds
        return Observation.of(calls, done=self._left_s <= 0)

    async def prepared(self) -> Sandbox:
        await self._begun()
        assert self._sandbox is not None
        return self._sandbox

    async def score(self) -> Rewards:
        """A policy that called no tool has changed nothing, and has not done the task."""
        if self._sandbox is None:
            return Rewards(success=False)
        if (verification := await self._verified(self._sandbox)) is None:
            return Rewards(success=False)
        self.verification = verification
        reward = verification.reward
        partial = {PARTIAL: reward.reward} if self._settings.partial_credit and not reward.success else {}
        return Rewards(success=reward.success, components=partial)

    async def _begun(self) -> Tools:
        if self._tools is None:
            sandbox = await self._acquired()
            await prepared(sandbox, self._task)
            self._given_hooks = await given_hooks(sandbox, self._task)
            shell = Shell(sandbox, self._task.file.environment.env, kept_bytes=self._settings.output_bytes)
            self._tools = Tools(sandbox, shell, output_bytes=self._settings.output_bytes)
            self._sandbox = sandbox
        return self._tools

    async def _acquired(self) -> Sandbox:
        spec = phase_spec(self._task, self._settings.sandbox, of_tests=False)
        if spec == self._settings.sandbox:
            return await self._exits.enter_async_context(self._sandboxes.acquire())
        if not isinstance(self._sandboxes, SandboxesOfSpecs):
            kind = type(self._sandboxes).__name__
            raise TypeError(f"{self._task.name} needs a sandbox of its own spec, which {kind} does not make")
        return await self._exits.enter_async_context(self._sandboxes.acquire_of(spec))

    async def _verified(self, sandbox: Sandbox) -> Verification | None:
        """None where nothing that can be scored was handed in, or something was left for the tests."""
        found = await waiting_processes(sandbox)
        found += await planted_files(sandbox)
        try:
            files = await handed_in(self._task, sandbox)
        except TreeRefused:
            report(self._sandboxes, sandbox, found)
            return None
        found += hooks_in(files, self._given_hooks)
        if found:
            report(self._sandboxes, sandbox, found)
            return None
        async with self._scoring:
            return await verified(self._task, self._settings.sandbox, files)
