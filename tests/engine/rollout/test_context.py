"""Contexts that leave something out, and habits of what is read: each sampled token is trained once all the same."""

import json
from dataclasses import replace
from random import Random

import pytest
from arenas import request, timeless
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from scripted import RENDERER, TOKENIZER, TOOLS, WITH_REASONING, ScriptedPolicy, answer, call, logprobs_of
from talkers import QUESTION, Talking

from engine.environments.python_math import PythonMathEnvironment
from engine.environments.sokoban import SokobanEnvironment
from engine.loop import environment_requirements
from engine.loop.environment_requirements import lacking_in_environment, unreadable_instructions
from engine.rollout.context import Habits, instructed
from engine.rollout.context_metrics import context_metrics
from engine.rollout.context_tools import ManagedSession, context_tools
from engine.rollout.demonstrations import DemonstrationWriter
from engine.rollout.episode import Arena, run_episode
from engine.rollout.evaluation import evaluation_metrics
from engine.rollout.renderers.characters import CharacterRenderer
from engine.rollout.renderers.chat import chat_renderer
from engine.spec.branches import exchanges_of
from engine.spec.context import Context, ContextRecord
from engine.spec.environment import PythonMath, Sokoban
from engine.spec.message import AssistantMessage, Malformed, Message, ToolRequest
from engine.spec.recipe import Recipe, Reward
from engine.spec.run import Dataset, RunSpec
from engine.spec.supervised import Demonstrations
from engine.spec.trajectory import Trajectory
from engine.training.batch import samples_from_trajectory
from tests.engine.contexts import ids_before
from tests.engine.rollout.renderers.model_folders import write_folder

ROOM = 4000


def arena(policy, context, renderer=WITH_REASONING, **changes):
    usual = Arena(Talking(), renderer, policy, None, Reward(), 8, 400, ROOM, context=context)
    return replace(usual, **changes)


def policy(*turns):
    return ScriptedPolicy(*turns, context_tokens=ROOM)


def thinking(code, thought):
    return [*TOKENIZER.encode(thought), *call(code)]


def trained_tokens(played: Trajectory) -> int:
    return sum(int(sample.loss_mask.sum()) for sample in samples_from_trajectory(played))


def named(tool, **arguments):
    """A call in the form that it has where there are several tools."""
    return [TOKENIZER.tool_open, *TOKENIZER.encode(f"{tool} {json.dumps(arguments)}"), TOKENIZER.tool_close]


def python(code):
    return named("python", code=code)


# ---- templates ----


async def test_a_causal_context_is_what_stands_without_any():
    turns = [thinking("1", "hm "), call("2"), answer("it")]
    plain, causal = policy(*turns), policy(*turns)
    without = await run_episode(request(), arena(plain, None))
    with_it = await run_episode(request(), arena(causal, Context()))
    assert plain.shown == causal.shown
    assert timeless(with_it.model_copy(update={"context": None})) == timeless(without)
    assert with_it.context == ContextRecord(thoughts=1)


async def test_a_window_shows_the_opening_and_the_last_turns():
    phrase = policy(call("1"), call("2"), call("3"), call("4"), answer("it"))
    played = await run_episode(request(), arena(phrase, Context(template="sliding-window", window_turns=2)))
    opening = RENDERER.text(RENDERER.prompt([Message("user", QUESTION)], TOOLS))
    spoken = [f"<tool>{code}</tool><output>{code}</output><assistant>" for code in "1234"]
    assert [RENDERER.text(shown) for shown in phrase.shown] == [
        opening,
        opening + spoken[0],
        opening + spoken[0] + spoken[1],
        opening + spoken[1] + spoken[2],
        opening + spoken[2] + spoken[3],
    ]
    assert [len(segment.turns) for segment in played.segments] == [3, 1, 1]
    assert all(segment.prefix.tokens >= len(opening) - len("<bos><user><assistant>") for segment in played.segments[1:])
    assert trained_tokens(played) == played.sampled_tokens == sum(map(len, (call("1"),) * 4)) + len(answer("it"))


async def test_a_window_says_that_turns_have_left_it():
    phrase = policy(call("1"), call("2"), answer("it"))
    context = Context(template="sliding-window", window_turns=1, window_note="Earlier turns are not shown.")
    await run_episode(request(), arena(phrase, context))
    notes = ["Earlier turns are not shown." in RENDERER.text(shown) for shown in phrase.shown]
    assert notes == [False, False, True]


async def test_equal_turns_in_a_narrow_window_are_each_trained_once_and_read_something_of_their_own():
    phrase = policy(*[call("1")] * 5, answer("it"))
    played = await run_episode(request(), arena(phrase, Context(template="sliding-window", window_turns=1)))
    assert all(turn.context_ids for turn in played.turns)
    assert trained_tokens(played) == played.sampled_tokens


async def test_earlier_thoughts_leave_a_reasoning_context():
    phrase = policy(thinking("1", "hm "), thinking("2", "so "), answer("it"))
    played = await run_episode(request(), arena(phrase, Context(template="reasoning")))
    last = RENDERER.text(phrase.shown[-1])
    assert "hm" not in last
    assert "so" not in last
    assert "<tool>1</tool>" in last
    assert played.context.thoughts == 2
    assert [len(segment.turns) for segment in played.segments] == [1, 1, 1]
    assert trained_tokens(played) == played.sampled_tokens


async def test_a_thought_before_a_call_that_cannot_be_read_stays():
    phrase = policy(thinking("1", "hm "), [*TOKENIZER.encode("so "), *python("2")], answer("it"))
    context = Context(template="reasoning", compact_tokens=3000, memory=True)
    played = await run_episode(request(), arena(phrase, context))
    assert played.stop_reason == "answered"
    assert "hm <tool>1</tool>" in texts(phrase)[2]
    assert "so " not in texts(phrase)[2]


async def test_a_chat_template_is_windowed_as_well(tmp_path):
    renderer = chat_renderer(write_folder(tmp_path / "m", "qwen3"))
    turns = [renderer.write(AssistantMessage.calling("python", {"code": str(n)}), TOOLS) for n in range(4)]
    phrase = policy(*turns, renderer.write(AssistantMessage("it"), TOOLS))
    context = Context(template="sliding-window", window_turns=2)
    played = await run_episode(request(), arena(phrase, context, renderer))
    for number, turn in enumerate(played.turns):
        assert phrase.shown[number] == ids_before(played, number)
        assert turn.logprobs == logprobs_of(ids_before(played, number), turn.token_ids)
    last = renderer.text(phrase.shown[-1])
    assert '"code": "1"' not in last
    assert '"code": "2"' in last
    assert QUESTION in last
    assert trained_tokens(played) == played.sampled_tokens


# ---- compaction ----


NOTED = "Earlier, of which nothing else is shown:"


@pytest.mark.parametrize("template", ["causal", "reasoning"])
async def test_a_context_that_is_too_long_goes_on_with_its_last_turns_and_a_note_of_the_others(template):
    turns = [call(str(number) * 3) for number in range(1, 7)]
    phrase = policy(*turns, answer("it"))
    context = Context(template=template, compact_tokens=60, window_turns=2, compact_characters=2)
    played = await run_episode(request(), arena(phrase, context))
    shown = [RENDERER.text(ids) for ids in phrase.shown]
    compacted = [place for place, text in enumerate(shown) if NOTED in text]
    assert 0 < len(compacted) < len(shown)
    assert compacted == list(range(compacted[0], len(shown)))
    assert "1. 11... -> 11..." in shown[-1]
    assert "<tool>111</tool>" not in shown[-1]
    assert "<tool>666</tool>" in shown[-1]
    assert 1 < len(played.segments) < len(played.turns)
    assert trained_tokens(played) == played.sampled_tokens == sum(map(len, [*turns, answer("it")]))


async def test_a_context_that_stays_short_is_compacted_never():
    phrases = policy(call("1"), call("2"), answer("it")), policy(call("1"), call("2"), answer("it"))
    for phrase, context in zip(phrases, (Context(), Context(compact_tokens=3000)), strict=True):
        await run_episode(request(), arena(phrase, context))
    assert phrases[0].shown == phrases[1].shown


@pytest.mark.parametrize(("tokens", "remedy"), [(10, "use "), (10_000, "use ")])
def test_a_budget_that_makes_no_sense_is_refused_with_those_that_do(tokens, remedy):
    spec = RunSpec.model_validate({"name": "x", "recipe": {"preset": "grpo", "context": {"compact_tokens": tokens}}})
    [problem] = lacking_in_environment(spec)
    assert (problem.field, problem.remedy[:4]) == ("recipe.context.compact_tokens", remedy)


def test_a_window_and_a_compaction_are_one_too_many():
    with pytest.raises(ValidationError, match="sliding window"):
        Context(template="sliding-window", compact_tokens=100)


# ---- instructions ----


async def test_instructions_stand_before_all_that_the_environment_says():
    phrase = policy(call("1"), answer("it"))
    context = Context(system_prompt="Be brief.", workflow=["look", "answer"])
    played = await run_episode(request(), arena(phrase, context))
    shown = RENDERER.text(phrase.shown[0])
    assert shown.index("Be brief.\nWork in these steps:\n1. look\n2. answer") < shown.index(QUESTION)
    plain = policy(call("1"), answer("it"))
    without = await run_episode(request(), arena(plain, Context()))
    assert played.opening_tokens - without.opening_tokens == len(phrase.shown[0]) - len(plain.shown[0]) > 0
    assert context_metrics([played])["context/opening_tokens"] == len(phrase.shown[0])


def test_instructions_are_put_in_front_of_a_system_message_that_is_there():
    opening = [Message("system", "You are in a house."), Message("user", QUESTION)]
    joined = instructed(Context(system_prompt="Be brief."), opening)
    assert joined == [Message("system", "Be brief.\n\nYou are in a house."), Message("user", QUESTION)]
    assert instructed(Context(workflow=["look"]), opening[1:])[0].content == "Work in these steps:\n1. look"
    assert instructed(Context(), opening) is opening
    assert instructed(None, opening) is opening


async def test_a_chat_template_has_instructions_as_its_system_message(tmp_path):
    renderer = chat_renderer(write_folder(tmp_path / "m", "qwen3"))
    phrase = policy(renderer.write(AssistantMessage("it"), TOOLS))
    await run_episode(request(), arena(phrase, Context(system_prompt="Be brief."), renderer))
    assert "Be brief." in renderer.text(phrase.shown[0]).split(QUESTION)[0]


def test_demonstrations_begin_as_episodes_do():
    written = [
        DemonstrationWriter(PythonMathEnvironment(PythonMath(), Dataset()), RENDERER, Reward(), 0, context)
        for context in (None, Context(system_prompt="Be brief."))
    ]
    plain, begun = (next(writer.demonstrations(Demonstrations(count=1))) for writer in written)
    shown = [RENDERER.text(played.turns[0].context_ids) for played in (plain, begun)]
    assert shown[1].replace("Be brief.\n", "") == shown[0]
    assert [turn.token_ids for turn in plain.turns] == [turn.token_ids for turn in begun.turns]


def test_preflight_counts_instructions():
    spec = RunSpec.model_validate({"name": "x", "recipe": {"preset": "grpo", "context": {"system_prompt": "x" * 500}}})
    assert [problem.field for problem in lacking_in_environment(spec)] == ["model.context_tokens"]


def test_a_template_without_system_messages_refuses_instructions_by_field(tmp_path):
    renderer = chat_renderer(write_folder(tmp_path / "m", "gemma"))
    [problem] = unreadable_instructions(Context(workflow=["look"]), renderer)
    assert problem.field == "recipe.context.system_prompt"
    assert "cannot be shown it" in problem.message
    assert [*unreadable_instructions(Context(), renderer)] == []


@pytest.mark.parametrize("players", [["nop"], ["nop", "model"]])
def test_preflight_refuses_instructions_that_cannot_be_shown_whoever_plays(tmp_path, monkeypatch, players):
    renderer = chat_renderer(write_folder(tmp_path / "m", "gemma"))
    monkeypatch.setattr(environment_requirements, "renderer_for", lambda model, environment: renderer)
    recipe = {"preset": "evaluate", "context": {"system_prompt": "Be brief."}}
    spec = RunSpec.model_validate({"name": "x", "recipe": recipe, "evaluation": {"players": players}})
    [problem] = lacking_in_environment(spec)
    assert problem.field == "recipe.context.system_prompt"


@pytest.mark.parametrize("wrong", [{"workflow": [""]}, {"workflow": ["x"] * 65}, {"system_prompt": "x" * 20_001}])
def test_instructions_have_bounds(wrong):
    with pytest.raises(ValidationError):
        Context(**wrong)


contexts = st.builds(
    lambda compact_tokens, template, manage_tokens, memory, **more: Context(
        compact_tokens=(compact := 0 if template in ("sliding-window", "self-managing") else compact_tokens),
        manage_tokens=manage_tokens if template == "self-managing" else 0,
        memory=memory and (compact > 0 or template in ("sliding-window", "self-managing")),
        template=template,
        **more,
    ),
    manage_tokens=st.sampled_from([0, 80]),
    subagent_turns=st.sampled_from([0, 1, 2]),
    memory=st.booleans(),
    compact_tokens=st.sampled_from([0, 60, 90]),
    compact_characters=st.sampled_from([1, 10]),
    system_prompt=st.sampled_from(["", "be brief"]),
    workflow=st.sampled_from([[], ["look", "answer"]]),
    template=st.sampled_from(["causal", "reasoning", "sliding-window", "self-managing"]),
    window_turns=st.integers(1, 4),
    window_note=st.sampled_from(["", "left out"]),
    result_characters=st.sampled_from([0, 1, 2, 5]),
    reminder=st.sampled_from(["", "be brief"]),
    reminder_turns=st.integers(1, 3),
    repeated_calls=st.integers(0, 3),
)
managing = st.one_of(
    st.builds(lambda task: named("delegate", task=task), st.sampled_from(["", "look"])),
    st.builds(lambda text: named("context_note", text=text), st.sampled_from(["a", "b c"])),
    st.builds(
        lambda first, last, text: named("context_fold", first=first, last=last, summary=text),
        st.integers(0, 6),
        st.integers(0, 6),
        st.sampled_from(["", "s"]),
    ),
    st.builds(lambda first, last: named("context_drop", first=first, last=last), st.integers(1, 6), st.integers(1, 6)),
)
turns = st.one_of(
    st.builds(thinking, st.sampled_from(["1", "22", "333 444", "bad"]), st.sampled_from(["", "hm ", "so "])),
    st.builds(lambda code: named("python", code=code), st.sampled_from(["1", "333 444"])),
    managing,
)


@settings(max_examples=150, deadline=None)
@given(contexts, st.lists(turns, max_size=7), st.booleans())
async def test_each_sampled_token_is_trained_once_in_the_context_in_which_it_was_sampled(context, spoken, experienced):
    script = [*spoken, *[answer("it")] * 8]  # a sub-agent answers, too
    phrase = policy(*script)
    asked = request(experience=("look twice",) if experienced else ())
    played = await run_episode(asked, arena(phrase, context))
    for number, turn in enumerate(played.turns):
        assert phrase.shown[number] == ids_before(played, number)
        assert turn.logprobs == logprobs_of(ids_before(played, number), turn.token_ids)
        assert turn.context_ids
    samples = samples_from_trajectory(played)
    trained = sum(int(sample.loss_mask.sum()) for sample in samples)
    assert trained == played.sampled_tokens == sum(len(turn) for turn in script[: len(played.turns)])
    assert Trajectory.model_validate_json(played.model_dump_json()) == played
    assert played.read_tokens == sum(len(shown) for shown in phrase.shown)
    assert played.longest_context == max(
        len(shown) + len(turn.token_ids) for shown, turn in zip(phrase.shown, played.turns, strict=True)
    )


compacting = st.builds(
    Context,
    template=st.sampled_from(["causal", "reasoning"]),
    compact_tokens=st.integers(40, 400),
    compact_characters=st.sampled_from([1, 10]),
    window_turns=st.integers(1, 4),
    memory=st.booleans(),
    result_characters=st.sampled_from([0, 1, 5]),
    reminder=st.sampled_from(["", "be brief"]),
    reminder_turns=st.integers(1, 3),
    repeated_calls=st.integers(0, 3),
)
with_and_without_thoughts = st.sampled_from(
    [
        python("1"),
        python("22 333"),
        [*TOKENIZER.encode("so " * 30), *python("1")],
        [*TOKENIZER.encode("hm "), *call("unreadable beside other tools")],
        named("context_note", text="a"),
    ]
)


@settings(max_examples=100, deadline=None)
@given(compacting, st.lists(with_and_without_thoughts, min_size=2, max_size=7))
async def test_a_compaction_that_is_due_is_seen_in_the_next_context_and_none_before(context, spoken):
    growing, phrase = policy(*spoken, answer("it")), policy(*spoken, answer("it"))
    await run_episode(request(), arena(growing, context.model_copy(update={"compact_tokens": 2**24})))
    await run_episode(request(), arena(phrase, context))
    begun = [turn for turn, ids in enumerate(growing.shown) if is_due(turn, ids, context)]
    compacted = [turn for turn, text in enumerate(texts(phrase)) if NOTED in text]
    assert compacted == list(range(begun[0] if begun else len(phrase.shown), len(phrase.shown)))
    assert all(growing.shown[turn] == ids for turn, ids in enumerate(phrase.shown) if turn not in compacted)
    for turn in compacted:
        stays = texts(phrase)[turn].count("<output>")
        assert stays < turn
        assert stays == context.window_turns or len(phrase.shown[turn]) <= context.compact_tokens


def is_due(turn, ids, context):
    """Whether this context before a turn, from 0, is too long, and turns can leave it."""
    return len(ids) > context.compact_tokens and turn > context.window_turns


# ---- habits ----


async def test_a_long_result_is_read_from_both_ends_and_kept_whole():
    phrase = policy(call("0123456789abcdef"), answer("it"))
    played = await run_episode(request(), arena(phrase, Context(result_characters=5)))
    assert "<output>012\n(11 characters are left out here)\nef</output>" in RENDERER.text(phrase.shown[1])
    assert played.turns[0].tool_calls[0].output == "0123456789abcdef"
    assert played.context.trimmed_characters == 11
    exchanges = exchanges_of(played, 0)
    assert not exchanges[1].read_results  # an export says what was read, not what was returned


def test_a_result_is_trimmed_where_it_is_longer_than_allowed_and_nothing_else_is():
    def read(content, most, role="tool"):
        habits = Habits(Context(result_characters=most))
        return habits.read(0, AssistantMessage("x"), [Message(role, content)])[0].content

    assert read("abc", 3) == "abc"
    assert read("abcd", 3) == "ab\n(1 characters are left out here)\nd"
    assert read("abcd", 1) == "a\n(3 characters are left out here)\n"
    assert read("abcd" * 9, 3, role="user") == "abcd" * 9


async def test_reminders_come_every_so_many_turns():
    phrase = policy(call("1"), call("2"), call("3"), call("4"), answer("it"))
    played = await run_episode(request(), arena(phrase, Context(reminder="Be brief.", reminder_turns=2)))
    assert [RENDERER.text(shown).count("Be brief.") for shown in phrase.shown] == [0, 0, 1, 1, 2]
    assert played.context.reminders == 2


async def test_a_policy_that_repeats_itself_is_told_so():
    phrase = policy(call("1"), call("1"), call("1"), call("2"), call("1"), answer("it"))
    played = await run_episode(request(), arena(phrase, Context(repeated_calls=2)))
    last = RENDERER.text(phrase.shown[-1])
    assert last.count("in a row") == 2
    assert "this call 2 times" in last
    assert "this call 3 times" in last
    assert played.context.repeated_calls == 2


@pytest.mark.parametrize(("second", "in_a_row"), [('{"code": 1', True), ("something else", False)])
def test_calls_that_cannot_be_read_repeat_each_other_where_they_are_the_same_text(second, in_a_row):
    habits = Habits(Context(repeated_calls=2))
    for text in ('{"code": 1', second):
        message = AssistantMessage(requests=(ToolRequest("python", malformed=Malformed(text, "no JSON")),))
        [read] = habits.read(0, message, [Message("tool", "Error: no JSON", "python", "call-1")])
    assert ("2 times in a row" in read.content) == in_a_row


# ---- a context that manages itself ----

MANAGED = Context(template="self-managing")


def texts(phrase):
    return [RENDERER.text(shown) for shown in phrase.shown]


async def test_a_dropped_turn_leaves_and_the_opening_says_so():
    phrase = policy(python("11"), python("22"), named("context_drop", first=1, last=1), answer("it"))
    played = await run_episode(request(), arena(phrase, MANAGED))
    before, after = texts(phrase)[2:]
    assert "11" in before
    assert "11" not in after
    assert after.startswith(f"<bos><user>{QUESTION}\nTurn 1, dropped.<assistant>")
    assert "<output>22\n(turn 2)</output>" in after
    assert after.endswith("<output>Turn 1, dropped.\n(turn 3)</output><assistant>")
    assert [len(segment.turns) for segment in played.segments] == [3, 1]
    assert trained_tokens(played) == played.sampled_tokens
    assert (played.context.left_turns, played.context.notes) == (1, 0)
    assert (played.context.numbered_turns, played.context.changes_results) == (3, True)


async def test_a_folded_stretch_is_what_the_policy_wrote_of_it_and_notes_survive_it():
    phrase = policy(
        python("11"),
        named("context_note", text="the key is 7"),
        named("context_fold", first=1, last=2, summary="nothing there"),
        answer("it"),
    )
    played = await run_episode(request(), arena(phrase, MANAGED))
    last = texts(phrase)[-1]
    assert last.startswith(
        f"<bos><user>{QUESTION}\nNote: the key is 7\nTurns 1 to 2, folded: nothing there<assistant><tool>context_fold"
    )
    assert "11" not in last
    assert "Note:" not in texts(phrase)[-2]  # as long as its turn stands there
    assert (played.context.left_turns, played.context.notes) == (2, 1)


@pytest.mark.parametrize(
    ("call_of_it", "why"),
    [
        (named("context_drop", first=1, last=1), "there is no earlier turn"),
        (named("context_drop", first="1", last=1), "'1' is not of type 'integer'"),
        (named("context_drop", first=True, last=1), "True is not of type 'integer'"),
        (named("context_fold", first=1, last=1), "'summary' is a required property"),
        (named("context_note", text=""), "'' should be non-empty"),
        (named("context_note", text="a", more=1), "Additional properties"),
        (named("context_keep", first=1), "no tool 'context_keep'"),
    ],
)
async def test_a_call_that_does_not_fit_is_answered_and_leaves_the_context_as_it_is(call_of_it, why):
    phrase = policy(call_of_it, python("22"), answer("it"))
    played = await run_episode(request(), arena(phrase, MANAGED))
    assert why in played.turns[0].tool_calls[0].output
    assert played.turns[0].failed_calls == 1
    assert len(played.segments) == 1
    assert texts(phrase)[1].startswith(texts(phrase)[0])


async def test_turns_that_are_still_to_come_cannot_leave():
    phrase = policy(python("11"), named("context_drop", first=1, last=2), answer("it"))
    played = await run_episode(request(), arena(phrase, MANAGED))
    assert played.turns[1].tool_calls[0].output == "Error: turns 1 to 2 are not among the earlier ones, 1 to 1"
    assert len(played.segments) == 1


async def test_a_long_context_asks_to_be_managed():
    spoken = [python("11"), python("22"), answer("it")]
    phrase = policy(*spoken)
    played = await run_episode(request(), arena(phrase, replace_context(manage_tokens=60)))
    tokens = len(phrase.shown[1]) + len(spoken[1])
    assert f"The context has {tokens} tokens; fold or drop turns that you do not need." in texts(phrase)[2]
    assert "The context has" not in texts(phrase)[1]
    assert played.context.manage_prompts == 1
    assert context_metrics([played])["context/manage_prompts"] == 1


def replace_context(**changes):
    return MANAGED.model_copy(update=changes)


async def test_calls_of_a_turn_go_to_the_context_and_to_the_environment():
    session = ManagedSession(await opened(), MANAGED)
    session.turn = 3
    message = AssistantMessage(
        requests=(
            ToolRequest("context_note", {"text": "x"}, "a"),
            ToolRequest("python", {"code": "5"}, "b"),
            ToolRequest("context_drop", {"first": 1, "last": 2}, "c"),
        )
    )
    observed = await session.act(message)
    assert [(call.id, call.output) for call in observed.calls] == [
        ("a", "Noted."), ("b", "5"), ("c", "Turns 1 to 2, dropped.")
    ]  # fmt: skip
    assert sorted(result.call for result in observed.messages) == ["a", "b", "c"]
    assert (session.notes, session.left) == (1, 2)


async def opened():
    talking = Talking()
    async with talking.session(talking.tasks("train")[0], None) as session:
        await session.reset()
        return session


@pytest.mark.parametrize("context", [Context(template="sliding-window", window_turns=1, memory=True),
                                     Context(compact_tokens=90, window_turns=1, memory=True)])  # fmt: skip
async def test_notes_outlive_the_turns_that_left_a_window_or_a_compaction(context):
    phrase = policy(named("context_note", text="the key is 7"), python("22"), python("33"), answer("it"))
    played = await run_episode(request(), arena(phrase, context))
    assert "Note: the key is 7" in texts(phrase)[-1]
    assert "context_note {" not in texts(phrase)[-1]
    assert played.context.notes == 1


def test_demonstrations_and_preflight_know_the_tools_of_the_context():
    environment = PythonMathEnvironment(PythonMath(), Dataset())
    writer = DemonstrationWriter(environment, RENDERER, Reward(), 0, MANAGED)
    [shown] = writer.demonstrations(Demonstrations(count=1, wrong_fraction=0.0, tool_error_fraction=0.0))
    assert '<tool>python {"code"' in "".join(shown.turns[0].pieces)
    taken = [tool.name for tool in context_tools(MANAGED)]
    assert taken == ["context_note", "context_fold", "context_drop"]
    assert context_tools(None) == context_tools(Context()) == []


@pytest.mark.parametrize(("context", "field"), [
    ({"template": "self-managing", "compact_tokens": 900}, "compact_tokens"), ({"manage_tokens": 90}, "manage_tokens"),
    ({"subagent_prompt": "x"}, "subagent_prompt"), ({"memory": True}, "memory"),
    ({"memory": True, "template": "reasoning"}, "memory")])  # fmt: skip
def test_tools_of_a_context_that_loses_nothing_are_refused(context, field):
    with pytest.raises(ValidationError) as refusal:
        Context.model_validate(context)
    assert refusal.value.errors()[0]["ctx"]["field"] == field


# ---- sub-agents ----

HELPED = Context(subagent_turns=2, subagent_prompt="You help.")
DELEGATION = named("delegate", task="find 7")


async def test_a_sub_agent_begins_anew_and_its_answer_comes_back_where_the_policy_stood():
    spoken = [python("11"), DELEGATION, call("22"), answer("7 it is"), python("33"), answer("it")]
    phrase = policy(*spoken)
    played = await run_episode(request(), arena(phrase, HELPED))
    shown = texts(phrase)
    assert shown[2] == "<bos><user>You help.\nfind 7<assistant>"
    assert shown[3] == shown[2] + "<tool>22</tool><output>22</output><assistant>"
    main = shown[1] + RENDERER.text(DELEGATION)
    assert shown[4] == f"{main}<output>7 it is</output><assistant>"
    assert shown[5] == f"{shown[4]}{RENDERER.text(python('33'))}<output>33</output><assistant>"
    assert [len(segment.turns) for segment in played.segments] == [2, 2, 2]
    assert played.segments[2].prefix.segment == 0
    [delegated] = played.turns[1].tool_calls
    assert (delegated.name, delegated.arguments, delegated.output) == ("delegate", {"task": "find 7"}, "7 it is")
    assert [turn.answered for turn in played.turns] == [False, False, False, True, False, True]
    assert (played.answer, played.stop_reason) == ("it", "answered")
    assert trained_tokens(played) == played.sampled_tokens == sum(map(len, spoken))
    assert played.context.subagents == 1


@pytest.mark.parametrize(
    ("spoken", "answered"),
    [
        ([call("1"), call("2")], "(It was stopped after 2 turns.)"),
        ([TOKENIZER.encode("hm") + [TOKENIZER.eos]], "(It said nothing that could be read.)"),
        ([answer("")], ""),
    ],
)
async def test_a_sub_agent_that_does_not_answer_says_why(spoken, answered):
    phrase = policy(DELEGATION, *spoken, answer("it"))
    played = await run_episode(request(), arena(phrase, HELPED))
    assert played.turns[0].tool_calls[0].output == answered
    assert (played.answer, len(played.turns)) == ("it", len(spoken) + 2)


async def test_turns_of_sub_agents_count_in_those_of_the_episode():
    phrase = policy(DELEGATION, call("1"), call("2"), python("3"), answer("it"))
    played = await run_episode(request(), arena(phrase, HELPED, max_turns=2))
    assert (played.stop_reason, len(played.turns)) == ("turn-limit", 2)
    assert played.turns[0].tool_calls[0].output == "(It was stopped: the episode has no turns left.)"


async def test_a_sub_agent_has_no_agents_below_it_and_no_tools_of_the_context():
    context = Context(template="self-managing", subagent_turns=3)
    for name, arguments in (("delegate", {"task": "x"}), ("context_note", {"text": "x"})):
        phrase = policy(DELEGATION, named(name, **arguments), answer("no"), answer("it"))
        renderer = Named()
        played = await run_episode(request(), arena(phrase, context, renderer))
        assert played.turns[1].tool_calls[0].output == f"Error: a sub-agent has no tool {name!r}"
        assert (played.answer, played.context.notes, played.context.subagents) == ("it", 0, 1)


class Named(CharacterRenderer):
    """Calls have the name of their tool though there is but one."""

    def __init__(self):
        super().__init__(TOKENIZER, reasoning=True)

    def parse(self, token_ids, tools):
        return super().parse(token_ids, [*tools, *context_tools(MANAGED)])


@pytest.mark.parametrize("arguments", [{}, {"task": " "}, {"task": 7}, {"task": "x", "more": 1}])
async def test_a_task_that_cannot_be_read_begins_nobody(arguments):
    phrase = policy(named("delegate", **arguments), answer("it"))
    played = await run_episode(request(), arena(phrase, HELPED))
    assert played.turns[0].tool_calls[0].error_class == "arguments"
    assert (len(played.segments), played.context.subagents, played.answer) == (1, 0, "it")


async def test_an_episode_that_a_sub_agent_ends_is_over():
    environment = SokobanEnvironment(Sokoban(levels=[1]), Dataset())
    task = environment.tasks("train")[0]
    moves = [turn.message.requests[0] for turn in environment.script(task, "solve", Random(0)).turns]
    [tool] = environment.tools(task)
    solving = [RENDERER.write(AssistantMessage(requests=(move,)), [tool]) for move in moves]
    phrase = policy(DELEGATION, *solving)
    context = Context(subagent_turns=len(moves))
    played = await run_episode(request(), arena(phrase, context, environment=environment, max_turns=20))
    assert (played.stop_reason, played.success, len(played.turns)) == ("done", True, 1 + len(moves))
    assert played.turns[0].tool_calls[0].output == ""


async def test_alerts_of_a_sub_agent_are_of_its_own_turn_and_end_the_episode_when_they_freeze():
    phrase = policy(DELEGATION, call("freeze"), answer("it"))
    played = await run_episode(request(), arena(phrase, HELPED))
    assert (played.stop_reason, played.success) == ("frozen", False)
    assert [turn.tool_calls[0].error_class for turn in played.turns] == ["frozen", "frozen"]


async def test_a_chat_template_has_the_tools_of_a_context_and_sub_agents(tmp_path):
    renderer = chat_renderer(write_folder(tmp_path / "m", "qwen3"))
    context = Context(template="self-managing", subagent_turns=2)
    tools = [*TOOLS, *context_tools(context)]

    def calling(name, **arguments):
        return renderer.write(AssistantMessage.calling(name, arguments), tools)

    spoken = [
        calling("python", code="1111"),
        calling("delegate", task="find 7"),
        calling("python", code="2222"),
        renderer.write(AssistantMessage("seven"), TOOLS),
        calling("context_fold", first=1, last=1, summary="a one"),
        renderer.write(AssistantMessage("it"), tools),
    ]
    phrase = policy(*spoken)
    played = await run_episode(request(), arena(phrase, context, renderer, max_turn_tokens=900))
    shown = [renderer.text(ids) for ids in phrase.shown]
    assert "context_fold" in shown[0]
    assert "context_fold" not in shown[2]
    assert ("find 7" in shown[2], QUESTION in shown[2], "1111" in shown[2]) == (True, False, False)
    assert ("1111" in shown[4], "seven" in shown[4], "2222" in shown[4]) == (True, True, False)
    assert ("1111" in shown[5], "Turn 1, folded: a one" in shown[5], "seven" in shown[5]) == (False, True, True)
    assert played.answer == "it"
    for number, turn in enumerate(played.turns):
        assert phrase.shown[number] == ids_before(played, number)
        assert turn.logprobs == logprobs_of(ids_before(played, number), turn.token_ids)
    assert trained_tokens(played) == played.sampled_tokens == sum(map(len, spoken))


# ---- spec and metrics ----


@pytest.mark.parametrize(
    ("document", "field"),
    [
        ({"recipe": {"context": {"template": "sliding-window"}, "purification": {}}}, "recipe.context.template"),
        ({"recipe": {"context": {"template": "reasoning"}, "expert_starts": {}}}, "recipe.context.template"),
        ({"recipe": {"context": {"template": "sliding-window", "window_turns": 5}}, "environment": {"max_turns": 5}},
         "recipe.context.window_turns"),
        ({"recipe": {"context": {"template": "reasoning"}}, "environment": {"reasoning": False}},
         "recipe.context.template"),
        ({"recipe": {"context": {"template": "reasoning"}}, "environment": {"id": "household"}},
         "recipe.context.template"),
        ({"recipe": {"context": {"template": "causal"}}, "environment": {"id": "agent", "agent": {"command": ["a"]}}},
         "recipe.context"),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_refused_with_its_field_and_remedy(document, field):
    with pytest.raises(ValidationError) as refusal:
        RunSpec.model_validate({"name": "x", **document})
    [error] = [error for error in refusal.value.errors() if error["type"] == "impossible_combination"]
    assert ".".join([*map(str, error["loc"]), error["ctx"]["field"]]).endswith(field)
    assert error["ctx"]["remedy"]


def test_a_causal_context_goes_with_everything_and_is_absent_where_it_is_false():
    assert Recipe.model_validate({"context": {"template": "causal"}, "purification": {}}).context == Context()
    assert Recipe.model_validate({"context": False}).context is None
    assert Recipe().context is None


async def test_metrics_say_what_contexts_hold_and_nothing_without_one():
    turns = [call("1"), call("1"), answer("it")]
    plain = await run_episode(request(), arena(policy(*turns), None))
    assert context_metrics([plain]) == {}
    phrase = policy(*turns)
    played = await run_episode(request(), arena(phrase, Context(template="sliding-window", window_turns=1)))
    values = context_metrics([played, plain])
    assert values["context/segments"] == 2
    assert values["context/read_tokens"] == sum(map(len, phrase.shown))
    assert values["context/turns"] == 3
    assert values["context/turn_tokens"] == pytest.approx(values["context/read_tokens"] / 3)
    assert values["context/sampled_tokens"] == played.sampled_tokens > 0


async def test_an_evaluation_speaks_of_the_contexts_of_its_sampled_episodes_alone():
    def evaluated(played, purpose):
        return played.model_copy(update={"purpose": purpose})

    context = Context(template="sliding-window", window_turns=1)
    short = await run_episode(request(), arena(policy(answer("it")), context))
    long = await run_episode(request(), arena(policy(call("1"), call("1"), answer("it")), context))
    values = evaluation_metrics([evaluated(short, "eval-greedy"), evaluated(long, "eval-sampled")])
    of_contexts = {key.removeprefix("eval/"): value for key, value in values.items() if key.startswith("eval/context/")}
    assert of_contexts == context_metrics([long]) != context_metrics([short])
    plain = await run_episode(request(), arena(policy(answer("it")), None))
    assert not any(key.startswith("eval/context/") for key in evaluation_metrics([evaluated(plain, "eval-sampled")]))
