"""A zoomed curve: as fine as it fits, with every extreme in it, for those who may see the run."""

from typing import Any

import pytest
from django.test import Client

from engine.spec.event import Batch
from webapp.accounts.models import User
from webapp.ingest.endpoint import accept
from webapp.runs.models import Run
from webapp.runs.snapshot import MOST_POINTS, close_look

pytestmark = pytest.mark.django_db(transaction=True)
POINTS = 50_000
SPIKE = 31_415


@pytest.fixture
def long_run(launching_run: Run) -> Run:
    """A flat curve ``x`` and a single spike in it; ``y`` beside it."""
    for begin in range(0, POINTS, 5000):
        values = [{"x": 1000.0 if step == SPIKE else 1.0, "y": 0.0} for step in range(begin, begin + 5000)]
        events = [
            {"kind": "metric", "seq": begin + i + 1, "attempt": 1, "at": 0.0, "step": begin + i, "values": value}
            for i, value in enumerate(values)
        ]
        accept(launching_run.id, Batch(attempt=1, first_seq=begin + 1, events=events))
    return launching_run


def looked_at(client: Client, run: Run, first_step: Any, last_step: Any) -> Any:
    return client.get(f"/runs/{run.id}/series", {"key": "x", "first_step": first_step, "last_step": last_step})


@pytest.mark.slow
def test_a_single_spike_in_50000_points_is_there_at_every_zoom(long_run: Run, bob: User) -> None:
    client = Client()
    client.force_login(bob)
    width = POINTS
    while width >= 1:
        for first in {max(0, SPIKE - width + 1), max(0, SPIKE - width // 2), SPIKE}:
            curve = looked_at(client, long_run, first, first + width - 1).json()["series"]["x"]
            assert len(curve["steps"]) <= MOST_POINTS
            assert max(curve.get("high", curve["values"])) == 1000.0, (first, width)
            if width <= MOST_POINTS:
                assert "high" not in curve
                assert curve["values"][curve["steps"].index(SPIKE)] == 1000.0
        width //= 2


@pytest.mark.slow
def test_a_close_look_is_finer_than_the_whole_and_stands_at_an_event(long_run: Run) -> None:
    whole = close_look(long_run.id, ["x"], 0, POINTS)
    near = close_look(long_run.id, ["x"], 30_000, 30_999)
    assert list(near["series"]) == ["x"]
    assert near["series"]["x"]["steps"] == list(range(30_000, 31_000))
    assert sum(30_000 <= step < 31_000 for step in whole["series"]["x"]["steps"]) < 100
    assert near["seq"] == whole["seq"] == POINTS


def test_strangers_and_visitors_get_no_close_look(run: Run, bob: User, charlie: User) -> None:
    stranger, member = Client(), Client()
    stranger.force_login(charlie)
    member.force_login(bob)
    assert looked_at(stranger, run, 0, 9).status_code == 404
    assert looked_at(Client(), run, 0, 9)["Location"].startswith("/sign-in")
    assert looked_at(member, run, 0, 9).json() == {"seq": 0, "series": {}}


@pytest.mark.parametrize("bad", ["", "-1", "x", "99999999999", "1.5"])
def test_a_range_that_cannot_be_read_is_refused_by_name(run: Run, bob: User, bad: str) -> None:
    client = Client()
    client.force_login(bob)
    answer = looked_at(client, run, 0, bad)
    assert answer.status_code == 422
    assert list(answer.json()["problems"]) == ["last_step"]
