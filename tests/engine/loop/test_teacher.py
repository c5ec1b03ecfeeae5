"""A teacher's trajectories become experts in this run's own ids, whatever model wrote them."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine.environments.registry import environment_for
from engine.loop.expert_pool import ExpertPool
from engine.loop.planner import Played, planner_for
from engine.loop.requirements import lacking
from engine.loop.teacher import Teacher, TeacherRefused, teacher_of
from engine.models.tokenizer_training import Family
from engine.rollout.demonstrations import demonstration_writer_for
from engine.rollout.renderers.registry import renderer_for
from engine.spec.problems import Problem
from engine.spec.run import RunSpec
from engine.spec.trajectory import ToolCall, Trajectory
from tests.engine.models.folders import folder_of

BUILTIN: dict[str, Any] = {"context_tokens": 320}
TASKS = 6


def pretrained(family: Family) -> dict[str, Any]:
    return {"kind": "pretrained", "path": str(folder_of(family)), "context_tokens": 1024}


def spec_of(model: dict[str, Any], teacher: Path | dict[str, str] | None = None, **starts: Any) -> RunSpec:
    named = {} if teacher is None else {"teacher": teacher if isinstance(teacher, dict) else str(teacher)}
    return RunSpec.model_validate(
        {
            "name": "x",
            "environment": {"id": "python-math", "levels": [3], "max_turn_tokens": 64},
            "dataset": {"train_tasks": TASKS},
            "model": model,
            "recipe": {
                "stages": [],
                "reward": {"correct": 1.0, "wrong": -1.0, "tool_error": -0.25},
                "expert_starts": {"share": 1.0, "demonstrations": False} | named | starts,
            },
            "schedule": {"prompts_per_step": TASKS, "group_size": 2, "minibatch_trajectories": 2},
            "resources": {"kv_slots": 2},
        }
    )


def solutions(model: dict[str, Any], tasks: range = range(TASKS)) -> list[Trajectory]:
    spec = spec_of(model)
    environment, renderer = environment_for(spec.environment, spec.dataset), renderer_for(spec.model, spec.environment)
    writer = demonstration_writer_for(environment, renderer, spec.recipe.reward, seed=spec.seed)
    return [writer.solution(task) for task in tasks]


def written(folder: Path, trajectories: list[Any]) -> Path:
    file = folder / "teacher.jsonl"
    lines = [item.model_dump_json() if isinstance(item, Trajectory) else item for item in trajectories]
    file.write_text("".join(f"{line}\n" for line in lines))
    return file


def with_pieces(trajectory: Trajectory, before: str) -> Trajectory:
    """The same trajectory, of which every turn with a call begins with ``before``."""
    turns = [
        turn.model_copy(update={"pieces": [before, *turn.pieces]}) if turn.tool_calls else turn
        for turn in trajectory.turns
    ]
    return trajectory.with_turns(turns)


@pytest.mark.parametrize("teacher", ["qwen2.5", "qwen3", "llama3", "builtin"])
@pytest.mark.parametrize("student", ["qwen3", "llama3", "builtin"])
def test_what_another_model_wrote_is_written_as_this_one_would_to_the_token(
    tmp_path: Path, teacher: Any, student: Any
) -> None:
    of_teacher = BUILTIN if teacher == "builtin" else pretrained(teacher)
    of_student = BUILTIN if student == "builtin" else pretrained(student)
    taught = teacher_of(spec_of(of_student, written(tmp_path, solutions(of_teacher))))
    assert taught.left_out == {}
    own = solutions(of_student)
    assert [taught.experts[task].id for task in range(TASKS)] == [f"teacher-train-{task}" for task in range(TASKS)]
    for task, expert in taught.experts.items():
        assert [turn.token_ids for turn in expert.turns] == [turn.token_ids for turn in own[task].turns]
        assert [turn.pieces for turn in expert.turns] == [turn.pieces for turn in own[task].turns]
        assert [[call.output for call in turn.tool_calls] for turn in expert.turns] == [
            [call.output for call in turn.tool_calls] for turn in own[task].turns
        ]


@pytest.mark.parametrize("thoughts", [True, False])
def test_what_a_teacher_wrote_before_a_call_is_taken_over_or_not(tmp_path: Path, thoughts: bool) -> None:
    model = pretrained("qwen2.5")
    taught = [with_pieces(trajectory, "Look it up.\n") for trajectory in solutions(model)]
    file = written(tmp_path, taught)
    teacher = teacher_of(spec_of(pretrained("qwen3"), file, teacher_thoughts=thoughts))
    assert {"Look it up." in "".join(expert.turns[0].pieces) for expert in teacher.experts.values()} == {thoughts}
    assert len(teacher.experts) == TASKS


def test_a_thought_that_this_model_has_no_room_for_leaves_the_trajectory_out_and_says_so(tmp_path: Path) -> None:
    first, *others = solutions(pretrained("qwen3"))
    file = written(tmp_path, [with_pieces(first, "<think>\nHm.\n</think>\n\n"), *others])
    teacher = teacher_of(spec_of(BUILTIN, file))
    assert teacher.left_out == {"a turn that this model cannot write": 1}
    assert set(teacher.experts) == set(range(1, TASKS))
    assert set(teacher_of(spec_of(BUILTIN, file, teacher_thoughts=False)).experts) == set(range(TASKS))


def test_text_that_only_looks_like_a_call_is_not_taken_for_one(tmp_path: Path) -> None:
    """The record says one call, the text another: which of them the model meant nobody knows."""
    first, *others = solutions(pretrained("qwen3"))
    other = first.turns[0].tool_calls[0].model_copy(update={"arguments": {"code": "1"}})
    changed = [first.turns[0].model_copy(update={"tool_calls": [other]}), *first.turns[1:]]
    teacher = teacher_of(spec_of(BUILTIN, written(tmp_path, [first.with_turns(changed), *others])))
    assert teacher.left_out == {"a turn in no known form": 1}


def test_an_experts_reward_is_what_this_recipe_would_have_paid_it(tmp_path: Path) -> None:
    first = solutions(BUILTIN)[0]
    failed = first.turns[0].tool_calls[0].model_copy(update={"status": "error", "error_class": "value"})
    clumsy = first.with_turns([first.turns[0].model_copy(update={"tool_calls": [failed]}), *first.turns[1:]])
    clumsy = clumsy.model_copy(update={"reward": 99.0, "rewards": {"outcome": 98.5, "style": 0.5}})
    expert = teacher_of(spec_of(BUILTIN, written(tmp_path, [clumsy]))).experts[0]
    assert expert.rewards == {"outcome": 1.0, "tool_errors": -0.25, "style": 0.5}
    assert expert.reward == 1.25


def test_of_several_the_least_clumsy_is_the_expert_and_the_first_of_equals(tmp_path: Path) -> None:
    good = solutions(BUILTIN)[0]
    call = good.turns[0].tool_calls[0]
    longer = good.model_copy(
        update={"segments": [good.segments[0].model_copy(update={"turns": [good.turns[0], *good.turns]})]}
    )
    failed = call.model_copy(update={"status": "error", "error_class": "value"})
    clumsy = good.with_turns([good.turns[0].model_copy(update={"tool_calls": [failed]}), *good.turns[1:]])
    for order in ([longer, good, clumsy], [clumsy, longer, good]):
        expert = teacher_of(spec_of(BUILTIN, written(tmp_path, order))).experts[0]
        assert (expert.tool_errors, len(expert.turns)) == (0, len(good.turns))


def reasoned(trajectory: Trajectory, **changes: Any) -> Trajectory:
    return trajectory.model_copy(update=changes)


def test_who_cannot_be_an_expert_is_left_out_and_counted(tmp_path: Path) -> None:
    good, *others = solutions(BUILTIN)
    unreadable = ToolCall(name="python", written="{", output="", status="error", error_class="arguments", seconds=0)
    lines = [
        good,
        reasoned(others[0], success=False),
        reasoned(others[1], alerts=["a/1"]),
        reasoned(others[1], left_out="all turns"),
        reasoned(others[2], task=others[2].task.model_copy(update={"split": "heldout", "id": "heldout-3"})),
        reasoned(others[3], task=others[3].task.model_copy(update={"id": "train-99"})),
        reasoned(others[4], segments=[others[4].segments[0].model_copy(update={"turns": [others[4].turns[-1]]})]),
        others[4].with_turns(
            [others[4].turns[0].model_copy(update={"tool_calls": [unreadable]}), *others[4].turns[1:]]
        ),
        reasoned(others[4], segments=[]),
    ]
    teacher = teacher_of(spec_of(BUILTIN, written(tmp_path, lines)))
    assert set(teacher.experts) == {0}
    assert teacher.left_out == {
        "failed": 1,
        "raised an alert": 1,
        "not stored whole": 1,
        "on a held-out task": 1,
        "on a task that is not trained on": 1,
        "no turn to start behind": 2,
        "a call without readable arguments": 1,
    }


def test_a_runs_own_events_are_a_teacher_and_what_tells_of_no_trajectory_is_passed_over(tmp_path: Path) -> None:
    good = solutions(BUILTIN)[0]
    trajectory = {
        "kind": "trajectory",
        "seq": 2,
        "attempt": 1,
        "at": 0.0,
        "trajectory": json.loads(good.model_dump_json()),
    }
    lines = [json.dumps({"kind": "log", "message": "x"}), "", json.dumps(trajectory)]
    assert set(teacher_of(spec_of(BUILTIN, written(tmp_path, lines))).experts) == {0}


def problem(spec: RunSpec) -> Problem:
    [found] = lacking(spec)
    return found


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", "line 2: not JSON"),
        ("[1]", "line 2: no JSON object"),
        ("[" * 100_000, "line 2: not JSON"),
        ("{}", "line 2: id = '(missing)'"),
        ('{"kind": "trajectory"}', None),
        ('{"kind": "trajectory", "trajectory": 3}', "line 2: "),
    ],
)
def test_a_damaged_line_is_refused_with_its_number(tmp_path: Path, line: str, words: str | None) -> None:
    spec = spec_of(BUILTIN, written(tmp_path, [solutions(BUILTIN)[0], line]))
    if words is None:
        assert lacking(spec) == []
        return
    found = problem(spec)
    assert found.field == "recipe.expert_starts.teacher"
    assert words in found.message
    assert "one JSON document a line" in found.remedy


def test_a_teacher_of_another_environment_or_without_any_success_is_refused(tmp_path: Path) -> None:
    good = solutions(BUILTIN)[0]
    other = reasoned(good, task=good.task.model_copy(update={"answer": "7"}))
    assert "line 1: train-0 is another task" in problem(spec_of(BUILTIN, written(tmp_path, [other]))).message
    failed = problem(spec_of(BUILTIN, written(tmp_path, [reasoned(good, success=False)] * 2)))
    assert failed.message == "no expert is in it: 2 failed"
    assert "no trajectory at all" in problem(spec_of(BUILTIN, written(tmp_path, []))).message
    assert "cannot be read" in problem(spec_of(BUILTIN, tmp_path / "none.jsonl")).message
    with pytest.raises(TeacherRefused):
        teacher_of(spec_of(BUILTIN, tmp_path))


def test_another_content_than_the_digest_says_is_refused(tmp_path: Path) -> None:
    file = written(tmp_path, solutions(BUILTIN))
    named = {"file": str(file), "sha256": hashlib.sha256(file.read_bytes()).hexdigest()}
    assert lacking(spec_of(BUILTIN, teacher=named)) == []
    file.write_bytes(file.read_bytes() + b"\n")
    assert "its content is not what the run names" in problem(spec_of(BUILTIN, teacher=named)).message


@pytest.mark.parametrize(
    "mark", ["</tool_call>", "<|im_end|>", "</tool>", "<|eot_id|>", "<think>", "</think>", "\u2028é"]
)
@pytest.mark.parametrize("student", ["qwen3", "llama3", "builtin"])
def test_a_teacher_that_writes_marks_ends_no_turn_of_the_student(tmp_path: Path, student: Any, mark: str) -> None:
    """Either its code is read back to the character, or the trajectory is left out."""
    good, *others = solutions(BUILTIN)
    code = f"print('{mark}')"
    call = good.turns[0].tool_calls[0].model_copy(update={"arguments": {"code": code}})
    hostile = good.with_turns([good.turns[0].model_copy(update={"tool_calls": [call]}), *good.turns[1:]])
    of_student = BUILTIN if student == "builtin" else pretrained(student)
    spec = spec_of(of_student, written(tmp_path, [hostile, *others]), teacher_thoughts=False)
    teacher = teacher_of(spec)
    if 0 in teacher.experts:
        renderer = renderer_for(spec.model, spec.environment)
        tools = environment_for(spec.environment, spec.dataset).tools(hostile.task)
        ids = teacher.experts[0].turns[0].token_ids
        assert renderer.parse(ids, tools).message.requests[0].arguments == {"code": code}
        assert [token in renderer.stop_ids for token in ids] == [False] * (len(ids) - 1) + [True]
    else:
        assert teacher.left_out == {"a turn that this model cannot write": 1}


def planned(spec: RunSpec, teacher: Teacher, pool: ExpertPool | None = None) -> dict[int, set[str]]:
    """By task, the experts from whom its groups start."""
    plans = planner_for(spec, teacher=teacher.experts).plans(0, Played(0, prompts=0), pool or ExpertPool())
    found: dict[int, set[str]] = {}
    for plan in plans:
        found.setdefault(plan.task, set()).update([plan.prefill.expert] if plan.prefill else [])
    return found


HOW = {"kind": "sequential"}


def test_rollouts_start_from_the_teacher_until_the_policy_has_a_success_of_its_own(
    tmp_path: Path, rollout: Callable[..., Trajectory]
) -> None:
    file = written(tmp_path, solutions(BUILTIN, range(3)))
    spec = spec_of(BUILTIN, file, how=HOW, demonstrations=True)
    pool = ExpertPool()
    pool.of(1).take(rollout(prompt=8, task=1))
    assert planned(spec, teacher_of(spec), pool) == {
        0: {"teacher-train-0"},
        1: {"train-8-0"},
        2: {"teacher-train-2"},
        3: {"solution-train-3"},
        4: {"solution-train-4"},
        5: {"solution-train-5"},
    }
    alone = spec_of(BUILTIN, file, how=HOW)
    assert planned(alone, teacher_of(alone))[3] == set()


def test_without_a_teacher_everything_is_planned_as_before(tmp_path: Path) -> None:
    spec = spec_of(BUILTIN, how=HOW, demonstrations=True)
    assert planned(spec, teacher_of(spec)) == {task: {f"solution-train-{task}"} for task in range(TASKS)}
