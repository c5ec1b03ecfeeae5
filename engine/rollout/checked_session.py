"""An environment's session as an episode uses it: misfit calls never reach it, and its faults have their name.

A call of a tool that is not there, or with arguments that do not fit the tool's schema, is answered here with an
error, which the policy reads as it reads the error of a tool that ran.  Of several calls in one message each is
answered by itself: the session does those that fit.
"""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property, lru_cache
from math import isfinite

from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match

from engine.environments.contract import Observation, Restorable, Rewards, Session
from engine.environments.schema_bounds import LARGEST_CHECK, parts_in
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
        """``message`` is calls, perhaps malformed ones, or an answer."""
        refused = {request.id: call for request in message.requests if (call := self._refusal_of(request)) is not None}
        if message.requests and len(refused) == len(message.requests):
            return Observation.of([refused[request.id] for request in message.requests])
        fitting = tuple(request for request in message.requests if request.id not in refused)
        began_at = time.time()
        with named_as_environment_fault():
            observation = await self._session.act(replace(message, requests=fitting))
            _check(observation, fitting)
        begun = tuple(call.model_copy(update={"began_at": began_at}) for call in observation.calls)
        observation = replace(observation, calls=begun)
        return _with_refusals(observation, message.requests, refused) if refused else observation

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
        return {tool.name: _validator_for(tool) for tool in self._tools}

    def _refusal_of(self, request: ToolRequest) -> ToolCall | None:
        """The record of a call that cannot be made; None where there is nothing against it."""
        validator = self._validators.get(request.name)
        if validator is None and request.name:
            return _refused(request, "unknown-tool", self._no_such_tool(request.name))
        if request.malformed is not None or validator is None:
            reason = "the call names no tool" if request.malformed is None else request.malformed.reason
            return _refused(request, "arguments", reason)
        arguments = dict(request.arguments)
        if parts_in(arguments) * parts_in(validator.schema) > LARGEST_CHECK:
            return _refused(request, "arguments", "the arguments hold more than can be checked; make several calls")
        error = best_match(validator.iter_errors(arguments))
        if error is None:
            return None
        path = ".".join(map(str, error.absolute_path))
        return _refused(request, "arguments", f"{path}: {error.message}" if path else error.message)

    def _no_such_tool(self, name: str) -> str:
        return f"no tool {name!r}; there is {', '.join(self._validators) or 'none'}"


def _validator_for(tool: ToolSchema) -> Draft202012Validator:
    try:
        return _validator_of(json.dumps(dict(tool.parameters)))
    except (TypeError, ValueError):  # an environment of this process may write what is no JSON, and validates
        return Draft202012Validator(dict(tool.parameters))


@lru_cache(maxsize=256)
def _validator_of(parameters: str) -> Draft202012Validator:
    """For a schema as JSON; episodes that have the same tools share one."""
    return Draft202012Validator(json.loads(parameters))


def _check(observation: Observation, requests: Sequence[ToolRequest]) -> None:
    """Raises EnvironmentFailed where the observation is not one of these calls, or of an answer if there are none."""
    if len(observation.calls) != len(requests):
        raise EnvironmentFailed(f"{len(observation.calls)} records of {len(requests)} tool calls")
    for call, request in zip(observation.calls, requests, strict=True):
        if (call.id, call.name) != (request.id, request.name):
            raise EnvironmentFailed(
                f"the record of call {call.id!r} of {call.name!r} where that of {request.id!r} of {request.name!r} is "
                "due; use ToolCall.of(request, ...), in the order of the requests"
            )
    if not (observation.done or observation.messages):
        raise EnvironmentFailed(
            "an episode that is not over, and nothing for the policy to read; return Observation(done=True) for its end"
        )


def _with_refusals(
    observation: Observation, requests: Sequence[ToolRequest], refused: Mapping[str, ToolCall]
) -> Observation:
    """Records and results in the order of the requests; what belongs to no call comes last."""
    made = {call.id: call for call in observation.calls}
    results = [message for message in observation.messages if message.call in made]
    messages: list[Message] = []
    for request in requests:
        if request.id in refused:
            messages += Observation.of([refused[request.id]]).messages
        messages += [message for message in results if message.call == request.id]
    messages += [message for message in observation.messages if message.call not in made]
    calls = tuple(refused.get(request.id) or made[request.id] for request in requests)
    return Observation(calls, tuple(messages), observation.done)


def _refused(request: ToolRequest, error_class: ErrorClass, reason: str) -> ToolCall:
    return ToolCall.of(request, f"Error: {reason}"[:LONGEST_REASON], error_class=error_class, seconds=0.0)
