"""What a run page draws first, and that it fits what comes after it."""

import time
from typing import Any

import pytest
from django.test import Client

from engine.spec.event import Batch
from tests.browser.story import Story
from webapp.accounts.models import User
from webapp.ingest.endpoint import accept
from webapp.runs.models import Run
from webapp.runs.snapshot import MOST_POINTS, snapshot

pytestmark = pytest.mark.django_db(transaction=True)


def emit(run: Run, events: list[dict[str, Any]], attempt: int = 1) -> None:
    accept(run.id, Batch(attempt=attempt, first_seq=events[0]["seq"], events=events))


def test_the_snapshot_stands_at_the_last_event_it_contains(launching_run: Run) -> None:
    story = Story(steps=3, groups=1, group_size=2, begin_at=time.time())
    events = story.beginning() + story.step(1)
    emit(launching_run, events)
    seen = snapshot(launching_run.id)
    assert seen["seq"] == events[-1]["seq"]
    assert seen["series"]["train/reward"]["steps"] == [1]
    assert seen["series"]["sft/loss"]["steps"][-1] == 600
    assert [line["message"] for line in seen["logs"]][0] == "attempt 1 begins at step 0"
    assert seen["trajectories"] == 6 + 2
    assert {phase for step, phase, _ in seen["phases"] if step == 1} == {
        "sync-weights",
        "collect",
        "score",
        "credit",
        "update",
    }


def test_what_is_reported_again_counts_once_and_what_a_new_attempt_takes_back_not_at_all(
    launching_run: Run, engine: Any, bob: User, client: Client
) -> None:
    client.force_login(bob)
    members = [(step, index) for step in (1, 2, 3) for index in (0, 1)]
    reported = (engine.trajectory(step=step, index=index) for step, index in members)
    engine.post(engine.started(), *reported, engine.alert(), engine.alert())
    counted = client.get(f"/runs/{launching_run.id}/counts").json()
    engine.post(engine.trajectory(step=3, index=0), engine.alert())
    assert client.get(f"/runs/{launching_run.id}/counts").json() == counted == {"trajectories": 6, "alerts": 1}
    engine.post(engine.started(from_step=1))
    assert client.get(f"/runs/{launching_run.id}/counts").json() == {"trajectories": 2, "alerts": 1}


def test_a_long_series_is_rolled_up_and_keeps_its_spike(launching_run: Run) -> None:
    points = 5 * MOST_POINTS
    for begin in range(0, points, 1000):
        steps = range(begin, begin + 1000)
        values = [{"x": 1000.0 if step == 4321 else 1.0} for step in steps]
        emit(launching_run, [
            {"kind": "metric", "seq": step + 1, "attempt": 1, "at": 0.0, "step": step, "values": value}
            for step, value in zip(steps, values, strict=True)
        ])  # fmt: skip
    curve = snapshot(launching_run.id)["series"]["x"]
    assert len(curve["steps"]) <= MOST_POINTS
    assert max(curve["high"]) == 1000.0
    assert max(curve["values"]) < 1000.0
    assert min(curve["low"]) == 1.0
    assert curve["steps"][-1] == points - 1


def test_phases_of_a_voided_attempt_are_not_shown(launching_run: Run) -> None:
    def phase(seq: int, attempt: int, step: int, seconds: float) -> dict[str, Any]:
        return {
            "kind": "phase",
            "seq": seq,
            "attempt": attempt,
            "at": 0.0,
            "step": step,
            "phase": "collect",
            "seconds": seconds,
        }

    def started(seq: int, attempt: int, step: int) -> dict[str, Any]:
        return {"kind": "started", "seq": seq, "attempt": attempt, "at": 0.0, "from_step": step, "total_steps": 9}

    emit(launching_run, [started(1, 1, 0), phase(2, 1, 1, 1.0), phase(3, 1, 2, 2.0), phase(4, 1, 3, 3.0)])
    Run.objects.filter(id=launching_run.id).update(attempt=2)
    emit(launching_run, [started(5, 2, 1), phase(6, 2, 2, 20.0)], attempt=2)
    assert snapshot(launching_run.id)["phases"] == [[1, "collect", 1.0], [2, "collect", 20.0]]
