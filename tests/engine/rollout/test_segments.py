"""Episodes whose context is written again, that make several calls a turn, or that an answer does not end."""

from dataclasses import replace

import numpy as np
import pytest
from arenas import all_ids, request
from scripted import RENDERER, TOKENIZER, TOOLS, WITH_REASONING, ScriptedPolicy, answer, call, logprobs_of
from talkers import QUESTION, Babbling, Branching, Forgetful, Talking, calls

from engine.algorithms.sample_masks import has_void_turn
from engine.environments.contract import Observation, Rewards, Script, ScriptedTurn
from engine.inference.torch.factory import builtin_generator
from engine.loop.group_filters import facts_of
from engine.rollout.checked_session import CheckedSession
from engine.rollout.demonstrations import DemonstrationWriter
from engine.rollout.episode import Arena, EnvironmentFailed, run_episode
from engine.rollout.judge_llm import question_about
from engine.rollout.renderers.contract import Rewritten
from engine.rollout.resampling import barren
from engine.rollout.transcript import Transcript
from engine.spec.exploration import Purification
from engine.spec.message import AssistantMessage, Malformed, Message, ToolRequest
from engine.spec.recipe import Reward
from engine.spec.run import RunSpec
from engine.spec.selection import Resampling
from engine.spec.supervised import Stage
from engine.spec.trajectory import SharedPrefix, ToolCall, Trajectory
from engine.training.backends.torch import TorchBackend
from engine.training.batch import samples_from_trajectory
from engine.training.supervised import with_turn_masks
from tests.engine.contexts import ids_before

ROOM = 400


def arena(policy, renderer, environment=None, **changes):
    talking = environment or Talking()
    usual = Arena(talking, renderer, policy, None, Reward(tool_error=-0.1, well_formed=0.1), 8, 64, ROOM)
    return replace(usual, **changes)


def policy(*turns):
    return ScriptedPolicy(*turns, context_tokens=ROOM)


def thinking(code, thought):
    return [*TOKENIZER.encode(thought), *call(code)]


def opening():
    return RENDERER.prompt([Message("user", QUESTION)], TOOLS)


# ---- contexts that are written again ----


async def test_a_context_without_the_earlier_thought_is_a_new_segment_behind_the_shared_prompt():
    phrase = policy(thinking("1", "hm "), answer("it"))
    played = await run_episode(request(), arena(phrase, Forgetful()))
    first, second = played.segments
    assert first.turns[0].token_ids == thinking("1", "hm ")
    assert second.prefix == SharedPrefix(segment=0, tokens=len(opening()))
    assert second.turns[0].context_ids == [*call("1"), *RENDERER.bridge([Message("tool", "1", "python")])]
    assert second.turns[0].observation == "<output>1</output><assistant>"
    assert second.turns[0].context_text == "<tool>1</tool><output>1</output><assistant>"
    assert phrase.shown[1] == ids_before(played, 1)
    assert phrase.rewound == [0]
    assert (played.success, played.stop_reason, played.answer) == (True, "answered", "it")


async def test_what_is_written_again_as_it_was_goes_on_in_its_segment():
    phrase = policy(call("1"), call("2"), answer("it"))
    played = await run_episode(request(), arena(phrase, Forgetful()))
    plain = policy(call("1"), call("2"), answer("it"))
    appended = await run_episode(request(), arena(plain, WITH_REASONING))
    assert len(played.segments) == 1
    assert all_ids(played) == all_ids(appended)
    assert [turn.observed_text for turn in played.turns] == [None] * 3
    assert phrase.rewound == []


async def test_each_turn_is_reported_in_the_context_that_its_segment_says():
    turns = [thinking("1", "a "), call("2"), thinking("3", "b "), thinking("bad", "c "), answer("it")]
    phrase = policy(*turns)
    played = await run_episode(request(), arena(phrase, Forgetful()))
    assert [len(segment.turns) for segment in played.segments] == [1, 2, 1, 1]
    for number, turn in enumerate(played.turns):
        assert phrase.shown[number] == ids_before(played, number)
        assert turn.logprobs == logprobs_of(ids_before(played, number), turn.token_ids)
    assert [turn.token_ids for turn in played.turns] == turns
    assert played.tool_errors == 1


async def test_experience_stand_in_the_shared_prompt_and_are_marked_once():
    asked = request(experience=("look twice",))
    played = await run_episode(asked, arena(policy(thinking("1", "hm "), answer("it")), Forgetful()))
    assert [turn.experience_span for turn in played.turns] == [(2, 2 + len("<EXP>look twice</EXP>\n")), None]
    assert played.segments[1].prefix.tokens > 2 + len("<EXP>look twice</EXP>\n")


def test_experience_that_are_written_again_elsewhere_are_marked_there():
    class Moving(Forgetful):
        def rewritten(self, conversation, turns=1):
            experience = self.prompt((), TOOLS, conversation.experience)[2:-1]
            return Rewritten(
                (TOKENIZER.bos, *TOKENIZER.encode("so: "), *experience, TOKENIZER.assistant),
                0,
                (5, 5 + len(experience)),
            )

    transcript = Transcript(Moving(), [Message("user", QUESTION)], TOOLS, ("look",))
    ids = call("1")
    transcript.wrote(transcript.turn(ids, logprobs=[0.0] * len(ids), policy_versions=[0] * len(ids)))
    transcript.observed(RENDERER.parse(ids, TOOLS), [Message("tool", "1")])
    turn = transcript.turn([9], logprobs=[0.0], policy_versions=[0])
    assert RENDERER.text(turn.context_ids[slice(*turn.experience_span)]) == "<EXP>look</EXP>\n"


async def test_a_context_that_became_too_long_ends_the_episode():
    room = len(opening()) + 7
    phrase = ScriptedPolicy(thinking("1", "hm "), context_tokens=room)
    played = await run_episode(request(), arena(phrase, Forgetful(), context_tokens=room))
    assert (len(played.turns), played.stop_reason) == (1, "truncated")


SPEC = RunSpec(
    name="segments",
    model={"layers": 2, "hidden_size": 16, "heads": 2, "kv_heads": 1, "head_dim": 8, "intermediate_size": 16,
           "context_tokens": 256},
    resources={"threads": 1},
)  # fmt: skip


async def test_the_real_generators_logprobs_of_every_segment_are_those_that_the_trainer_recomputes():
    generator = builtin_generator(SPEC.model, slots=3, threads=1, seed=SPEC.seed)
    try:
        played = [
            await run_episode(
                replace(request(member=member), seed=member),
                arena(generator, Babbling(), max_turn_tokens=24, context_tokens=256, max_turns=6),
            )
            for member in range(6)
        ]
    finally:
        generator.close()
    several = [rollout for rollout in played if len(rollout.segments) > 2]
    assert several
    for rollout in several:
        samples = samples_from_trajectory(rollout)
        again = TorchBackend(SPEC.model, SPEC.resources, seed=SPEC.seed).logprobs(samples)
        for sample, row in zip(samples, again, strict=True):
            assert sample.loss_mask.sum() > 0
            np.testing.assert_allclose(
                np.asarray(row)[sample.loss_mask], sample.rollout_logprobs[sample.loss_mask], atol=1e-4
            )
    assert sum(int(s.loss_mask.sum()) for rollout in several for s in samples_from_trajectory(rollout)) == sum(
        rollout.sampled_tokens for rollout in several
    )


def test_a_demonstration_is_written_in_the_segments_that_a_policy_would_have():
    message = AssistantMessage.calling("python", {"code": "1"}, reasoning="hm ")
    record = ToolCall.of(message.requests[0], "1", seconds=0.0)
    script = Script(
        (Message("user", QUESTION),),
        (ScriptedTurn(message, Observation.of([record])), ScriptedTurn(AssistantMessage("it"), Observation(done=True))),
        Rewards(success=True),
    )
    writer = DemonstrationWriter(Talking(), Forgetful(), Reward(), 0)
    [task] = Talking().tasks("train")
    first, second = writer.segments(task, script)
    assert second.prefix == SharedPrefix(segment=0, tokens=len(opening()))
    assert (first.turns[0].answered, second.turns[0].answered) == (False, True)


# ---- several calls a turn ----


async def test_each_call_of_a_turn_has_its_record_and_its_result():
    phrase = policy(calls("1", "bad", "3"), answer("it"))
    played = await run_episode(request(), arena(phrase, Branching()))
    assert [(call.id, call.text, call.status) for call in played.turns[0].tool_calls] == [
        ("call-1", "1", "ok"), ("call-2", "bad", "error"), ("call-3", "3", "ok"),
    ]  # fmt: skip
    assert played.turns[1].context_text == "<output>1</output><output>bad</output><output>3</output><assistant>"
    assert (len(played.tool_calls), played.tool_errors) == (3, 1)
    assert played.rewards == {"outcome": 1.0, "tool_errors": -0.1, "well_formed": 0.1}
    assert not has_void_turn(facts_of(played).turns)
    assert 'ok "1"; error "bad"; ok "3"' in question_about(played)
    assert Trajectory.model_validate_json(played.model_dump_json()) == played


async def test_a_frozen_sandbox_stops_every_call_of_the_turn():
    phrase = policy(calls("1", "freeze"), answer("it"))
    played = await run_episode(request(), arena(phrase, Branching()))
    assert [call.error_class for call in played.turns[0].tool_calls] == ["frozen", "frozen"]
    assert (len(played.turns), played.stop_reason, played.success) == (1, "frozen", False)


async def test_saar_rests_where_a_failed_turn_has_several_calls_and_says_so():
    phrase = policy(calls("1", "bad"), calls("bad"), answer("it"))
    purified = arena(phrase, Branching(), purification=Purification())
    played = await run_episode(request(purify=True), purified)
    [change] = played.changes
    assert (change.kind, change.turn, change.reason) == ("purification-failed", 0, "several-calls")
    assert played.tool_errors == played.first_attempt_errors == 2
    assert not any(request.forced_ids for request in phrase.requests)


async def test_several_calls_that_all_worked_leave_saar_at_work():
    phrase = policy(calls("1", "2"), calls("bad"), calls("3"), answer("it"))
    played = await run_episode(request(purify=True), arena(phrase, Branching(), purification=Purification()))
    assert [(change.kind, change.turn) for change in played.changes] == [("purified", 1)]


async def test_a_correction_of_several_calls_is_a_spent_attempt():
    phrase = policy(calls("bad"), calls("3", "4"), calls("5"), answer("it"))
    played = await run_episode(request(purify=True), arena(phrase, Branching(), purification=Purification()))
    [change] = played.changes
    assert (change.kind, change.details["attempts"]) == ("purified", 2)
    assert [call.text for call in played.tool_calls] == ["5"]


async def test_saar_rests_where_the_renderer_writes_contexts_again():
    phrase = policy(thinking("bad", "hm "), answer("it"))
    played = await run_episode(request(purify=True), arena(phrase, Forgetful(), purification=Purification()))
    [change] = played.changes
    assert (change.kind, change.reason) == ("purification-failed", "rewritten-context")


async def test_errors_in_a_row_are_counted_call_by_call():
    played = await run_episode(request(), arena(policy(calls("bad", "bad"), calls("bad"), answer("it")), Branching()))
    assert barren(played, Resampling(repeated_errors=3)) == "repeated-errors"
    assert barren(played, Resampling(repeated_errors=4)) is None


async def test_a_turn_is_masked_as_an_error_if_one_of_its_calls_failed():
    played = await run_episode(request(), arena(policy(calls("1", "bad"), calls("1"), answer("it")), Branching()))
    masked = with_turn_masks(played, Stage(mask_errors=True, mask_irrelevant=False))
    assert [turn.masked_because for turn in masked.turns] == ["error", None, None]


async def test_a_bad_call_is_refused_by_itself_and_the_others_are_made():
    session = Talking()
    async with session.session(None, None) as talk:
        observation = await CheckedSession(talk, TOOLS).act(
            AssistantMessage(
                requests=(
                    ToolRequest("fly", {}),
                    ToolRequest("python", {"code": "1"}),
                    ToolRequest("python", {"code": 1}),
                    ToolRequest("python", malformed=Malformed("[", "no JSON")),
                    ToolRequest("python", {"code": "2"}, id="last"),
                )
            )
        )
        assert [request.text for message in talk.heard for request in message.requests] == ["1", "2"]
    assert [(call.id, call.error_class) for call in observation.calls] == [
        ("call-1", "unknown-tool"), ("call-2", None), ("call-3", "arguments"), ("call-4", "arguments"), ("last", None),
    ]  # fmt: skip
    assert [message.call for message in observation.messages] == [call.id for call in observation.calls]
    assert observation.messages[1].content == "1"


@pytest.mark.parametrize("order", [[1, 0], [0, 0], [0]])
async def test_records_of_other_calls_than_were_asked_for_are_a_fault_of_the_environment(order):
    class Confused:
        async def act(self, message):
            return Observation.of([ToolCall.of(message.requests[n], "", seconds=0.0) for n in order])

    message = AssistantMessage(requests=(ToolRequest("python", {"code": "1"}), ToolRequest("python", {"code": "2"})))
    with pytest.raises(EnvironmentFailed, match="record"):
        await CheckedSession(Confused(), TOOLS).act(message)


async def test_what_an_environment_says_besides_results_comes_last():
    class Chatty:
        async def act(self, message):
            [request] = message.requests
            phrase = (Message("user", "hurry"), Message("tool", "1", "python", request.id))
            return Observation((ToolCall.of(request, "1", seconds=0.0),), phrase)

    message = AssistantMessage(requests=(ToolRequest("python", {"code": "1"}), ToolRequest("fly", {})))
    observation = await CheckedSession(Chatty(), TOOLS).act(message)
    assert [message.content for message in observation.messages] == [
        "1",
        "Error: no tool 'fly'; there is python",
        "hurry",
    ]


# ---- answers that do not end an episode ----


async def test_an_answer_ends_an_episode_only_where_the_environment_says_so():
    phrase = policy(answer("a"), calls("1"), answer("b"), answer("it"))
    played = await run_episode(request(), arena(phrase, Branching(), Talking(answers=3)))
    assert [turn.answered for turn in played.turns] == [True, False, True, True]
    assert played.turns[1].context_text == "<user>not a<assistant>"
    assert (played.stop_reason, played.answer) == ("answered", "it")
    assert played.rewards["well_formed"] == 0.1
    assert not has_void_turn(facts_of(played).turns)


async def test_a_dialogue_that_meets_the_turn_limit_has_no_final_answer():
    phrase = policy(*[answer("a")] * 3)
    played = await run_episode(request(), arena(phrase, Branching(), Talking(answers=9), max_turns=3))
    assert (played.stop_reason, played.answer, len(played.turns)) == ("turn-limit", None, 3)


async def test_an_answer_that_is_neither_the_end_nor_answered_is_a_fault_of_the_environment():
    class Silent:
        async def act(self, message):
            return Observation()

    with pytest.raises(EnvironmentFailed, match=r"return Observation\(done=True\) for its end"):
        await CheckedSession(Silent(), TOOLS).act(AssistantMessage("it"))
