"""What people do about alerts: acknowledge them, and rule on what they quarantined.

Page and API call these; callers have been through the door (``access.py``) with ``to="review"``.  Each
verb writes its rows and its audit row in one transaction and may be repeated: the second time changes
nothing.  A review decision reaches the engine in the answer to its next batch (docs/events.md).
"""

from typing import get_args

from django.db import transaction
from django.db.models import F
from django.utils import timezone

from engine.spec.security import ReviewVerdict
from webapp.accounts.audit import record
from webapp.accounts.models import User
from webapp.refusals import Invalid, Refused
from webapp.runs.models import Run
from webapp.runs.notify import notify_alert_viewers
from webapp.security.models import Alert, AlertState, Quarantine, ReviewDecision

NOTE_CHARACTERS = 2000


@transaction.atomic
def review(run: Run, trajectory_id: str, verdict: str, note: str = "", *, acting_user: User) -> ReviewDecision:
    """Say whether a quarantined trajectory was benign; its open alerts count as acknowledged then.

    A later review decision replaces an earlier one; the same one again only acknowledges alerts that came since.
    Raises Invalid for an unknown verdict or too long a note, and Refused where nothing quarantined the trajectory.
    """
    note = note.strip()
    check_review_decision(verdict, note)
    run = Run.objects.select_for_update(of=("self",)).select_related("team").get(id=run.id)
    quarantine = Quarantine.objects.filter(run=run, trajectory_id=trajectory_id).first()
    if quarantine is None:
        raise Refused(f"no alert quarantined trajectory {trajectory_id} of run #{run.number}")
    acknowledged = _acknowledge_about(run, trajectory_id, acting_user)
    if (quarantine.state, quarantine.note) == (verdict, note):
        if acknowledged:
            record(run.team, acting_user, "alert.acknowledge", f"run {run.id}",
                   alerts=acknowledged, run_number=run.number)  # fmt: skip
            transaction.on_commit(notify_alert_viewers)
        return ReviewDecision.objects.filter(run=run, trajectory_id=trajectory_id).latest("number")
    now = timezone.now()
    run.review_decisions += 1
    Run.objects.filter(id=run.id).update(review_decisions=F("review_decisions") + 1)
    fields = {"number": run.review_decisions, "note": note}
    Quarantine.objects.filter(run=run, trajectory_id=trajectory_id).update(
        state=verdict, decided_by=acting_user, decided_at=now, **fields
    )
    review_decision = ReviewDecision.objects.create(
        run=run,
        trajectory_id=trajectory_id,
        verdict=verdict,
        user=acting_user,
        who=acting_user.email,
        at=now,
        **fields,
    )
    record(run.team, acting_user, "quarantine.decide", f"trajectory {trajectory_id} of run {run.id}"[:200],
           verdict=verdict, review_decision=run.review_decisions, run_number=run.number)  # fmt: skip
    transaction.on_commit(notify_alert_viewers)
    return review_decision


def _acknowledge_about(run: Run, trajectory_id: str, acting_user: User) -> int:
    """Returns how many alerts about the trajectory were open."""
    about = Alert.objects.filter(run=run, trajectory_id=trajectory_id).exclude(state=AlertState.ACKNOWLEDGED)
    return about.update(state=AlertState.ACKNOWLEDGED, acknowledged_by=acting_user, acknowledged_at=timezone.now())


def check_review_decision(verdict: str, note: str) -> None:
    """Raises Invalid."""
    if verdict not in get_args(ReviewVerdict):
        raise Invalid.field(
            "verdict", verdict, "this is no verdict", f"use one of: {', '.join(get_args(ReviewVerdict))}"
        )
    if len(note) > NOTE_CHARACTERS:
        raise Invalid.field(
            "note", note, f"it has {len(note)} characters", f"use at most {NOTE_CHARACTERS}, and link to the rest"
        )
    if "\0" in note:
        raise Invalid.field("note", note, "it has a NUL character, which the database cannot keep", "leave it out")


@transaction.atomic
def acknowledge_alert(alert: Alert, *, acting_user: User) -> Alert:
    """Take an alert off the list of open ones.  A quarantine stays until it is decided on."""
    found = Alert.objects.select_for_update(of=("self",)).select_related("team", "run").get(id=alert.id)
    if found.state == AlertState.ACKNOWLEDGED:
        return found
    found.state, found.acknowledged_by = AlertState.ACKNOWLEDGED, acting_user
    found.acknowledged_at = timezone.now()
    found.save(update_fields=["state", "acknowledged_by", "acknowledged_at"])
    record(found.team, acting_user, "alert.acknowledge", f"alert {found.id}", rule=found.rule, run=found.run.number)
    transaction.on_commit(notify_alert_viewers)
    return found
