"""Spans of a run's lanes: what is stored, what a later attempt makes void, and what they say of who was busy."""

from typing import Any

import pytest
from django.test import Client

from engine.spec.event import MOST_SPANS
from tests.webapp.runs.conftest import Engine
from webapp.accounts.models import User
from webapp.runs.lanes import StepLanes, covered_seconds, lanes_of, use_of
from webapp.runs.models import Run
from webapp.runs.snapshot import snapshot

pytestmark = pytest.mark.django_db(transaction=True)


def span(lane: str, began_at: float, seconds: float, label: str = "train-1-0") -> dict[str, Any]:
    return {"lane": lane, "label": label, "began_at": began_at, "seconds": seconds}


def lanes(engine: Engine, step: int, *spans: dict[str, Any]) -> dict[str, Any]:
    return engine.event("lanes", step=step, spans=list(spans) or [span("generation", 100.0 + step, 1.0)])


def test_the_newest_steps_are_given_in_their_order_and_spans_in_order_of_time(launching_run: Run) -> None:
    engine = Engine(launching_run)
    late, early = span("reward", 109.0, 0.5), span("generation", 107.5, 1.0)
    engine.post(engine.started(), lanes(engine, 5), lanes(engine, 6), lanes(engine, 7, late, early))
    assert [found.step for found in lanes_of(launching_run.id)] == [6, 7]
    assert lanes_of(launching_run.id)[-1].spans == [early, late]
    assert [found.step for found in lanes_of(launching_run.id, last_step=6, steps=9)] == [5, 6]
    assert [found["step"] for found in snapshot(launching_run.id)["lanes"]] == [6, 7]


def test_a_later_attempt_voids_the_lanes_of_steps_that_it_does_again(launching_run: Run) -> None:
    engine = Engine(launching_run)
    engine.post(engine.started(), *(lanes(engine, step) for step in (1, 2, 3)))
    Run.objects.filter(id=launching_run.id).update(attempt=2)
    again = Engine(launching_run, attempt=2, next_seq=engine.next_seq)
    again.post(again.started(from_step=1), lanes(again, 2, span("training", 500.0, 2.0)))
    found = lanes_of(launching_run.id, steps=9)
    assert [(step.step, step.spans[0]["lane"]) for step in found] == [(1, "generation"), (2, "training")]


@pytest.mark.parametrize(
    ("spans", "field"),
    [
        ([span("kitchen", 1.0, 1.0)], "lane"),
        ([span("reward", 1.0, -0.1)], "seconds"),
        ([span("reward", 1.0, 0.1)] * (MOST_SPANS + 1), "spans"),
    ],
)
def test_spans_that_are_none_are_refused_by_their_field(launching_run: Run, spans: Any, field: str) -> None:
    engine = Engine(launching_run)
    answer = engine.post(engine.started(), engine.event("lanes", step=1, spans=spans))
    assert answer.status_code == 422
    assert field in answer.content.decode()
    assert lanes_of(launching_run.id) == []


def test_lanes_over_rest_and_for_strangers_none(launching_run: Run, api_of: Any, bob: User, charlie: User) -> None:
    engine = Engine(launching_run)
    engine.post(engine.started(), *(lanes(engine, step) for step in (1, 2, 3)))
    url = f"/runs/{launching_run.id}/lanes"
    steps = api_of(bob).get(f"{url}?last_step=2&steps=5").json()["steps"]
    assert steps == [{"step": step, "spans": [span("generation", 100.0 + step, 1.0)]} for step in (1, 2)]
    assert api_of(bob).get(f"{url}?steps=51").status_code == 422
    assert api_of(charlie).get(url).status_code == 404


def test_the_page_asks_for_earlier_steps(launching_run: Run, bob: User, charlie: User) -> None:
    engine = Engine(launching_run)
    engine.post(engine.started(), *(lanes(engine, step) for step in (1, 2, 3, 4)))
    client, url = Client(), f"/runs/{launching_run.id}/lanes"
    client.force_login(bob)
    assert [found["step"] for found in client.get(f"{url}?last_step=3").json()["lanes"]] == [2, 3]
    assert client.get(f"{url}?last_step=newest").status_code == 422
    client.force_login(charlie)
    assert client.get(f"{url}?last_step=3").status_code == 404


def test_a_lane_is_as_busy_as_its_spans_cover_the_time_of_all_lanes() -> None:
    steps = [
        StepLanes(
            1, [span("generation", 10.0, 4.0), span("generation", 12.0, 4.0), span("training", 18.0, 2.0, "update")]
        )
    ]
    generation, training = use_of(steps)
    assert (generation.name, generation.busy_s, generation.share) == ("Generation", 6.0, 0.6)
    assert generation.at_once == pytest.approx(8 / 6)
    assert (training.share, training.idle, training.longest.label) == (0.2, 0.8, "update")
    assert use_of([]) == []


def test_what_two_spans_cover_both_counts_once() -> None:
    assert covered_seconds([(5.0, 6.0), (0.0, 3.0), (1.0, 2.0), (2.5, 4.0)]) == 5.0
    assert covered_seconds([]) == 0.0
