"""An environment's session as an episode uses it: misfit calls never reach it, and its faults have their name.

A call of a tool that is not there, or with arguments that do not fit the tool's schema, is answered here with an
error, which the policy reads as it reads the error of a tool that ran.
"""

from collections.abc import Sequence
from functools import cached_property
from math import isfinite

from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match

from engine.environments.contract import Observation, Restorable, Rewards, Session
from engine.rollout.faults import EnvironmentFailed, named_as_environment_fault
from engine.rollout.scoring import RECIPE_COMPONENTS
from engine.spec.message import AssistantMessage, Message, ToolRequest, ToolSchema
from engine.spec.trajectory import ErrorClass, ToolCall
from sandboxes.interface import SnapshotUnavailable

LONGEST_REASON = 200
"""Characters of what the policy reads about a misfit call."""


class CheckedSession:
    """Raises EnvironmentFailed where the session's own code raises or breaks the contract.  ``Restorable``."""

    def __init__(self, session: Session, tools: Sequence[ToolSchema]) -> None:
        self._session, self._tools = session, tools

    async def reset(self) -> Sequence[Message]:
        with named_as_environment_fault():
            return await self._session.reset()

    async def act(self, message: AssistantMessage) -> Observation:
        """``message`` is a call, perhaps a malformed one, or an answer."""
        misfit = self._misfit(message)
        if misfit is not None:
            return Observation.of([misfit])
        with named_as_environment_fault():
            observation = await self._session.act(message)
            if len(observation.calls) != len(message.requests):
                raise EnvironmentFailed(f"{len(observation.calls)} records of {len(message.requests)} tool calls")
            if not (observation.done or observation.messages or message.answers):
                raise EnvironmentFailed("an episode that is not over, and nothing for the policy to read")
            return observation

    async def score(self) -> Rewards:
        with named_as_environment_fault():
            rewards = await self._session.score()
            for name, reward in rewards.components.items():
                if name in RECIPE_COMPONENTS:
                    raise EnvironmentFailed(f"the reward {name!r} is one of the recipe's; give it another name")
                if not isfinite(reward):
                    raise EnvironmentFailed(f"the reward {name!r} is {reward}")
            return rewards

    async def snapshot(self) -> object:
        with named_as_environment_fault():
            return await self._restorable.snapshot()

    async def restore(self, snapshot: object) -> None:
        with named_as_environment_fault():
            await self._restorable.restore(snapshot)

    async def drop(self, snapshot: object) -> None:
        with named_as_environment_fault():
            await self._restorable.drop(snapshot)

    @property
    def _restorable(self) -> Restorable:
        if not isinstance(self._session, Restorable):
            raise SnapshotUnavailable(f"a {type(self._session).__name__} keeps no snapshots")
        return self._session

    @cached_property
    def _validators(self) -> dict[str, Draft202012Validator]:
        return {tool.name: Draft202012Validator(dict(tool.parameters)) for tool in self._tools}

    def _misfit(self, message: AssistantMessage) -> ToolCall | None:
        """The record of a call that cannot be made; None where there is nothing against it."""
        if message.malformed is not None:
            malformed = message.malformed
            if malformed.tool not in self._validators:
                return _refused(malformed.tool, malformed.text, "unknown-tool", self._no_such_tool(malformed.tool))
            return _refused(malformed.tool, malformed.text, "arguments", malformed.reason)
        for request in message.requests:
            if (refused := self._misfit_request(request)) is not None:
                return refused
        return None

    def _misfit_request(self, request: ToolRequest) -> ToolCall | None:
        validator = self._validators.get(request.name)
        if validator is None:
            return _refused(request.name, request.text, "unknown-tool", self._no_such_tool(request.name))
        error = best_match(validator.iter_errors(dict(request.arguments)))
        if error is None:
            return None
        place = ".".join(map(str, error.absolute_path))
        return _refused(
            request.name, request.text, "arguments", f"{place}: {error.message}" if place else error.message
        )

    def _no_such_tool(self, name: str) -> str:
        return f"no tool {name!r}; there is {', '.join(self._validators) or 'none'}"


def _refused(name: str, arguments: str, error_class: ErrorClass, reason: str) -> ToolCall:
    return ToolCall(
        name=name,
        arguments=arguments,
        output=f"Error: {reason}"[:LONGEST_REASON],
        status="error",
        error_class=error_class,
        seconds=0.0,
    )
