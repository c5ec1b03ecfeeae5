"""What a reviewer reads about a quarantined trajectory: its status, and what a review decision does."""

from dataclasses import dataclass, field

from django.http import Http404, HttpRequest
from django.urls import reverse

from webapp.accounts.access import may
from webapp.runs.models import Run
from webapp.security.access import quarantine_for
from webapp.security.effects import TrainingEffect, release_within, training_effect
from webapp.security.models import Quarantine, QuarantineState, ReviewDecision
from webapp.trajectories.models import Trajectory

STATES = {
    QuarantineState.PENDING: "Waiting for a review decision",
    QuarantineState.BENIGN: "Found benign",
    QuarantineState.MALICIOUS: "Found malicious",
}
MALICIOUS = "Malicious: never trained on."


@dataclass(frozen=True)
class QuarantineStatus:
    quarantine: Quarantine
    may_rule: bool
    effect: TrainingEffect
    within: int
    """Updates within which a benign one is still trained on."""
    consequences: list[str]
    """One sentence per verdict, and what is known about this trajectory."""
    history: list[ReviewDecision] = field(default_factory=list)
    """Newest first."""

    @property
    def in_words(self) -> str:
        if self.is_too_late:
            return "Not decided before the run ended"
        return STATES[QuarantineState(self.quarantine.state)]

    @property
    def is_too_late(self) -> bool:
        """Nobody decided while it could change the training, and nobody has decided since."""
        return self.quarantine.state == QuarantineState.PENDING and self.quarantine.run.has_ended

    @property
    def tone(self) -> str:
        if self.is_too_late:
            return ""
        return {"pending": "warn", "benign": "good", "malicious": "bad"}[self.quarantine.state]

    @property
    def action(self) -> str:
        return reverse("security:rule", args=[self.quarantine.run_id, self.quarantine.trajectory_id])


def quarantine_status_of(request: HttpRequest, run: Run, trajectory_id: str) -> QuarantineStatus | None:
    """Return None for a trajectory that nothing quarantined.  The caller has been through the run's door."""
    try:
        quarantine = quarantine_for(request, run.id, trajectory_id)
    except Http404:
        return None
    row = Trajectory.objects.filter(run=run, trajectory_id=trajectory_id).first()
    history = ReviewDecision.objects.filter(run=run, trajectory_id=trajectory_id).order_by("-number")
    within = release_within(run.spec["environment"].get("response"))
    return QuarantineStatus(
        quarantine,
        may_rule=may(request, run.team, "review"),
        effect=training_effect(quarantine, run, within=within),
        within=within,
        consequences=consequences(run, row),
        history=list(history),
    )


def consequences(run: Run, row: Trajectory | None) -> list[str]:
    """``row`` is None as long as the engine has not reported the trajectory."""
    most = release_within(run.spec["environment"].get("response"))
    if run.has_ended:
        return _about(run, row, most)
    updates = f"{most} update" + "s" * (most != 1)
    benign = f"Benign: trained on at the next step if at most {updates} happened since."
    return [benign, MALICIOUS, *_about(run, row, most)]


def _about(run: Run, row: Trajectory | None, most: int) -> list[str]:
    if row is not None and row.purpose != "train":
        return ["This one was sampled for an evaluation: nothing is trained on it either way."]
    if run.has_ended:
        return ["The run has ended: a review decision is kept, and changes no training any more."]
    if row is None:
        return []
    late = (
        " That is too late for training; a review decision is kept all the same."
        if run.step > row.sampled_for_step + most
        else ""
    )
    return [f"It was sampled for step {row.sampled_for_step}, and the run is at step {run.step}.{late}"]
