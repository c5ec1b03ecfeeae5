"""What is kept of the messages of a call says of the next one's what it would say by itself."""

from hypothesis import given
from hypothesis import strategies as st

from engine.rollout.agents.asked import Asked
from engine.rollout.agents.contexts import _Digests
from engine.spec.message import AssistantMessage, Message, ToolRequest, ToolSchema

ENTRIES = [
    Message("user", "a"),
    Message("user", "b"),
    Message("tool", "a", "t", "1"),
    AssistantMessage("a"),
    AssistantMessage("a", reasoning="hm"),
    *(AssistantMessage(requests=(ToolRequest("t", {"x": value}, "1"),)) for value in (1, True, 1.0, "1")),
]
"""Python takes 1, True and 1.0 for equal, which JSON does not."""
CALLS = st.lists(
    st.tuples(st.lists(st.sampled_from(ENTRIES), min_size=1, max_size=5), st.sampled_from(["", "t"])),
    min_size=2,
    max_size=6,
)


@given(CALLS)
def test_digests_do_not_depend_on_the_calls_before(calls: list[tuple[list[Message | AssistantMessage], str]]) -> None:
    kept = _Digests()
    for messages, tool in calls:
        asked = Asked(tuple(messages), (ToolSchema(tool),) if tool else ())
        assert kept.of(asked) == _Digests().of(asked)


def test_each_beginning_of_the_messages_has_a_digest_of_its_own() -> None:
    digests = [_Digests().of(Asked((ENTRIES[0], entry)))[-1] for entry in ENTRIES]
    assert len(set(digests)) == len(ENTRIES) - 1, "only the two that differ by a thought are one"
