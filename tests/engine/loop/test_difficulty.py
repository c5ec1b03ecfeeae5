"""A table of how hard tasks are: written line by line, read whole, refused where it is not this run's."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from engine.environments.registry import environment_for
from engine.launch import exit_codes
from engine.loop import task_filter
from engine.loop.difficulty import (
    CHECKED_TASKS,
    DifficultyTable,
    GrowingTable,
    TableRefused,
    differing_origin,
    file_sha256,
    measurement_of,
    named_table,
    spread,
    tallied,
)
from engine.loop.expert_pool import ExpertPool
from engine.loop.planner import Played, planner_for
from engine.loop.requirements import lacking
from engine.rollout.requests import difficulty_requests
from engine.spec.difficulty import TaskDifficulty, task_sha256
from engine.spec.problems import Problem, problems_in
from engine.spec.run import RunSpec
from engine.spec.schedule import Schedule
from engine.spec.selection import Difficulty
from engine.spec.trajectory import Trajectory
from tests.engine.groups import requests_of
from tests.engine.rigs import Rig

SUCCESSES = [0, 1, 2, 3, 4, 4]
"""The successes of four rollouts, by task."""


def spec_with(difficulty: dict[str, Any] | None = None, **more: Any) -> RunSpec:
    document = {
        "name": "x",
        "environment": {"levels": [1]},
        "dataset": {"train_tasks": len(SUCCESSES)},
        "recipe": {"selection": {"difficulty": {"rollouts": 4} if difficulty is None else difficulty}},
        "schedule": {"prompts_per_step": 4, "group_size": 2, "minibatch_trajectories": 2},
    }
    return RunSpec.model_validate(document | more)


def measured(spec: RunSpec, path: Path, successes: list[int] = SUCCESSES) -> Path:
    """A whole table, as a run of ``spec`` writes it."""
    tasks = environment_for(spec.environment, spec.dataset).tasks("train")
    growing = GrowingTable(path, measurement_of(spec))
    growing.add(
        [
            TaskDifficulty(
                task=task.id, number=number, sha256=task_sha256(task), rollouts=4, successes=successes[number]
            )
            for number, task in enumerate(tasks)
        ]
    )
    growing.close()
    return path


def naming(path: Path, **difficulty: Any) -> RunSpec:
    return spec_with({"measured": str(path)} | difficulty)


def problem(spec: RunSpec) -> Problem:
    [found] = lacking(spec)
    return found


@pytest.mark.parametrize(
    ("bounds", "kept"),
    [
        ({}, [1, 2, 3]),
        ({"above": 0.25}, [2, 3]),
        ({"below": 0.75}, [1, 2]),
        ({"above": 0.25, "below": 0.75}, [2]),
        ({"above": 0.2, "below": 0.8}, [1, 2, 3]),
    ],
)
def test_tasks_between_the_bounds_are_kept_and_those_at_a_bound_are_not(
    tmp_path: Path, bounds: dict[str, float], kept: list[int]
) -> None:
    table = named_table(Difficulty.model_validate({"measured": str(measured(spec_with(), tmp_path / "t.jsonl"))}))
    assert table.kept(Difficulty.model_validate(bounds), train_tasks=6) == kept


def test_a_task_that_nobody_could_play_is_neither_kept_nor_called_hard() -> None:
    row = TaskDifficulty(task="train-0", number=0, sha256="0" * 64, rollouts=0, successes=0)
    table = DifficultyTable(measurement_of(spec_with()), {0: row})
    assert table.kept(Difficulty(), train_tasks=6) == []
    metrics = table.metrics(Difficulty(), train_tasks=6)
    assert (metrics["difficulty/unplayed"], metrics["difficulty/too_hard"]) == (1, 0)


def test_metrics_by_hand(tmp_path: Path) -> None:
    table = named_table(Difficulty.model_validate({"measured": str(measured(spec_with(), tmp_path / "t.jsonl"))}))
    assert table.metrics(Difficulty(), train_tasks=6) == {
        "difficulty/tasks": 6,
        "difficulty/kept": 3,
        "difficulty/too_hard": 1,
        "difficulty/too_easy": 2,
        "difficulty/unplayed": 0,
        "difficulty/success": pytest.approx(14 / 24),
    }


def test_only_tasks_that_are_kept_are_planned_in_turn_and_without_an_end() -> None:
    spec = spec_with()
    planner, played = planner_for(spec, [1, 2, 3]), Played(tasks_taken=0, prompts=0)
    plans = planner.plans(0, played, ExpertPool())
    assert [plan.task for plan in plans] == [1, 2, 3, 1]
    assert [plan.tasks_before for plan in plans] == [0, 1, 2, 3]


def test_expert_starts_take_only_tasks_that_are_kept_too() -> None:
    spec = spec_with().model_dump() | {
        "environment": {"levels": [3]},
        "model": {"context_tokens": 160},
        "recipe": {"expert_starts": {"share": 1.0, "how": {"kind": "parallel", "anchors": 2}}},
    }
    plans = planner_for(RunSpec.model_validate(spec), [4, 2]).plans(0, Played(tasks_taken=0, prompts=0), ExpertPool())
    assert [plan.task for plan in plans] == [4, 4, 2, 2]
    assert any(plan.prefill for plan in plans)


def test_all_tasks_kept_plans_what_no_filter_plans() -> None:
    spec = spec_with()
    played = Played(tasks_taken=8, prompts=8)
    filtered = planner_for(spec, list(range(6))).requests(
        planner_for(spec, list(range(6))).plans(2, played, ExpertPool())
    )
    assert filtered == planner_for(spec).requests(planner_for(spec).plans(2, played, ExpertPool()))
    assert filtered == requests_of(spec_with(None), 3)


def test_every_task_is_played_as_often_as_asked_with_seeds_of_its_own_and_as_training_samples() -> None:
    schedule = Schedule(temperature=0.4, top_p=0.6)
    requests = difficulty_requests(schedule, [5, 2], 3, version=0, seed=7)
    assert [(request.task, request.member) for request in requests] == [(5, 0), (5, 1), (5, 2), (2, 0), (2, 1), (2, 2)]
    assert len({request.seed for request in requests}) == 6
    assert {(request.temperature, request.truncation.top_p) for request in requests} == {(0.4, 0.6)}
    assert {(request.split, request.purify, request.purpose) for request in requests} == {
        ("train", False, "difficulty")
    }
    alone = difficulty_requests(schedule, [2], 3, version=0, seed=7)
    assert alone == requests[3:], "a task is measured alike in whichever batch it stands"


def test_an_alert_takes_a_rollout_out_of_the_count(rollout: Callable[..., Trajectory]) -> None:
    task = environment_for(spec_with().environment, spec_with().dataset).tasks("train")[3]
    rollouts = [
        rollout(prompt=3, member=0, success=True),
        rollout(prompt=3, member=1, success=False),
        rollout(prompt=3, member=2, success=True, alerts=["a/1"]),
    ]
    [row] = tallied([(3, task)], rollouts)
    assert (row.task, row.number, row.rollouts, row.successes) == ("train-3", 3, 2, 1)
    [nobody] = tallied([(3, task)], [])
    assert (nobody.rollouts, nobody.rate) == (0, None)


def test_a_table_that_was_cut_in_the_middle_of_a_line_goes_on_behind_the_last_whole_one(tmp_path: Path) -> None:
    spec = spec_with()
    whole = measured(spec, tmp_path / "whole.jsonl").read_bytes()
    lines = whole.split(b"\n")
    for cut in (10, len(lines[0]) + 1, len(lines[0]) + len(lines[1]) + 9, len(whole)):
        path = tmp_path / f"{cut}.jsonl"
        path.write_bytes(whole[:cut])
        growing = GrowingTable(path, measurement_of(spec))
        growing.add([TaskDifficulty.model_validate_json(lines[1 + number]) for number in growing.table.missing])
        growing.close()
        assert path.read_bytes() == whole


def test_a_table_of_another_measurement_is_not_gone_on_with(tmp_path: Path) -> None:
    path = measured(spec_with(), tmp_path / "t.jsonl")
    before = path.read_bytes()
    with pytest.raises(TableRefused, match=r"measured with something else .* \(seed\)"):
        GrowingTable(path, measurement_of(spec_with(seed=1)))
    other = measurement_of(spec_with()).model_copy(update={"weights": {"model.safetensors": "0" * 64}})
    with pytest.raises(TableRefused, match=r"\(weights\)"):
        GrowingTable(path, other)
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    "changed",
    [{"resources": {"kv_slots": 4}}, {"resources": {"rollout_workers": 3, "placement": {"rollout_cpus": 2}}}],
)
def test_a_table_is_gone_on_with_by_a_run_that_changed_what_it_may(tmp_path: Path, changed: dict[str, Any]) -> None:
    path = measured(spec_with(), tmp_path / "t.jsonl")
    before = path.read_bytes()
    GrowingTable(path, measurement_of(spec_with(**changed))).close()
    assert path.read_bytes() == before


def test_a_table_is_gone_on_with_by_a_version_whose_runs_have_more_fields(tmp_path: Path) -> None:
    path = measured(spec_with(), tmp_path / "t.jsonl")
    first = json.loads(path.read_text().split("\n")[0])
    del first["spec"]["schedule"]["max_attempts"]
    del first["spec"]["recipe"]["optimizer"]["learning_rate"]
    GrowingTable(rewritten(path, 1, json.dumps(first)), measurement_of(spec_with())).close()
    first["spec"]["schedule"]["of_a_later_version"] = 1
    with pytest.raises(TableRefused, match="of_a_later_version = 1: .* by another version of Palestra?"):
        GrowingTable(rewritten(path, 1, json.dumps(first)), measurement_of(spec_with()))


def test_a_named_table_of_this_environment_lacks_nothing(tmp_path: Path) -> None:
    assert lacking(naming(measured(spec_with(), tmp_path / "t.jsonl"))) == []


def rewritten(path: Path, line: int, text: str) -> Path:
    lines = path.read_text().split("\n")
    lines[line - 1] = text
    path.write_text("\n".join(lines))
    return path


@pytest.mark.parametrize(
    ("line", "text", "words"),
    [
        (1, "{", "line 1: "),
        (1, '{"kind": "difficulty"}', "line 1: "),
        (3, "[]", "line 3: "),
        (3, "{}", "line 3: "),
        (3, "\x00\xff", "line 3: "),
        (
            3,
            json.dumps({"task": "t", "number": 1, "sha256": "0" * 64, "rollouts": 2, "successes": 3}),
            "successes = 3: only 2 were played",
        ),
        (3, json.dumps({"task": "t", "number": -1, "sha256": "0" * 64, "rollouts": 2, "successes": 1}), "number = -1"),
    ],
)
def test_a_damaged_table_is_refused_with_its_line(tmp_path: Path, line: int, text: str, words: str) -> None:
    path = rewritten(measured(spec_with(), tmp_path / "t.jsonl"), line, text)
    found = problem(naming(path))
    assert found.field == "recipe.selection.difficulty.measured"
    assert words in str(found)
    assert "python -m engine difficulty" in found.remedy


def test_a_table_whose_measurement_has_not_ended_is_refused(tmp_path: Path) -> None:
    path = measured(spec_with(), tmp_path / "t.jsonl")
    path.write_bytes(b"\n".join(path.read_bytes().split(b"\n")[:4]) + b"\n")
    assert "it holds 3 of 6 tasks: its measurement has not ended" in problem(naming(path)).message


def test_no_file_and_an_empty_one_are_refused(tmp_path: Path) -> None:
    assert "cannot be read: No such file" in problem(naming(tmp_path / "none.jsonl")).message
    (tmp_path / "empty.jsonl").touch()
    assert "no whole line stands in it" in problem(naming(tmp_path / "empty.jsonl")).message
    assert "cannot be read" in problem(naming(tmp_path)).message


def test_another_content_than_the_digest_says_is_refused(tmp_path: Path) -> None:
    path = measured(spec_with(), tmp_path / "t.jsonl")
    pinned = {"file": str(path), "sha256": file_sha256(path)}
    assert lacking(spec_with({"measured": pinned})) == []
    measured(spec_with(), tmp_path / "other.jsonl", successes=[1] * 6).replace(path)
    assert "its content is not what the run names" in problem(spec_with({"measured": pinned})).message


def test_a_table_of_another_environment_is_refused(tmp_path: Path) -> None:
    other = spec_with(environment={"id": "household"}, model={"context_tokens": 1024})
    found = problem(naming(measured(other, tmp_path / "t.jsonl")))
    assert found.message == "it was measured in the environment household, and this run's is python-math"


@pytest.mark.parametrize("other", [{"dataset": {"train_tasks": 6, "seed": 9}}, {"environment": {"levels": [2]}}])
def test_a_table_of_other_tasks_of_the_same_environment_is_refused(tmp_path: Path, other: dict[str, Any]) -> None:
    found = problem(naming(measured(spec_with(**other), tmp_path / "t.jsonl")))
    assert found.message == "train-0 was another task when it was measured"
    assert "dataset.seed" in found.remedy


def test_where_nothing_is_left_the_run_is_refused_with_the_numbers(tmp_path: Path) -> None:
    path = measured(spec_with(), tmp_path / "t.jsonl", successes=[0, 0, 4, 4, 4, 0])
    found = problem(naming(path))
    assert (found.field, found.value) == ("recipe.selection.difficulty.above", 0.0)
    assert "of 6 tasks none has a success rate above it and below 1: 3 are too hard, 3 too easy" in found.message


def test_tasks_beyond_those_of_the_run_are_not_taken(tmp_path: Path) -> None:
    """A table of six for a run of two: task 1 is left, and of one task none."""
    path = measured(spec_with(), tmp_path / "t.jsonl")
    two = naming(path).model_copy(update={"dataset": spec_with().dataset.model_copy(update={"train_tasks": 2})})
    assert lacking(two) == []
    one = naming(path).model_copy(update={"dataset": spec_with().dataset.model_copy(update={"train_tasks": 1})})
    assert "of 1 tasks none" in problem(one).message


def test_what_was_otherwise_when_it_was_measured_is_named(tmp_path: Path) -> None:
    table = named_table(Difficulty.model_validate({"measured": str(measured(spec_with(), tmp_path / "t.jsonl"))}))
    assert differing_origin(table, spec_with()) == []
    schedule = spec_with().schedule.model_copy(update={"temperature": 0.5})
    other = spec_with(model={"layers": 1}).model_copy(update={"schedule": schedule})
    assert differing_origin(table, other) == ["model", "schedule.temperature"]


@pytest.mark.parametrize(
    ("difficulty", "field"),
    [
        ({"above": 0.5, "below": 0.5}, "above"),
        ({"above": -0.1}, "above"),
        ({"below": 1.1}, "below"),
        ({"rollouts": 1}, "rollouts"),
        ({"measured": ""}, "measured.file"),
        ({"measured": "a\nb"}, "measured.file"),
        ({"measured": {"file": "x", "sha256": "abc"}}, "measured.sha256"),
        ({"measured": 3}, "measured"),
    ],
)
def test_what_makes_no_sense_is_refused_by_field(difficulty: dict[str, Any], field: str) -> None:
    with pytest.raises(ValidationError) as refused:
        Difficulty.model_validate(difficulty)
    assert problems_in(refused.value, Difficulty)[0].field == field


@pytest.mark.parametrize("count", [0, 1, 199, 200, 201, 399, 5000])
def test_a_look_before_the_start_is_short_and_reaches_from_the_first_to_near_the_last(count: int) -> None:
    looked = spread(range(count))
    assert len(looked) <= CHECKED_TASKS
    assert looked[:1] == [0][:count]
    assert count - (looked[-1] if looked else 0) <= max(1, 2 * count / CHECKED_TASKS)


def test_a_run_compares_every_task_that_it_keeps_also_one_that_was_not_looked_at_before(
    tmp_path: Path, service: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = measured(spec_with(), tmp_path / "t.jsonl")
    lines = path.read_text().split("\n")
    changed = json.loads(lines[3]) | {"sha256": "0" * 64}
    path.write_text("\n".join([*lines[:3], json.dumps(changed), *lines[4:]]))
    monkeypatch.setattr(task_filter, "spread", lambda numbers: list(numbers[:1]))
    spec = naming(path)
    spec = spec.model_copy(update={"recipe": spec.recipe.model_copy(update={"stages": ()})})
    assert lacking(spec) == []
    rig = Rig(spec, tmp_path, service).start()
    assert rig.ended() == exit_codes.RUN_FAILED
    assert "train-2 was another task when it was measured" in str(rig.attempt.reason)
