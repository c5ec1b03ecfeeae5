"""SAAR in episodes: real sandboxes, and a policy that says what it is told to say."""

from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from arenas import ENVIRONMENT, MonitoredPool, all_ids, arena, output, prompt, request, timeless
from scripted import TOKENIZER, ScriptedPolicy, answer, call, logprobs_of

from engine.inference.torch.factory import builtin_generator
from engine.rollout.episode import run_episode
from engine.spec.exploration import Purification
from engine.spec.generation import GenerateRequest
from engine.spec.model import BuiltinModel
from engine.spec.run import RunSpec
from sandboxes.interface import SandboxLost
from sandboxes.pool import Pool
from sandboxes.spec import SandboxSpec
from tests.engine.groups import evaluations_of, requests_of

ZERO, NAME = "Error: ZeroDivisionError", "Error: NameError"


@pytest.fixture
async def sandboxes():
    async with Pool(SandboxSpec(timeout_s=1.0, memory_mib=64, output_bytes=4096), size=2) as pool:
        yield pool


async def purified(sandboxes, *turns, purification=None, **changes):
    policy = ScriptedPolicy(*turns, context_tokens=400)
    trajectory = await run_episode(
        request(purify=True), arena(policy, sandboxes, purification=purification or Purification(), **changes)
    )
    return trajectory, policy


async def test_like_code_is_grafted_onto_the_reasoning_that_stands(sandboxes):
    failed, right = call("1/0", "Divide: "), call("1/1", "By one then: ")
    trajectory, policy = await purified(sandboxes, failed, right, answer("1.0"))
    first = trajectory.turns[0]
    assert first.token_ids == call("1/1", "Divide: ")
    assert (first.tool_calls[0].output, first.tool_calls[0].text) == ("1.0", "1/1")
    (change,) = trajectory.changes
    assert (change.kind, change.turn, change.reason) == ("purified", 0, "shallow")
    assert (change.start, change.stop) == (len("Divide: "), len(first.token_ids))
    assert change.removed_ids == call("1/0")
    assert (change.before, change.after) == ("<tool>1/0</tool>", "<tool>1/1</tool>")
    assert change.details == {
        "attempts": 1, "error_class": "zero-division", "first_output": ZERO, "similarity": 2 / 3,
    }  # fmt: skip
    assert policy.shown[1] == [*prompt(), *failed, *output(ZERO)]


async def test_unlike_code_brings_its_own_reasoning(sandboxes):
    trajectory, _ = await purified(sandboxes, call("nobody", "Ask. "), call("6*7", "Count. "), answer("42"))
    assert trajectory.turns[0].token_ids == call("6*7", "Count. ")
    (change,) = trajectory.changes
    assert (change.reason, change.start, change.removed_ids) == ("deep", 0, call("nobody", "Ask. "))
    assert (change.before, change.after) == ("Ask. <tool>nobody</tool>", "Count. <tool>6*7</tool>")


@pytest.mark.parametrize(("threshold", "repair", "thought"), [(0.5, "shallow", "old "), (0.51, "deep", "new ")])
async def test_the_threshold_itself_is_shallow(sandboxes, threshold, repair, thought):
    """ "1/0" and "1" share "1": 2 * 1 / 4."""
    trajectory, _ = await purified(
        sandboxes, call("1/0", "old "), call("1", "new "), answer("1"), purification=Purification(similarity=threshold)
    )
    assert trajectory.changes[0].details["similarity"] == 0.5
    assert (trajectory.changes[0].reason, trajectory.turns[0].token_ids) == (repair, call("1", thought))


async def test_what_stays_was_never_conditioned_on_the_error(sandboxes):
    """The log-probs of all tokens are those after the history that the trajectory shows."""
    trajectory, policy = await purified(sandboxes, call("1/0", "Divide: "), call("1/1", "So: "), call("2"), answer("2"))
    history = []
    for turn in trajectory.turns:
        history += turn.context_ids
        assert turn.logprobs == logprobs_of(history, turn.token_ids)
        history += turn.token_ids
    assert "Error" not in TOKENIZER.decode(history)
    (session,) = policy.seen
    assert all_ids(trajectory) == policy.seen[session]
    assert (trajectory.tool_errors, trajectory.first_attempt_errors) == (0, 1)
    assert trajectory.rewards["tool_errors"] == 0.0


async def test_the_next_correction_reads_the_newest_failure_only(sandboxes):
    failed, second, right = call("1/0", "a"), call("nobody", "b"), call("1/1", "c")
    trajectory, policy = await purified(sandboxes, failed, second, right, answer("1.0"))
    assert policy.shown[1] == [*prompt(), *failed, *output(ZERO)]
    assert policy.shown[2] == [*prompt(), *second, *output(NAME)]
    assert trajectory.turns[0].token_ids == call("1/1", "a")  # likened to, and grafted onto, the turn sampled at h_t
    assert trajectory.changes[0].details["attempts"] == 2
    assert trajectory.changes[0].details["first_output"] == ZERO


async def test_after_k_failures_the_last_one_stays_and_purification_rests(sandboxes):
    tries = [call(f"{n}/0", f"{n}: ") for n in range(4)]
    trajectory, policy = await purified(sandboxes, *tries, call("nobody"), answer("0"))
    first, second, _ = trajectory.turns
    assert first.token_ids == tries[3]
    assert first.logprobs == logprobs_of(prompt(), tries[3])
    assert (first.tool_calls[0].output, second.tool_calls[0].output) == (ZERO, NAME)
    assert second.context_ids == output(ZERO)
    (change,) = trajectory.changes
    assert (change.kind, change.reason, change.removed_ids) == ("purification-failed", "retries", tries[0])
    assert change.details == {"attempts": 3, "error_class": "zero-division", "first_output": ZERO}
    assert (trajectory.tool_errors, trajectory.first_attempt_errors) == (2, 2)
    assert [not request.forced_ids for request in policy.requests] == [True] * 4 + [False] + [True] * 2


async def test_what_the_cache_holds_of_the_history_is_not_read_again(sandboxes):
    failed, second, right = call("x/0"), call("nobody"), call("x/1")
    trajectory, policy = await purified(sandboxes, call("x=1"), failed, second, right, answer("1"))
    asked, shown = output(""), len([*prompt(), *call("x=1")])
    assert [list(request.new_ids) for request in policy.requests[1:]] == [
        asked,  # the turn that fails
        output(ZERO),  # the session simply goes on
        [*asked, *second, *output(NAME)],  # another failure takes the place of the first
        asked,  # the purified turn
        trajectory.turns[2].context_ids,
    ]
    assert policy.rewound == [shown, shown]


async def test_two_failures_in_one_episode_are_repaired_one_by_one(sandboxes):
    trajectory, _ = await purified(
        sandboxes, call("1/0"), call("1/1"), call("5"), call("nobody"), call("6"), answer("6")
    )
    assert [tool_call.output for tool_call in trajectory.tool_calls] == ["1.0", "5", "6"]
    assert [change.turn for change in trajectory.changes] == [0, 2]
    assert trajectory.first_attempt_errors == 2


@pytest.mark.parametrize("spent", [answer("1"), TOKENIZER.encode("1" * 64), [TOKENIZER.eos]])
async def test_a_lookahead_that_calls_nothing_is_a_spent_attempt(sandboxes, spent):
    trajectory, policy = await purified(sandboxes, call("1/0"), spent, call("1/1"), answer("1"))
    assert policy.shown[1] == policy.shown[2] == [*prompt(), *call("1/0"), *output(ZERO)]
    assert policy.requests[1].seed != policy.requests[2].seed
    assert trajectory.changes[0].details["attempts"] == 2
    assert trajectory.turns[0].token_ids == call("1/1")
    assert (trajectory.stop_reason, trajectory.answer) == ("answered", "1")


async def test_lookaheads_that_all_call_nothing_leave_the_failed_turn_as_it_was(sandboxes):
    trajectory, policy = await purified(sandboxes, call("1/0", "a"), *[answer("1")] * 3, answer("2"))
    assert trajectory.turns[0].token_ids == call("1/0", "a")
    assert trajectory.turns[0].logprobs == logprobs_of(prompt(), call("1/0", "a"))
    (change,) = trajectory.changes
    assert (change.kind, change.removed_ids, change.before) == ("purification-failed", [], "")
    assert (trajectory.answer, policy.shown[-1]) == ("2", [*prompt(), *call("1/0", "a"), *output(ZERO)])


async def test_a_graft_longer_than_a_turn_may_be_is_deep_instead(sandboxes):
    failed, right = call("1/0", "x" * 20), call("1/1 ", "y" * 10)
    trajectory, _ = await purified(sandboxes, failed, right, answer("1"), max_turn_tokens=len(failed))
    assert trajectory.changes[0].details["similarity"] > 0.5
    assert (trajectory.changes[0].reason, trajectory.turns[0].token_ids) == ("deep", right)


async def test_a_context_too_full_for_a_correction_leaves_the_failure(sandboxes):
    failed = call("1/0")
    room = len([*prompt(), *failed, *output(ZERO)])
    trajectory, policy = await purified(sandboxes, failed, call("1/1"), context_tokens=room)
    assert [len(turn.token_ids) for turn in trajectory.turns] == [len(failed)]
    assert (trajectory.stop_reason, trajectory.changes[0].reason) == ("truncated", "context")
    assert trajectory.changes[0].details["attempts"] == 0


async def test_the_first_call_is_corrected_in_a_new_sandbox(sandboxes):
    trajectory, _ = await purified(sandboxes, call("y=5;1/0"), call("'y' in globals()"), answer("0"))
    assert trajectory.tool_calls[0].output == "False"


async def test_a_correction_of_the_first_call_finds_the_hidden_numbers(sandboxes):
    task = 2  # level 3
    cell = ENVIRONMENT.tasks("train")[task].question.split("cell ")[1][0]
    policy = ScriptedPolicy(call("1/0"), call(f'show("{cell}")'), answer("0"), context_tokens=400)
    trajectory = await run_episode(request(task, purify=True), arena(policy, sandboxes))
    assert trajectory.tool_calls[0].output.isdigit()


async def test_a_call_that_failed_half_way_has_had_no_effect(sandboxes):
    """Without going back, x would be 3 when the correction prints it."""
    trajectory, _ = await purified(sandboxes, call("x=1"), call("x+=1;1/0"), call("x+=1;x"), call("x"), answer("2"))
    assert [tool_call.output for tool_call in trajectory.tool_calls] == ["", "2", "2"]


async def test_every_attempt_starts_from_the_same_state(sandboxes):
    fails = call("x+=1;open('f','a').write('1');1/0")
    sees = call("x,__import__('os').path.exists('f')")
    trajectory, _ = await purified(sandboxes, call("x=1"), fails, fails, fails, sees, answer("2"))
    assert trajectory.tool_calls[1].output == "(1, False)"


@pytest.mark.parametrize(
    ("failing", "error_class"),
    [
        ("x+=1;while 1:0", "syntax"),
        ("x+=1\nwhile 1:0", "timeout"),
        ("x+=1;bytearray(10**9)", "memory"),
        ("x+=1;import os;os.abort()", "killed"),
        ("x+=1;import os;os._exit(3)", "other"),
        ("del x;import builtins;del builtins.repr;1/0", "zero-division"),
    ],
)
async def test_every_way_to_fail_is_undone(sandboxes, failing, error_class):
    trajectory, _ = await purified(sandboxes, call("x=1"), call(failing), call("x,repr(2)"), answer("1"))
    assert trajectory.changes[0].details["error_class"] == error_class
    assert trajectory.tool_calls[1].output == "(1, '2')"


async def test_after_k_failures_the_tool_is_as_the_last_one_left_it(sandboxes):
    tries = [call(f"x+={n};1/0") for n in (1, 10, 100, 1000)]
    trajectory, _ = await purified(sandboxes, call("x=0"), *tries, call("x"), answer("0"))
    assert trajectory.tool_calls[-1].output == "1000"


async def test_no_snapshot_is_left_when_its_call_is_over(sandboxes):
    watched = MonitoredPool(sandboxes)
    await purified(watched, call("x=1"), call("x"), call("1/0"), call("1/1"), call("x"), answer("1"))
    assert (watched.kept, watched.most) == (set(), 1)


async def test_an_episode_that_is_not_purified_takes_no_snapshot(sandboxes):
    watched = MonitoredPool(sandboxes)
    policy = ScriptedPolicy(call("x=1"), call("1/0"), answer("1"), context_tokens=400)
    trajectory = await run_episode(request(), arena(policy, watched))
    assert (watched.most, trajectory.changes, trajectory.first_attempt_errors) == (0, [], None)


async def test_repairs_change_no_seed_of_later_turns(sandboxes):
    _, repaired = await purified(sandboxes, call("1/0"), call("nobody"), call("1/1"), call("2"), answer("2"))
    plain = ScriptedPolicy(call("1/1"), call("2"), answer("2"), context_tokens=400)
    await run_episode(request(), arena(plain, sandboxes))
    sampled = [query.seed for query in repaired.requests if not query.forced_ids]
    assert [sampled[0], *sampled[3:]] == [query.seed for query in plain.requests]
    assert len(set(sampled)) == len(sampled)


async def test_where_nothing_fails_purification_changes_nothing_but_the_count(sandboxes):
    turns = call("x=1"), call("x+1"), answer("2")
    trajectory, policy = await purified(sandboxes, *turns)
    plain = ScriptedPolicy(*turns, context_tokens=400)
    without = await run_episode(request(), arena(plain, sandboxes, purification=None))
    assert timeless(trajectory) == {**timeless(without), "first_attempt_errors": 0}
    assert [replace(query, session="") for query in policy.requests] == [
        replace(query, session="") for query in plain.requests
    ]
    assert policy.rewound == []


async def test_a_purified_rollout_played_again_is_the_same(sandboxes):
    turns = call("x=1"), call("x/0"), call("y"), call("x/1"), answer("1")
    first, _ = await purified(sandboxes, *turns)
    again, _ = await purified(sandboxes, *turns)
    assert timeless(first) == timeless(again)


async def test_a_sandbox_lost_in_a_correction_is_no_trajectory(sandboxes):
    class Mortal(MonitoredPool):
        @asynccontextmanager
        async def acquire(self):
            async with super().acquire() as sandbox:
                alive = sandbox.run_python

                async def run_python(code, *, timeout_s=None):
                    if code == "1/1":
                        raise SandboxLost("gone")
                    return await alive(code, timeout_s=timeout_s)

                sandbox.run_python = run_python
                yield sandbox

    policy = ScriptedPolicy(call("1/0"), call("1/1"), context_tokens=400)
    with pytest.raises(SandboxLost):
        await run_episode(request(purify=True), arena(policy, Mortal(sandboxes)))
    assert len(policy.released) == 1


async def test_a_state_that_cannot_be_kept_is_reported_and_the_failure_stays(sandboxes):
    dig = call("import os\nfor _ in range(99):os.mkdir('d');os.chdir('d')")
    trajectory, policy = await purified(sandboxes, dig, call("1"), call("1/0"), call("nobody"), answer("1"))
    assert [tool_call.output for tool_call in trajectory.tool_calls] == ["", "1", ZERO, NAME]
    (change,) = trajectory.changes
    assert (change.kind, change.turn, change.reason) == ("purification-failed", 2, "no-snapshot")
    assert "too deep" in change.details["refusal"]
    assert policy.rewound == []


async def test_purification_that_no_recipe_describes_is_refused(sandboxes):
    with pytest.raises(ValueError, match="purified"):
        await run_episode(request(purify=True), arena(ScriptedPolicy(answer("1")), sandboxes, purification=None))


class Dictated:
    """A real generator whose sampling is dictated: every log-prob is the model's."""

    def __init__(self, generator, *turns):
        self._generator, self._turns = generator, list(turns)
        self.rewind, self.release = generator.rewind, generator.release

    async def generate(self, asked: GenerateRequest):
        forced = asked.forced_ids or tuple(self._turns.pop(0))
        return await self._generator.generate(replace(asked, forced_ids=forced))


async def test_the_log_probs_are_to_the_bit_those_of_a_session_that_never_saw_an_error(sandboxes):
    model = BuiltinModel(
        layers=2, hidden_size=32, heads=2, kv_heads=1, head_dim=16, intermediate_size=32, context_tokens=400
    )
    generator = builtin_generator(model, slots=3, threads=1, seed=0)
    try:
        turns = (
            call("x=1", "Begin. "), call("x/0", "Divide: "), call("nobody", "Well: "), call("x/1", "So: "),
            call("1/0"), *[call(f"{n}/0", f"{n}: ") for n in range(3)], answer("1"),
        )  # fmt: skip
        trajectory = await run_episode(request(purify=True), arena(Dictated(generator, *turns), sandboxes))
        assert [change.kind for change in trajectory.changes] == ["purified", "purification-failed"]
        for turn in trajectory.turns:
            fresh = await generator.generate(
                GenerateRequest("fresh", tuple(turn.context_ids), 1, frozenset(), 1.0, 0, tuple(turn.token_ids))
            )
            assert turn.logprobs == list(fresh.logprobs)
    finally:
        generator.close()


def spec(**purification):
    return RunSpec(name="shares", recipe={"purification": purification})


def test_share_0_asks_for_exactly_what_no_purification_asks_for():
    assert requests_of(spec(share=0.0), 3) == requests_of(RunSpec(name="none"), 3)
    assert evaluations_of(spec(), 3, 9, {}) == evaluations_of(RunSpec(name="none"), 3, 9, {})


def test_the_share_is_kept_and_the_seed_decides_who_is_in_it():
    asked = [query for step in range(1, 9) for query in requests_of(spec(share=0.7), step)]
    assert sum(query.purify for query in asked) / len(asked) == pytest.approx(0.7, abs=0.03)
    assert asked == [query for step in range(1, 9) for query in requests_of(spec(share=0.7), step)]
    assert all(query.purify for query in requests_of(spec(share=1.0), 1))


def test_the_purified_evaluation_is_a_third_one_on_the_same_tasks():
    plain, asked = evaluations_of(spec(), 2, 9, {}), evaluations_of(spec(in_evaluation=True), 2, 9, {})
    assert asked[:18] == plain
    assert [
        (trajectory.purpose, trajectory.task, trajectory.temperature, trajectory.purify) for trajectory in asked[18:]
    ] == [("eval-purified", task, 1.0, True) for task in range(9)]
    assert not any(score.purify for score in plain)
