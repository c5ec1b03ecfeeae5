"""Decisions about many alerts at once: acknowledge them, or decide about the trajectories that they hold back.

Everything happens in one transaction, with an audit row per run, in a fixed number of statements.  A
decision that is sent again finds everything decided and changes nothing.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal
from uuid import UUID

from django.db import connection, transaction
from django.db.models import Exists, OuterRef, Q, QuerySet
from django.utils import timezone

from webapp.accounts.audit import record_all
from webapp.accounts.models import Team, User
from webapp.runs.models import Run
from webapp.runs.notify import notify_alert_viewers
from webapp.security.models import Alert, AlertState, Quarantine, ReviewDecision
from webapp.security.services import check_review_decision

Decision = Literal["benign", "malicious", "acknowledge"]
REVIEW_DECISIONS_AT_ONCE = 1000
"""Rows of one INSERT."""


@dataclass(frozen=True)
class Decided:
    alerts: int
    """That nobody had decided before."""
    trajectories: int = 0
    """Decided on now."""
    unchanged: int = 0
    """Trajectories that were decided so before."""
    held_back: int = 0
    """Trajectories that were not found benign, because another alert that quarantined them is undecided."""
    without_effect: int = 0
    """The trajectories decided on now that have no effect: those of runs that have ended: nothing is trained any
    more."""

    def __add__(self, other: "Decided") -> "Decided":
        return Decided(*(getattr(self, name) + getattr(other, name) for name in self.__dataclass_fields__))


@dataclass(frozen=True)
class _Held:
    run: Run
    trajectory_id: str
    state: str
    is_undecided: bool
    """Another alert, which is not among those decided on, quarantined it too and is undecided."""


@transaction.atomic
def decide(
    team: Team, alerts: QuerySet[Alert], decision: Decision, note: str = "", *, acting_user: User, through: int | None
) -> Decided:
    """Decide about those of ``alerts`` that are the team's and not newer than ``through``.

    A review decision concerns the trajectories that these alerts hold back.  Raises Invalid for too long a note.
    """
    note = note.strip()
    if decision != "acknowledge":
        check_review_decision(decision, note)
    chosen = alerts.order_by().filter(team=team)
    if through is not None:
        chosen = chosen.filter(id__lte=through)
    runs = _locked_runs(chosen)
    chosen = _as_they_stand(chosen, runs)
    if decision == "acknowledge":
        decided = _acknowledged(chosen, acting_user)
        record_all(team, acting_user, [_noted("alert.acknowledge", runs[run], alerts=n) for run, n in decided.items()])
        result = Decided(alerts=decided.total())
    else:
        result = _review_decided(team, chosen, runs, decision, note, acting_user)
    if result.alerts or result.trajectories:
        transaction.on_commit(lambda: notify_alert_viewers())
    return result


def _locked_runs(chosen: QuerySet[Alert]) -> dict[UUID, Run]:
    """In one order for everybody, so that no two decisions wait for each other."""
    runs = Run.objects.select_for_update().only("id", "number", "state", "review_decisions", "team_id")
    about = set(chosen.values_list("run_id", flat=True).distinct())
    return {run.id: run for run in runs.filter(id__in=about).order_by("id")}


def _as_they_stand(chosen: QuerySet[Alert], runs: dict[UUID, Run]) -> QuerySet[Alert]:
    """The same alerts by id, of the runs that are locked: what follows does not search for them again."""
    ids = list(chosen.filter(run_id__in=runs).values_list("id", flat=True))
    return Alert.objects.order_by().filter(id__in=ids)


def _review_decided(
    team: Team, chosen: QuerySet[Alert], runs: dict[UUID, Run], verdict: str, note: str, acting_user: User
) -> Decided:
    held = _held(chosen, runs)
    back = [row for row in held if verdict == "benign" and row.is_undecided and row.state != verdict]
    same = [row for row in held if row.state == verdict]
    new = [row for row in held if row not in back and row not in same]
    numbers = _add_review_decisions(new, verdict, note, acting_user)
    decided = _alerts_of([*new, *same], acting_user) + _acknowledged(
        chosen.filter(Q(quarantined=False) | Q(trajectory_id="")), acting_user
    )
    by_run = Counter(row.run.id for row in new)
    entries = [
        _noted("quarantine.decide", runs[run], verdict=verdict, trajectories=by_run[run], alerts=decided[run],
               review_decisions=numbers.get(run, "none"))
        for run in sorted({*by_run, *decided}, key=str)
    ]  # fmt: skip
    record_all(team, acting_user, entries)
    return Decided(
        alerts=decided.total(),
        trajectories=len(new),
        unchanged=len(same),
        held_back=len(back),
        without_effect=sum(row.run.has_ended for row in new),
    )


def _held(chosen: QuerySet[Alert], runs: dict[UUID, Run]) -> list[_Held]:
    about = Alert.objects.filter(run_id=OuterRef("run_id"), trajectory_id=OuterRef("trajectory_id"), quarantined=True)
    undecided = about.exclude(state=AlertState.ACKNOWLEDGED).exclude(id__in=chosen.values("id"))
    named = chosen.filter(quarantined=True, run_id=OuterRef("run_id"), trajectory_id=OuterRef("trajectory_id"))
    found = Quarantine.objects.filter(Exists(named), run_id__in=runs).annotate(is_undecided=Exists(undecided))
    rows = found.order_by("run_id", "since", "trajectory_id")
    return [
        _Held(runs[run_id], trajectory_id, state, is_undecided)
        for run_id, trajectory_id, state, is_undecided in rows.values_list(
            "run_id", "trajectory_id", "state", "is_undecided"
        )
    ]


_RULE = """
UPDATE security_quarantine AS held SET
    state = %s, number = given.number, decided_by_id = %s, decided_at = %s, note = %s
FROM unnest(%s::uuid[], %s::text[], %s::int[]) AS given (run_id, trajectory_id, number)
WHERE held.run_id = given.run_id AND held.trajectory_id = given.trajectory_id
"""
_COUNT_REVIEW_DECISIONS = """
UPDATE runs_run AS run SET review_decisions = given.review_decisions
FROM unnest(%s::uuid[], %s::int[]) AS given (id, review_decisions)
WHERE run.id = given.id
"""


def _add_review_decisions(new: Sequence[_Held], verdict: str, note: str, acting_user: User) -> dict[UUID, str]:
    """Returns per run which numbers were given out."""
    if not new:
        return {}
    now, numbers, given = timezone.now(), defaultdict[UUID, list[int]](list), list[int]()
    for held in new:
        held.run.review_decisions += 1
        given.append(held.run.review_decisions)
        numbers[held.run.id].append(held.run.review_decisions)
    fields: dict[str, Any] = {
        "verdict": verdict,
        "note": note,
        "user": acting_user,
        "who": acting_user.email,
        "at": now,
    }
    ReviewDecision.objects.bulk_create(
        [
            ReviewDecision(run_id=held.run.id, trajectory_id=held.trajectory_id, number=number, **fields)
            for held, number in zip(new, given, strict=True)
        ],
        batch_size=REVIEW_DECISIONS_AT_ONCE,
    )
    with connection.cursor() as cursor:
        run_ids, trajectory_ids = [held.run.id for held in new], [held.trajectory_id for held in new]
        cursor.execute(_RULE, [verdict, acting_user.id, now, note, run_ids, trajectory_ids, given])
        cursor.execute(_COUNT_REVIEW_DECISIONS, [list(numbers), [run_numbers[-1] for run_numbers in numbers.values()]])
    return {run: f"{run_numbers[0]} to {run_numbers[-1]}" for run, run_numbers in numbers.items()}


_DECIDE = """
UPDATE security_alert AS alert SET state = 'acknowledged', acknowledged_by_id = %s, acknowledged_at = %s
FROM unnest(%s::uuid[], %s::text[]) AS given (run_id, trajectory_id)
WHERE alert.run_id = given.run_id AND alert.trajectory_id = given.trajectory_id AND alert.state <> 'acknowledged'
RETURNING alert.run_id
"""


def _alerts_of(held: Sequence[_Held], acting_user: User) -> Counter[UUID]:
    """All alerts about these trajectories are decided with them; by run, how many were not before."""
    if not held:
        return Counter()
    with connection.cursor() as cursor:
        run_ids, trajectory_ids = (
            [row.run.id for row in held],
            [row.trajectory_id for row in held],
        )
        cursor.execute(_DECIDE, [acting_user.id, timezone.now(), run_ids, trajectory_ids])
        return Counter(run_id for (run_id,) in cursor.fetchall())


def _acknowledged(alerts: QuerySet[Alert], acting_user: User) -> Counter[UUID]:
    found = dict(alerts.exclude(state=AlertState.ACKNOWLEDGED).values_list("id", "run_id"))
    Alert.objects.filter(id__in=found).update(
        state=AlertState.ACKNOWLEDGED, acknowledged_by=acting_user, acknowledged_at=timezone.now()
    )
    return Counter(found.values())


def _noted(verb: str, run: Run, **details: Any) -> tuple[str, str, dict[str, Any]]:
    return verb, f"run {run.id}", {"run_number": run.number, **details}
