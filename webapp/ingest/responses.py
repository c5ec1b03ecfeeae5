"""What alerts and review decisions put into the answer to a batch: a pause, and the review decisions that the engine
does not have.

Called by the ingest, under the run's row lock.
"""

from collections.abc import Sequence

from django.utils import timezone

from engine.spec.event import MOST_REVIEW_DECISIONS
from engine.spec.security import ReviewDecision
from webapp.accounts.models import AuditEntry
from webapp.ingest.security import NewAlert
from webapp.runs.models import Desired, Run
from webapp.security.models import Quarantine, QuarantineState


def review_decisions_beyond(run: Run, number: int | None) -> list[ReviewDecision]:
    """The newest review decision about each trajectory, with numbers that rise, so that the engine keeps the last of
    them.

    A trajectory that an alert has put under quarantine again since it was decided on has none.
    """
    if number is None or run.review_decisions <= number:
        return []
    found = Quarantine.objects.filter(run_id=run.id, number__gt=number).exclude(state=QuarantineState.PENDING)
    rows = found.order_by("number").values_list("number", "trajectory_id", "state")[:MOST_REVIEW_DECISIONS]
    return [
        ReviewDecision.model_validate({"number": number, "trajectory": trajectory, "verdict": state})
        for number, trajectory, state in rows
    ]


def pause_if_wanted(run: Run, alerts: Sequence[NewAlert]) -> None:
    """Pause the run if its environment says so and one of these new alerts quarantined something."""
    alarming = next((alert for alert in alerts if alert.quarantined), None)
    if alarming is None or run.desired != Desired.RUN or run.has_ended or not _pauses(run):
        return
    because = f"paused by {alarming.in_words}"
    run.desired, run.desired_because = Desired.PAUSE, because
    Run.objects.filter(id=run.id).update(desired=run.desired, desired_since=timezone.now(), desired_because=because)
    AuditEntry.objects.create(
        team_id=run.team_id,
        who=f"alert {alarming.alert_id}",
        verb="run.pause",
        target=f"run {run.id}",
        details={"number": run.number, "rule": alarming.rule, "trajectory": alarming.trajectory_id},
    )


def _pauses(run: Run) -> bool:
    """A run that was submitted before there were responses has none in its spec."""
    stored = Run.objects.filter(id=run.id).values_list("spec__environment__response__pause", flat=True)
    return stored.get() is True
