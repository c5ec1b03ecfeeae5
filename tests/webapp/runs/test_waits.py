"""What everyone waits for, in words, from the values of a run's steps."""

from typing import Any

import pytest
from django.test import Client

from tests.webapp.runs.conftest import Engine
from webapp.accounts.models import User
from webapp.runs.models import Run
from webapp.runs.waits import sentences_of


def values(steps: int, **each: float) -> dict[str, dict[int, float]]:
    """The same value at every step; ``a__b`` is ``a/b``."""
    return {key.replace("__", "/"): dict.fromkeys(range(1, steps + 1), value) for key, value in each.items()}


def test_the_side_that_is_waited_for_gets_the_remedy() -> None:
    slow_rollouts = values(4, perf__step_seconds=10.0, buffer__trainer_waited_seconds=4.0)
    words = " ".join(sentences_of(slow_rollouts, total_steps=9, overlaps=True))
    assert "The last 4 steps took 40 s. Training waited 16 s (40%) of it for rollouts" in words
    assert "stood still 0 s (0%)" in words
    assert "Rollouts are the slower side" in words
    slow_training = slow_rollouts | values(4, buffer__generation_blocked_seconds=5.0)
    assert "Training is the slower side" in sentences_of(slow_training, total_steps=9, overlaps=True)[1]
    balanced = values(4, perf__step_seconds=10.0, buffer__trainer_waited_seconds=0.4)
    assert sentences_of(balanced, total_steps=9, overlaps=True)[1] == "Neither side waits much for the other."


def test_only_the_newest_ten_steps_count() -> None:
    seconds = {"perf/step_seconds": {step: 100.0 if step <= 5 else 1.0 for step in range(1, 16)}}
    assert sentences_of(seconds, total_steps=15, overlaps=False)[0].startswith("The last 10 steps took 10 s.")


def test_a_run_with_redundancy_waited_for_what_its_trainer_waited() -> None:
    metrics = values(2, perf__step_seconds=1.0, perf__collect_seconds=4.0, buffer__trainer_waited_seconds=0.5)
    assert "Training waited 1.0 s (50%)" in " ".join(sentences_of(metrics, total_steps=9, overlaps=False))


def test_a_run_that_takes_turns_waits_by_its_phases() -> None:
    turns = values(1, perf__step_seconds=10.0, perf__collect_seconds=7.0, perf__update_seconds=2.0)
    (words,) = sentences_of(turns, total_steps=9, overlaps=False)
    assert words == (
        "Step 1 took 10 s. Training waited 7.0 s (70%) of it for rollouts; generation stood still 2.0 s (20%)"
        " during updates."
    )


def test_the_estimate_stands_beside_what_came() -> None:
    """Ten of twenty steps are done; after step 5 the 15 others were to take 30 s, so the next five 10 s."""
    metrics = values(10, perf__step_seconds=3.0) | {
        "perf/eta_seconds": {step: 2.0 * (20 - step) for step in range(1, 11)}
    }
    assert sentences_of(metrics, total_steps=20, overlaps=False)[-1] == (
        "After step 5 the run expected 10 s for the next 5 steps; they took 15 s."
    )
    assert (
        len(sentences_of(values(1, perf__step_seconds=3.0, perf__eta_seconds=57.0), total_steps=20, overlaps=False))
        == 1
    )


def test_before_the_first_step_is_over_nothing_is_said() -> None:
    assert sentences_of({}, total_steps=9, overlaps=True) == []


@pytest.mark.django_db(transaction=True)
def test_the_part_of_the_page_says_why_there_are_no_lanes_or_shows_them(launching_run: Run, bob: User) -> None:
    def part() -> str:
        return " ".join(client.get(f"/runs/{launching_run.id}/parts/waits").content.decode().split())

    client: Any = Client()
    client.force_login(bob)
    engine = Engine(launching_run)
    engine.post(engine.started(), engine.metric(1, perf__step_seconds=10.0, buffer__ready=2, buffer__running=3))
    assert "so there are no lanes" in part()
    spans = [{"lane": "training", "label": "<b>update</b>", "began_at": 5.0, "seconds": 1.5}]
    engine.post(engine.event("lanes", step=1, spans=spans))
    assert "so there are no lanes" not in part()
    assert "1.5 s" in part()
    assert "&lt;b&gt;update&lt;/b&gt;" in part()
