"""The tables that pages read are always what the log says."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.spec.event import Metric, Started
from webapp.ingest.runs import project
from webapp.runs.models import LEVELS, Run
from webapp.runs.series import series_of
from webapp.trajectories.models import filtered

pytestmark = pytest.mark.django_db

KEYS = ("train/reward", "train/loss", "sft/loss")


def metric(step: int, values: dict[str, float]) -> Metric:
    return Metric(seq=1, attempt=1, at=0.0, step=step, values=values)


def started(from_step: int, from_cold_start_step: int | None = None) -> Started:
    return Started(
        seq=1, attempt=1, at=0.0, from_step=from_step, total_steps=9, from_cold_start_step=from_cold_start_step
    )


def curve_of(events: Sequence[Metric | Started]) -> dict[tuple[str, int], float]:
    """The same rules, one value at a time."""
    curve: dict[tuple[str, int], float] = {}
    for event in events:
        if isinstance(event, Metric):
            curve |= {(key, event.step): value for key, value in event.values.items()}
        else:
            sft = event.from_cold_start_step
            last_sft = sft if sft is not None else (float("inf") if event.from_step > 0 else -1)
            curve = {
                (key, step): value
                for (key, step), value in curve.items()
                if step <= (last_sft if key.startswith("sft/") else event.from_step)
            }
    return curve


def rollups_of(curve: dict[tuple[str, int], float]) -> dict[tuple[str, int, int], tuple[Any, ...]]:
    buckets: dict[tuple[str, int, int], list[tuple[int, float]]] = {}
    for (key, step), value in sorted(curve.items()):
        for level in LEVELS:
            buckets.setdefault((key, level, step // level), []).append((step, value))
    return {
        at: (
            min(v for _, v in points),
            max(v for _, v in points),
            pytest.approx(sum(v for _, v in points)),
            len(points),
        )
        + points[-1]
        for at, points in buckets.items()
    }


def stored_points(run: Run) -> dict[tuple[str, int], float]:
    return {(key, step): value for key, step, value in run.metric_points.values_list("key__name", "step", "value")}


def stored_rollups(run: Run) -> dict[tuple[str, int, int], tuple[Any, ...]]:
    fields = ("key__name", "level", "bucket", "minimum", "maximum", "total", "count", "last_step", "last")
    return {row[:3]: row[3:] for row in run.metric_rollups.values_list(*fields)}


steps = st.integers(0, 2500) | st.integers(0, 30)
values = st.dictionaries(st.sampled_from(KEYS), st.floats(-1e6, 1e6), min_size=1)
events = st.builds(metric, steps, values) | st.builds(started, steps, st.none() | steps)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(batches=st.lists(st.lists(events, max_size=12), max_size=6))
def test_points_and_rollups_equal_those_computed_one_by_one(run: Run, batches: list[list[Metric | Started]]) -> None:
    run.metric_points.all().delete()
    run.metric_rollups.all().delete()
    for batch in batches:
        project(run.id, batch)
    curve = curve_of([event for batch in batches for event in batch])
    assert stored_points(run) == curve
    assert stored_rollups(run) == rollups_of(curve)


def test_a_resumed_attempt_draws_no_step_twice(engine: Any, launching_run: Run) -> None:
    engine.post(engine.started(), *(engine.metric(step, train__reward=step) for step in range(8)))
    engine.post(*(engine.trajectory(step=step) for step in range(8)))
    engine.post(engine.event("checkpoint", step=5, path="c5", size_bytes=1, seconds=0.1))
    engine.post(engine.event("checkpoint", step=7, path="c7", size_bytes=1, seconds=0.1))
    engine.post(
        engine.started(from_step=5), engine.metric(6, train__reward=60.0), engine.trajectory(step=6, reward=0.25)
    )
    points = {step: value for (_, step), value in stored_points(launching_run).items()}
    assert points == {0: 0, 1: 1, 2: 2, 3: 3, 4: 4, 5: 5, 6: 60.0}
    stored = launching_run.trajectories.order_by("prompt").values_list("trained_at_step", "reward")
    assert list(stored) == [(step or None, 1.0) for step in range(6)] + [(6, 0.25)]
    assert list(launching_run.checkpoints.values_list("step", flat=True)) == [5]
    assert launching_run.events.count() == 22  # the log hides nothing
    launching_run.refresh_from_db()
    assert launching_run.step == 5


def test_a_repeated_evaluation_replaces_the_first(engine: Any, launching_run: Run) -> None:
    engine.post(engine.started(), engine.metric(10, eval__success_greedy=0.5), engine.trajectory(step=10, reward=0.0))
    engine.post(
        engine.started(from_step=10),
        engine.metric(10, eval__success_greedy=0.7),
        engine.trajectory(step=10, reward=1.0),
    )
    assert stored_points(launching_run) == {("eval/success_greedy", 10): 0.7}
    assert stored_rollups(launching_run)["eval/success_greedy", 10, 1] == (0.7, 0.7, 0.7, 1, 10, 0.7)
    assert list(launching_run.trajectories.values_list("reward", "seq")) == [(1.0, 6)]


def test_training_that_a_later_attempt_makes_void_is_no_fact_any_more(engine: Any, launching_run: Run) -> None:
    engine.post(engine.started(), *(engine.trajectory(step=step) for step in (1, 2, 3)))
    engine.post(engine.trajectory(step=1, trained_at_step=3, reward=0.5))  # released from quarantine
    rows = launching_run.trajectories.order_by("prompt")
    facts = ("trajectory_id", "sampled_at_version", "trained_at_step")
    assert list(rows.values_list(*facts)) == [("train-1-0", 0, 3), ("train-2-0", 1, 2), ("train-3-0", 2, 3)]
    assert [row.trajectory_id for row in filtered(launching_run, step=3)] == ["train-1-0", "train-3-0"]
    engine.post(engine.started(from_step=2))
    assert list(rows.values_list(*facts)) == [("train-1-0", 0, None), ("train-2-0", 1, 2)]
    assert launching_run.trajectories.get(trajectory_id="train-1-0").document.trained_at_step is None


def test_values_whose_sum_overflows_do_not_stop_the_ingest(engine: Any, launching_run: Run) -> None:
    answer = engine.post(engine.metric(1, a=1.7e308), engine.metric(2, a=1.7e308))
    assert answer.status_code == 200
    assert stored_rollups(launching_run)["a", 10, 0][1] == 1.7e308


def test_a_trajectory_row_says_what_its_document_says(engine: Any, launching_run: Run) -> None:
    engine.post(engine.trajectory(step=3, index=4))
    row = launching_run.trajectories.get()
    assert row.summary == {
        "id": "train-3-4", "seq": 1, "purpose": "train", "prompt": 3, "member": 4,
        "sampled_at_version": 2, "trained_at_step": 3, "level": 2, "part": "",
        "success": True, "reward": 1.0, "tool_calls": 2, "tool_errors": 1,
        "turns": 3, "segments": 1, "tokens": 6, "stop_reason": "answered",
        "changes": 0, "repaired": 0, "prefilled": 0, "masked": 0, "alerts": 0,
    }  # fmt: skip
    assert row.document.id == "train-3-4"
    assert row.document.tool_errors == 1


def test_a_trajectory_row_says_which_part_it_was_played_in(engine: Any, launching_run: Run) -> None:
    event = engine.trajectory()
    event["trajectory"]["task"]["part"] = "sums"
    engine.post(event)
    assert launching_run.trajectories.get().part == "sums"


@pytest.mark.parametrize("buckets", [10, 100, 1000])
def test_a_spike_survives_every_zoom(run: Run, buckets: int) -> None:
    project(run.id, [metric(step, {"a": 99.0 if step == 1234 else 1.0}) for step in range(3000)])
    (series,) = series_of(run.id, buckets=buckets)
    assert len(series.points) <= buckets
    assert max(point.maximum for point in series.points) == 99.0
    assert sum(point.count for point in series.points) == 3000
    (spike,) = [point for point in series.points if point.maximum == 99.0]
    assert spike.step <= 1234 <= spike.last_step


def test_zooming_in_gives_the_points_themselves(run: Run) -> None:
    project(run.id, [metric(step, {"a": float(step)}) for step in range(3000)])
    (series,) = series_of(run.id, first_step=1000, last_step=1099, buckets=100)
    assert series.level == 1
    assert [(point.step, point.mean) for point in series.points] == [(step, step) for step in range(1000, 1100)]
