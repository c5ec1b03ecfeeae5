"""An observed sandbox, and what was told of it."""

import textwrap
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field

import pytest

from sandboxes.egress.detectors.observed_action import ObservedAction
from sandboxes.interface import ExecResult, Sandbox
from sandboxes.opened import opened
from sandboxes.spec import SandboxSpec


@dataclass
class Observed:
    sandbox: Sandbox
    actions: list[ObservedAction] = field(default_factory=list)

    async def cell(self, code: str) -> ExecResult:
        """Run Python, and have everything told that it did."""
        result = await self.sandbox.run_python(textwrap.dedent(code))
        await self.sandbox.settled()
        return result

    async def shell(self, script: str) -> ExecResult:
        result = await self.sandbox.exec(["/bin/sh", "-c", script])
        await self.sandbox.settled()
        return result

    def programs(self) -> list[ObservedAction]:
        return [action for action in self.actions if action.kind == "program"]

    def files(self, operation: str) -> list[str]:
        return [action.path for action in self.actions if action.operation == operation]

    def refused(self) -> dict[str, int]:
        calls: dict[str, int] = {}
        for action in self.actions:
            if action.kind == "refused":
                calls[action.call] = calls.get(action.call, 0) + action.count
        return calls

    def sum(self, **fields: object) -> int:
        """How many actions there were with these fields."""
        return sum(
            action.count
            for action in self.actions
            if all(getattr(action, name) == value for name, value in fields.items())
        )


@asynccontextmanager
async def _observing(**fields: object) -> AsyncIterator[Observed]:
    actions: list[ObservedAction] = []
    spec = SandboxSpec(**{"network": "watched", "timeout_s": 60.0, **fields})  # type: ignore[arg-type]
    async with opened(spec, on_action=actions.append) as sandbox:
        yield Observed(sandbox, actions)


@pytest.fixture
def observing() -> Callable[..., AbstractAsyncContextManager[Observed]]:
    """Makes an observed sandbox, of a spec with these fields."""
    return _observing
