from engine.rollout.evaluation import evaluation_metrics, tool_error_rate
from engine.spec.trajectory import Segment, Task, ToolCall, Trajectory, Turn


def trajectory(purpose, level, success, statuses=()):
    turns = [
        Turn(
            context_ids=[1], context_text="", token_ids=[2], pieces=[""], logprobs=[0.0], policy_versions=[0],
            tool_calls=[ToolCall(name="python", output="", status=status, seconds=0.0)],
        )
        for status in statuses
    ]  # fmt: skip
    return Trajectory(
        id="x", purpose=purpose, prompt=0, member=0, sampled_at_version=0,
        segments=[Segment(turns=turns)] if turns else [],
        stop_reason="answered", answer="1",
        task=Task(id="heldout-0", split="heldout", level=level, question="", answer="1"),
        success=success, reward=0.0, rewards={},
    )  # fmt: skip


def test_greedy_and_sampled_success_are_kept_apart_and_told_by_level():
    values = evaluation_metrics(
        [
            trajectory("eval-greedy", 1, True),
            trajectory("eval-greedy", 1, False),
            trajectory("eval-greedy", 3, False, ["error"]),
            trajectory("eval-greedy", 3, False),
            trajectory("eval-sampled", 1, True, ["ok", "ok", "error"]),
            trajectory("eval-sampled", 2, True, ["ok"]),
        ]
    )
    assert values == {
        "eval/success_greedy": 0.25,
        "eval/level_1_greedy": 0.5,
        "eval/level_3_greedy": 0.0,
        "eval/success_sampled": 1.0,
        "eval/level_1_sampled": 1.0,
        "eval/level_2_sampled": 1.0,
        "eval/tool_error_rate": 0.25,
    }


def test_who_calls_no_tool_makes_no_tool_error():
    assert tool_error_rate([trajectory("eval-sampled", 1, False)]) == 0.0


def test_nothing_played_says_nothing():
    assert evaluation_metrics([]) == {}


def test_purified_episodes_have_a_name_of_their_own_and_change_no_other_value():
    others = [trajectory("eval-greedy", 1, True), trajectory("eval-sampled", 1, False, ["ok", "error"])]
    purified = [trajectory("eval-purified", 1, True, ["ok"]), trajectory("eval-purified", 2, False)]
    values = evaluation_metrics([*others, *purified])
    assert values == evaluation_metrics(others) | {
        "eval/success_purified": 0.5,
        "eval/level_1_purified": 1.0,
        "eval/level_2_purified": 0.0,
    }
