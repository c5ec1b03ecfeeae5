"""What a trajectory of several segments is, and what it cannot be."""

from typing import Any

import pytest
from pydantic import ValidationError

from engine.spec.message import AssistantMessage, Malformed, ToolRequest
from engine.spec.trajectory import Segment, SharedPrefix, ToolCall, Trajectory
from engine.training.batch import samples_from_trajectory
from tests.engine.contexts import ids_before
from tests.engine.training.cast import trajectory, turn

PLAIN = trajectory(turn([1, 2, 3], [4, 5]), turn([6], [7]), turn([8], [9]))


def rewritten(**changes: Any) -> Trajectory:
    """Its second segment begins with [1, 2, 3, 4] of the first."""
    second = {"turns": [turn([20], [21]), turn([22], [23])], "prefix": SharedPrefix(segment=0, tokens=4)} | changes
    return trajectory().model_copy(update={"segments": [*PLAIN.segments, Segment(**second)]})


def checked(one: Trajectory) -> Trajectory:
    return Trajectory.model_validate(one.model_dump())


def test_turns_of_all_segments_stand_in_order_of_time() -> None:
    assert [turn.token_ids for turn in checked(rewritten()).turns] == [[4, 5], [7], [9], [21], [23]]
    parallel = Trajectory.model_validate(
        PLAIN.model_dump()
        | {
            "segments": [
                Segment(turns=[turn([1], [2]), turn([3], [4])], numbers=[0, 3]),
                Segment(turns=[turn([5], [6]), turn([7], [8])], numbers=[1, 2]),
            ]
        }
    )
    assert [turn.token_ids for turn in parallel.turns] == [[2], [6], [8], [4]]
    renamed = parallel.with_turns([one.model_copy(update={"token_ids": [n]}) for n, one in enumerate(parallel.turns)])
    assert [[turn.token_ids for turn in segment.turns] for segment in renamed.segments] == [[[0], [3]], [[1], [2]]]


def test_a_beginning_that_was_shared_before_is_shared_again() -> None:
    """The second segment has 8 ids, 4 of them from the first: a third may begin with 6, and with no more than 8."""

    def with_third(tokens: int) -> Trajectory:
        third = Segment(turns=[turn([], [30])], prefix=SharedPrefix(segment=1, tokens=tokens))
        return checked(rewritten().model_copy(update={"segments": [*rewritten().segments, third]}))

    one = with_third(6)
    assert ids_before(one, 5) == [1, 2, 3, 4, 20, 21]
    [*_, sample] = samples_from_trajectory(one)
    assert sample.token_ids.tolist() == [1, 2, 3, 4, 20, 21, 30]
    with pytest.raises(ValidationError, match=r"segments.2.prefix.tokens = 9: use at most 8"):
        with_third(9)


@pytest.mark.parametrize(
    ("second", "reported"),
    [
        ({"prefix": SharedPrefix(segment=1, tokens=1)}, r"segments.1.prefix.segment = 1: use an earlier"),
        ({"prefix": SharedPrefix(segment=0, tokens=10)}, r"segments.1.prefix.tokens = 10: use at most 9"),
        ({"numbers": [3]}, r"segments.1.numbers"),
        ({"numbers": [4, 3]}, r"segments.1.numbers"),
        ({"numbers": [3, 3]}, r"segments.numbers"),
        ({"numbers": [3, 5]}, r"segments.numbers"),
        ({"numbers": [-1, 3]}, r"segments.numbers"),
    ],
)
def test_segments_that_are_no_tree_of_turns_are_refused_with_field_and_value(second: Any, reported: str) -> None:
    with pytest.raises(ValidationError, match=reported):
        checked(rewritten(**second))


def test_a_segment_without_a_turn_is_refused() -> None:
    with pytest.raises(ValidationError, match="segments.0.turns"):
        Trajectory.model_validate(PLAIN.model_dump() | {"segments": [{"turns": []}]})


def test_other_turns_are_as_many() -> None:
    with pytest.raises(ValueError, match="2 turns in place of 3"):
        PLAIN.with_turns(PLAIN.turns[:2])


def test_what_was_written_as_turns_with_one_call_each_is_read_as_one_segment() -> None:
    document = PLAIN.model_dump()
    turns = [
        {name: value for name, value in turn.items() if name not in ("tool_calls", "answered", "observed_text")}
        for turn in document.pop("segments")[0]["turns"]
    ]
    call = {"name": "python", "arguments": "1+1", "output": "2", "status": "ok", "seconds": 0.0}
    turns[0]["tool_call"], turns[2]["tool_call"] = call, None
    read = Trajectory.model_validate(document | {"turns": turns})
    assert [turn.token_ids for turn in read.turns] == [turn.token_ids for turn in PLAIN.turns]
    assert [(made.written, made.text, made.arguments) for made in read.tool_calls] == [("1+1", "1+1", {})]
    assert [turn.answered for turn in read.turns] == [False, False, True]
    assert Trajectory.model_validate(read.model_dump()) == read
    assert Trajectory.model_validate(document | {"turns": []}).segments == []


def test_a_call_for_readers_is_its_only_text_its_json_or_what_was_written() -> None:
    def text(**call: Any) -> str:
        return ToolCall(name="t", output="", status="ok", seconds=0.0, **call).text

    assert text(arguments={"code": "1+1"}) == "1+1"
    assert text(arguments={"a": 1, "b": "ü"}) == '{"a": 1, "b": "ü"}'
    assert text(written="[") == "["
    assert text() == "{}"


def deep(levels: int) -> Any:
    return [deep(levels - 1)] if levels else 1


@pytest.mark.parametrize(
    "value", [float("nan"), float("inf"), "\ud800", "a\0b", {"\0": 1}, {1, 2}, b"x", deep(64), {"a": deep(63)}]
)
def test_arguments_that_cannot_be_stored_are_refused(value: Any) -> None:
    """Else the event of an episode could not be written, and one policy's JSON would end the run."""
    with pytest.raises(ValidationError, match="arguments"):
        ToolCall(name="t", arguments={"x": value}, output="", status="ok", seconds=0.0)


def test_arguments_as_deep_as_is_allowed_are_stored_and_read_back() -> None:
    call = ToolCall(name="t", arguments={"x": deep(62)}, output="", status="ok", seconds=0.0)
    assert ToolCall.model_validate_json(call.model_dump_json()) == call


def test_the_requests_of_a_message_have_ids_of_their_own() -> None:
    message = AssistantMessage(requests=(ToolRequest("a"), ToolRequest("b", id="mine"), ToolRequest("a")))
    assert [request.id for request in message.requests] == ["call-1", "mine", "call-3"]
    with pytest.raises(ValueError, match="same id: call-2, call-2"):
        AssistantMessage(requests=(ToolRequest("a", id="call-2"), ToolRequest("b")))
    with pytest.raises(ValueError, match="malformed message has no tool requests"):
        AssistantMessage(requests=(ToolRequest("a"),), malformed=Malformed("x", "y"))


def test_the_record_of_a_malformed_call_keeps_what_was_written() -> None:
    request = ToolRequest("add", id="c", malformed=Malformed("{", "no JSON"))
    record = ToolCall.of(request, "Error", error_class="arguments", seconds=0.0)
    assert (record.id, record.arguments, record.written, record.text, record.failed) == ("c", {}, "{", "{", True)
