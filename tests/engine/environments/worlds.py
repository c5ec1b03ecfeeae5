"""What the tests of the worlds with several tools share: their environments, and episodes of calls."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from engine.environments.contract import Rewards
from engine.environments.registry import environment_for
from engine.environments.tool_world import ToolEnvironment
from engine.rollout.checked_session import CheckedSession
from engine.spec.message import AssistantMessage
from engine.spec.run import RunSpec
from engine.spec.trajectory import Task, ToolCall

WORLDS = ("webshop", "search-qa", "apps")
LEVELS = (1, 2, 3)


def world(name: str, *levels: int, seed: int = 0, **fields: Any) -> ToolEnvironment[Any]:
    document = {"name": "x", "environment": {"id": name, "levels": list(levels or LEVELS)} | fields}
    spec = RunSpec.model_validate(document | {"dataset": {"seed": seed}})
    environment = environment_for(spec.environment, spec.dataset)
    assert isinstance(environment, ToolEnvironment)
    return environment


def calling(name: str, **arguments: Any) -> AssistantMessage:
    return AssistantMessage.calling(name, arguments)


@dataclass(frozen=True)
class Played:
    calls: list[ToolCall]
    rewards: Rewards

    @property
    def outputs(self) -> list[str]:
        return [call.output for call in self.calls]

    @property
    def errors(self) -> list[str | None]:
        return [call.error_class for call in self.calls]


async def play(environment: ToolEnvironment[Any], task: Task, messages: Sequence[AssistantMessage]) -> Played:
    """The messages up to the end of the episode, as an episode's session takes them."""
    calls = list[ToolCall]()
    async with environment.session(task, sandboxes=None) as session:  # type: ignore[arg-type]
        checked = CheckedSession(session, environment.tools(task))
        await checked.reset()
        for message in messages:
            observation = await checked.act(message)
            calls += observation.calls
            if observation.done:
                break
        return Played(calls, await checked.score())
