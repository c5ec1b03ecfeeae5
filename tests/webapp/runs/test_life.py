"""The life of a run: which moves exist, and who wins."""

from functools import partial

import pytest

from tests.webapp.at_once import at_once
from webapp.accounts.models import AuditEntry, User
from webapp.refusals import Refused
from webapp.runs import services
from webapp.runs.models import ENDED, MOVES, Desired, ImpossibleMove, Run, RunStatus

pytestmark = pytest.mark.django_db


def put(run: Run, state: str) -> Run:
    Run.objects.filter(id=run.id).update(state=state)
    run.refresh_from_db()
    return run


@pytest.mark.parametrize(("before", "after"), [(a, b) for a in RunStatus.values for b in sorted(MOVES[a])])
def test_each_move_of_the_table_is_made_once_and_written_down(run: Run, before: str, after: str) -> None:
    put(run, before)
    stale = Run.objects.get(id=run.id)
    assert run.move_to(after, by="worker", reason="because")
    assert not stale.move_to(after, by="worker")
    run.refresh_from_db()
    assert run.state == after
    assert (run.ended_at is not None) == (after in ENDED)
    transition = run.transitions.get()
    assert (transition.from_state, transition.to_state, transition.reason) == (before, after, "because")


@pytest.mark.parametrize(
    ("before", "after"), [(a, b) for a in RunStatus.values for b in RunStatus.values if b not in MOVES[a]]
)
def test_no_other_move_exists(run: Run, before: str, after: str) -> None:
    put(run, before)
    with pytest.raises(ImpossibleMove):
        run.move_to(after, by="worker")
    assert Run.objects.get(id=run.id).state == before


def test_a_move_of_a_replaced_attempt_loses(launching_run: Run) -> None:
    Run.objects.update(attempt=2)
    assert not launching_run.move_to(RunStatus.FAILED, by="reconcile")
    assert launching_run.transitions.count() == 1


def test_cancel_beats_a_worker_that_read_the_run_earlier(run: Run, alice: User) -> None:
    worker_copy = Run.objects.get(id=run.id)
    services.cancel_run(run, acting_user=alice)
    assert not worker_copy.move_to(RunStatus.LAUNCHING, by="worker", attempt=1)
    run.refresh_from_db()
    assert (run.state, run.attempt) == (RunStatus.CANCELLED, 0)


@pytest.mark.django_db(transaction=True)
def test_of_many_workers_one_claims(run: Run) -> None:
    def claim(copy: Run) -> bool:
        return copy.move_to(RunStatus.LAUNCHING, by="worker", attempt=copy.attempt + 1)

    wins = at_once(*(partial(claim, Run.objects.get(id=run.id)) for _ in range(6)))
    run.refresh_from_db()
    assert (sum(wins), run.attempt, run.transitions.count()) == (1, 1, 1)


def test_run_numbers_have_no_gaps(run: Run, alice: User) -> None:
    second = services.submit_run(run.team, run.run_spec, acting_user=alice)
    assert (run.number, second.number) == (1, 2)


def test_a_live_run_is_reported_and_moves_later(launching_run: Run, alice: User) -> None:
    services.cancel_run(launching_run, acting_user=alice)
    launching_run.refresh_from_db()
    assert (launching_run.state, launching_run.desired) == (RunStatus.LAUNCHING, Desired.CANCEL)


@pytest.mark.parametrize("verb", [services.cancel_run, services.pause_run])
def test_a_verb_twice_is_a_verb_once(launching_run: Run, alice: User, verb) -> None:
    verb(launching_run, acting_user=alice)
    first = Run.objects.values().get()
    verb(launching_run, acting_user=alice)
    assert Run.objects.values().get() == first
    assert AuditEntry.objects.exclude(verb__in=["team.create", "run.submit"]).count() == 1


def test_pause_and_resume(launching_run: Run, alice: User) -> None:
    services.pause_run(launching_run, acting_user=alice)
    assert Run.objects.get().desired == Desired.PAUSE
    services.resume_run(launching_run, acting_user=alice)
    assert Run.objects.get().desired == Desired.RUN


@pytest.mark.parametrize("verb", [services.cancel_run, services.pause_run, services.resume_run])
@pytest.mark.parametrize("state", [RunStatus.SUCCEEDED, RunStatus.FAILED])
def test_an_ended_run_takes_no_orders(run: Run, alice: User, verb, state: str) -> None:
    put(run, state)
    with pytest.raises(Refused):
        verb(run, acting_user=alice)


@pytest.mark.parametrize("verb", [services.pause_run, services.resume_run])
def test_a_cancelled_run_cannot_be_called_back(launching_run: Run, alice: User, verb) -> None:
    services.cancel_run(launching_run, acting_user=alice)
    with pytest.raises(Refused):
        verb(launching_run, acting_user=alice)


def test_row_and_audit_entry_exist_together(run: Run, alice: User, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("disk full")

    monkeypatch.setattr(services, "record", broken)
    with pytest.raises(RuntimeError):
        services.pause_run(run, acting_user=alice)
    assert Run.objects.get().desired == Desired.RUN
