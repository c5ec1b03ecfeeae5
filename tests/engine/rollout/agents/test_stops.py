"""Stop strings: the agent reads what stands before them, and what is trained ends where a generator would stop."""

from random import Random

import pytest
from scripted import TOKENIZER, TOOLS, WITH_REASONING, answer, logprobs_of
from scripted import call as calling

from engine.rollout.agents.asked import Asked
from engine.rollout.agents.stops import MOST_TRIED, stopped
from engine.spec.generation import Generated
from engine.spec.message import AssistantMessage, Message
from engine.training.batch import samples_from_trajectory
from tests.engine.rollout.agents.endpoints import endpoint, scripted
from tests.engine.rollout.agents.test_capture import RandomPolicy, contexts, proxy, qwen3, trajectory

START = Message("user", "start")
CHAT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"
SPOKEN = AssistantMessage("Action: look\nObservation: I made this up\nObservation: and this")


def sampled(ids, stopped_by="stop"):
    return Generated(tuple(ids), tuple(logprobs_of([], list(ids))), (3,) * len(ids), stopped_by)


def ended_at(ids, *stops, stopped_by="stop", renderer=WITH_REASONING, tools=TOOLS):
    """The number of tokens that are kept, and what the agent reads; None where the turn stays whole."""
    found = stopped(sampled(ids, stopped_by), stops, renderer, tools)
    return None if found is None else (found.tokens, found.text)


def test_a_turn_ends_with_the_token_that_completes_the_first_stop_string():
    assert ended_at(answer("abcabc"), "ca") == (5, "ab")
    assert ended_at(answer("abcabc"), "bca", "c") == (4, "ab")
    assert ended_at(answer("abcabc"), "a") == (2, "")
    assert ended_at(answer("abc"), "c") == (4, "ab")
    assert ended_at(answer("abc"), "x") is None


def test_a_thought_and_a_call_may_hold_it_and_what_cannot_be_read_is_not_cut():
    thinking = [*TOKENIZER.encode("stop or not"), *answer("so stop")]
    assert ended_at(thinking, "stop") == (len(thinking) - 1, "so ")
    assert ended_at(calling("print('stop')"), "stop") is None
    assert ended_at(TOKENIZER.encode("no frame, stop"), "stop", stopped_by="length") is None


def test_a_turn_of_a_chat_template_ends_there_too():
    renderer = qwen3()
    ids = renderer.write(SPOKEN, ())
    tokens, text = ended_at(ids, "Observation:", renderer=renderer, tools=())
    assert text == "Action: look\n"
    assert renderer.text(ids[:tokens]).endswith("Observation:")
    thinking = renderer.write(AssistantMessage("Observation: no", reasoning="Observation: hm"), ())
    tokens, text = ended_at(thinking, "Observation:", renderer=renderer, tools=())
    assert (text, renderer.text(thinking[:tokens]).count("Observation:")) == ("", 2)


def test_where_a_turn_ends_follows_from_what_stands_before_alone():
    """Whatever might have come behind what is kept, the same tokens are kept: so would a generator stop."""
    dice, renderers = Random(5), (WITH_REASONING, qwen3())
    ended = 0
    for _ in range(300):
        renderer = dice.choice(renderers)
        words = "".join(dice.choice(("a", "b", " ", "\n", "ab")) for _ in range(dice.randrange(1, 12)))
        thought = dice.choice(("", "ab a", "b"))
        ids = list(renderer.write(AssistantMessage("x" + words, reasoning=thought), ()))
        stops = dice.sample(("a", "ab", "\n", "b ", " a", "\n\n"), 2)
        if (found := stopped(sampled(ids), stops, renderer, ())) is None or found.tokens == len(ids):
            continue
        ended += 1
        for behind in (ids[-1:], [*ids[1:4], ids[-1]], [*renderer.write(AssistantMessage("other ab"), ())]):
            other = stopped(sampled([*ids[: found.tokens], *behind]), stops, renderer, ())
            assert (other.tokens, other.text, other.stop) == (found.tokens, found.text, found.stop)
    assert ended > 100


def test_a_turn_that_is_full_of_stop_strings_which_do_not_count_is_looked_at_so_often_and_no_more():
    class Counting:
        def __init__(self):
            self.parsed, self.end_id, self.pieces = 0, WITH_REASONING.end_id, WITH_REASONING.pieces

        def parse(self, token_ids, tools):
            self.parsed += 1
            return WITH_REASONING.parse(token_ids, tools)

    renderer = Counting()
    assert stopped(sampled([*TOKENIZER.encode("a" * 5000), *answer("b")]), ("a",), renderer, ()) is None
    assert renderer.parsed == MOST_TRIED + 1


@pytest.mark.parametrize("renderer", [lambda: WITH_REASONING, qwen3], ids=["characters", "qwen3"])
async def test_what_was_kept_is_trained_once_and_the_next_call_reads_what_the_agent_sent(renderer):
    policy = scripted(renderer(), SPOKEN, AssistantMessage("it"))
    model = proxy(policy)
    [first] = await model.complete(Asked((START,), stops=("Observation:",)))
    assert (first.reply.content, first.stop) == ("Action: look\n", "Observation:")
    read = (START, first.reply, Message("user", "Observation: a door"))
    [second] = await model.complete(Asked(read, stops=("Observation:",)))
    assert second.stop is None
    played = trajectory(model)
    assert [segment.numbers for segment in played.segments] == [[0], [1]]
    made_up, [whole, _] = "I made this up", [list(ids) for _, ids in policy.returned]
    assert played.turns[0].token_ids == whole[: len(played.turns[0].token_ids)]
    assert played.turns[0].logprobs == logprobs_of(list(first.context.token_ids), whole)[: first_tokens(played)]
    assert made_up in policy.renderer.text(whole)
    text_read = policy.renderer.text(list(contexts(played)[1]))
    assert made_up not in text_read
    assert text_read.count("Observation:") == 1
    trained = sum(int(sample.loss_mask.sum()) for sample in samples_from_trajectory(played))
    assert trained == played.sampled_tokens == model.sampled_tokens - model.dropped_tokens
    assert model.dropped_tokens == len(whole) - first_tokens(played) > 0
    await model.close()
    assert policy.open == set()


def first_tokens(played):
    return len(played.turns[0].token_ids)


async def test_an_answer_that_is_empty_before_the_stop_string_can_be_gone_on_from():
    for renderer in (WITH_REASONING, qwen3()):
        model = proxy(scripted(renderer, AssistantMessage("Observation: x"), AssistantMessage("it")))
        [first] = await model.complete(Asked((START,), stops=("Observation:",)))
        assert first.reply.content == ""
        [second] = await model.complete(Asked((START, first.reply, Message("user", "go on"))))
        assert second.reply.content == "it"


async def test_what_was_dropped_counts_against_the_budget():
    policy = RandomPolicy(WITH_REASONING, 1)
    policy.message, policy.random.random = lambda: AssistantMessage("abcdefgh"), lambda: 1.0
    model = proxy(policy, sampled_tokens=25)
    kept = [len((await model.complete(Asked((START,), stops=("b",))))[0].generated.token_ids) for _ in range(3)]
    assert (kept, model.sampled_tokens, model.dropped_tokens) == ([3, 3, 3], 25, 16)
    with pytest.raises(Exception, match="25 sampled tokens are used up"):
        await model.complete(Asked((START,), stops=("b",)))


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_both_dialects_say_that_a_stop_string_ended_the_turn(stream):
    asked = {"model": "m", "max_tokens": 64, "messages": [{"role": "user", "content": "go"}], "stream": stream}
    async with endpoint(scripted(qwen3(), SPOKEN), turn_tokens=400) as open_to:
        _, of_chat = await open_to.post(CHAT, asked | {"stop": "Observation:"})
        _, of_messages = await open_to.post(MESSAGES, asked | {"stop_sequences": ["x", "Observation:"]})
    if stream:
        text = "".join(event["choices"][0]["delta"].get("content", "") for event in of_chat)
        assert (text, of_chat[-1]["choices"][0]["finish_reason"]) == ("Action: look\n", "stop")
        [delta] = [event["delta"] for event in of_messages if event["type"] == "message_delta"]
        assert delta == {"stop_reason": "stop_sequence", "stop_sequence": "Observation:"}
        return
    [choice] = of_chat["choices"]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("Action: look\n", "stop")
    kept = len(open_to.model.calls[0].generated.token_ids)
    assert of_chat["usage"]["completion_tokens"] == kept
    assert of_messages["content"] == [{"type": "text", "text": "Action: look\n"}]
    assert (of_messages["stop_reason"], of_messages["stop_sequence"]) == ("stop_sequence", "Observation:")


@pytest.mark.parametrize(
    ("path", "change", "field"),
    [
        (CHAT, {"stop": ""}, "stop"),
        (CHAT, {"stop": ["a", ""]}, "stop"),
        (CHAT, {"stop": [1]}, "stop"),
        (CHAT, {"stop": {"a": 1}}, "stop"),
        (CHAT, {"stop": ["a"] * 17}, "stop"),
        (CHAT, {"stop": "a" * 257}, "stop"),
        (CHAT, {"stop_sequences": ["a"]}, "stop_sequences"),
        (MESSAGES, {"stop_sequences": [""]}, "stop_sequences"),
        (MESSAGES, {"stop": "a"}, "stop"),
        (RESPONSES, {"stop": "a"}, "stop"),
    ],
)
async def test_a_stop_that_is_none_is_refused_by_its_name(path, change, field):
    words = {"input": "go"} if path == RESPONSES else {"messages": [{"role": "user", "content": "go"}]}
    limit = {"max_tokens": 9} if path == MESSAGES else {}
    async with endpoint(scripted(WITH_REASONING)) as open_to:
        status, document = await open_to.post(path, {"model": "m", **words, **limit, **change})
        assert status == 400
        assert field in document["error"]["message"]
        assert (open_to.model.calls, open_to.model.refused.total()) == ([], 1)
