"""Calls that no tool takes, and sessions that break their contract."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import pytest

from engine.environments.contract import Observation, Rewards
from engine.rollout.checked_session import LONGEST_REASON, CheckedSession
from engine.rollout.faults import EnvironmentFailed
from engine.spec.message import AssistantMessage, Malformed, Message, ToolRequest, ToolSchema
from engine.spec.trajectory import ToolCall
from sandboxes.interface import SandboxLost, SnapshotUnavailable

ADD = ToolSchema(
    "add",
    parameters={
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "integer", "minimum": 0}},
        "required": ["a", "b"],
        "additionalProperties": False,
    },
)
TOOLS = [ADD, ToolSchema.of_text("say", "text")]


class Adding:
    """A session whose ``act`` gives, or raises, what it was made with."""

    def __init__(self, observation: Observation | Exception | None = None, rewards: Rewards | None = None) -> None:
        self.observation, self.rewards = observation, rewards or Rewards(success=True)
        self.messages: list[AssistantMessage] = []

    async def reset(self) -> list[Message]:
        return []

    async def act(self, message: AssistantMessage) -> Observation:
        self.messages.append(message)
        if isinstance(self.observation, Exception):
            raise self.observation
        return self.observation or Observation.of([record(str(sum(message.requests[0].arguments.values())))])

    async def score(self) -> Rewards:
        return self.rewards


def record(output: str) -> ToolCall:
    return ToolCall(id="call-1", name="add", output=output, status="ok", seconds=0.0)


def unreadable(tool: str) -> AssistantMessage:
    return AssistantMessage(requests=(ToolRequest(tool, malformed=Malformed("[", "no JSON")),))


def adding(**arguments: Any) -> AssistantMessage:
    return AssistantMessage.calling("add", arguments)


async def test_a_call_that_fits_reaches_the_session() -> None:
    observation = await CheckedSession(Adding(), TOOLS).act(adding(a=2, b=40))
    assert observation.messages == (Message("tool", "42", "add", "call-1"),)


async def test_tools_of_one_name_and_different_schemas_are_told_apart() -> None:
    """Validators are shared by what they say, and not by the names of the tools."""
    narrow = ToolSchema("add", "", {"type": "object", "properties": {"a": {"maximum": 1}}})
    for tools, fits in (([ADD], True), ([narrow], False), ([ADD], True)):
        session = Adding()
        await CheckedSession(session, tools).act(adding(a=2, b=40))
        assert bool(session.messages) is fits


async def test_a_schema_that_is_no_json_is_checked_too() -> None:
    """Environments of this process may give a mapping that cannot be written to, or a set."""
    frozen = ToolSchema("add", "", {"properties": MappingProxyType({"a": {"enum": {1, 2}}})})
    for a, fits in ((2, True), (3, False)):
        session = Adding()
        await CheckedSession(session, [frozen]).act(adding(a=a, b=40))
        assert bool(session.messages) is fits


@pytest.mark.parametrize(
    ("message", "error_class", "output"),
    [
        (AssistantMessage.calling("fly", {}), "unknown-tool", "Error: no tool 'fly'; there is add, say"),
        (adding(a=1), "arguments", "Error: 'b' is a required property"),
        (adding(a="1", b=1), "arguments", "Error: a: '1' is not of type 'integer'"),
        (adding(a=1, b=-1), "arguments", "Error: b: -1 is less than the minimum of 0"),
        (unreadable("add"), "arguments", "Error: no JSON"),
        (unreadable("fly"), "unknown-tool", "Error: no tool 'fly'; there is add, say"),
    ],
)
async def test_a_call_that_no_tool_takes_is_an_observation_and_is_not_made(
    message: AssistantMessage, error_class: str, output: str
) -> None:
    session = Adding()
    observation = await CheckedSession(session, TOOLS).act(message)
    (call,) = observation.calls
    assert (call.status, call.error_class, call.output) == ("error", error_class, output)
    assert [read.content for read in observation.messages] == [output]
    assert not observation.done
    assert session.messages == []


async def test_what_the_policy_reads_of_a_misfit_is_bounded() -> None:
    observation = await CheckedSession(Adding(), TOOLS).act(AssistantMessage.calling("x" * 9999, {}))
    assert len(observation.messages[0].content) == LONGEST_REASON


async def test_arguments_that_take_long_to_check_are_not_checked() -> None:
    alternatives = {"type": "object", "properties": {"a": {"items": {"anyOf": [{"type": "string"}] * 400}}}}
    session, tools = Adding(), [ToolSchema("add", "", alternatives)]
    many = await CheckedSession(session, tools).act(adding(a=list(range(4000))))
    long = await CheckedSession(session, tools).act(adding(a=["x" * 500_000]))
    for observation in (many, long):
        assert observation.calls[0].output == "Error: the arguments hold more than can be checked; make several calls"
        assert observation.calls[0].error_class == "arguments"
    assert session.messages == []


async def test_a_long_text_is_an_argument_as_others_are() -> None:
    session = Adding(Observation.of([ToolCall(id="call-1", name="say", output="", status="ok", seconds=0.0)]))
    await CheckedSession(session, TOOLS).act(AssistantMessage.calling("say", {"text": "x" * 1_000_000}))
    assert len(session.messages) == 1


@pytest.mark.parametrize(
    ("observation", "reason"),
    [
        (Observation.of([]), "0 records of 1 tool calls"),
        (Observation((record("1"),), ()), "nothing for the policy to read"),
        (KeyError("x"), "KeyError: 'x'"),
    ],
)
async def test_a_session_that_breaks_its_contract_is_a_fault_with_a_name(
    observation: Observation | Exception, reason: str
) -> None:
    with pytest.raises(EnvironmentFailed, match=reason):
        await CheckedSession(Adding(observation), TOOLS).act(adding(a=1, b=1))


@pytest.mark.parametrize(
    ("components", "reason"), [({"outcome": 1.0}, "'outcome' is one of the recipe's"), ({"x": float("nan")}, "is nan")]
)
async def test_a_reward_that_cannot_be_added_is_a_fault(components: Mapping[str, float], reason: str) -> None:
    with pytest.raises(EnvironmentFailed, match=reason):
        await CheckedSession(Adding(rewards=Rewards(True, components)), TOOLS).score()


async def test_a_lost_sandbox_is_no_fault_of_the_environment() -> None:
    with pytest.raises(SandboxLost):
        await CheckedSession(Adding(SandboxLost("gone")), TOOLS).act(adding(a=1, b=1))


async def test_a_session_without_snapshots_says_so() -> None:
    with pytest.raises(SnapshotUnavailable, match="Adding keeps no snapshots"):
        await CheckedSession(Adding(), TOOLS).snapshot()
