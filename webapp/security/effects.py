"""What a review decision did to training, or why it did nothing, in one sentence for pages and REST."""

from dataclasses import dataclass
from typing import Any, Literal

from engine.spec.security import Response
from webapp.runs.models import Run
from webapp.security.models import Quarantine, QuarantineState

Effect = Literal[
    "trained-on",
    "masked",
    "incomparable",
    "too-late",
    "discarded",
    "evaluation",
    "run-ended",
    "open",
    "awaited",
    "never",
]
"""What ``SettledAs`` knows, and before it is certain: sampled for an evaluation, so never trained on; the run had
ended; waits for a review decision; found benign and waits for the engine's next step; found malicious."""


@dataclass(frozen=True)
class TrainingEffect:
    effect: Effect
    text: str
    step: int | None = None
    """It was certain in this step."""
    advantage: float | None = None

    @property
    def tone(self) -> str:
        return {"trained-on": "good", "open": "warn", "awaited": "warn"}.get(self.effect, "")


def release_within(response: dict[str, Any] | None) -> int:
    """Updates, by a spec's ``environment.response``; a run from before there were responses has none."""
    updates: int = (response or {}).get("release_within_steps", Response().release_within_steps)
    return updates


def training_effect(quarantine: Quarantine, run: Run, *, within: int) -> TrainingEffect:
    """``within``: the run's ``environment.response.release_within_steps``."""
    if quarantine.outcome:
        facts = quarantine.settled or {}
        text = _settled(quarantine.outcome, quarantine.settled_step, facts, within)
        return TrainingEffect(quarantine.outcome, text, quarantine.settled_step, facts.get("advantage"))  # type: ignore[arg-type]
    effect, text = _unsettled(quarantine, run)
    return TrainingEffect(effect, text)


def _settled(outcome: str, step: int | None, facts: dict[str, Any], within: int) -> str:
    since = _counted(facts.get("updates_since", 0), "update")
    match outcome:
        case "trained-on" if facts.get("rewards_differ") is False and not facts.get("advantage"):
            size = facts.get("group_size")
            return f"Trained on at step {step}, advantage 0: the rewards of its {size} compared rollouts are all equal."
        case "trained-on":
            return (
                f"Trained on at step {step}, advantage {_signed(facts.get('advantage'))}: reward "
                f"{_number(facts.get('reward'))}, mean of the {facts.get('group_size')} compared rollouts "
                f"{_number(facts.get('group_mean'))}."
            )
        case "masked":
            return f"Released at step {step} and still not trained on: {facts.get('because')}."
        case "incomparable":
            return (
                f"Released at step {step} and not trained on: too few rollouts of its group are left to compare with."
            )
        case "too-late":
            return f"Not trained on: it was found benign after {since}, and {within} are allowed."
        case _:
            return (
                f"Discarded at step {step}, after {since} without a review decision: none brings it back into training."
            )


def _unsettled(quarantine: Quarantine, run: Run) -> tuple[Effect, str]:
    if not quarantine.trajectory_id.startswith("train-"):
        return "evaluation", "Never trained on: it was sampled for an evaluation."
    if quarantine.state == QuarantineState.MALICIOUS:
        return "never", "Never trained on: it was found malicious."
    if run.has_ended:
        ended = f"the run ended at step {run.step} before"
        if quarantine.state == QuarantineState.PENDING:
            return "run-ended", f"Never trained on: {ended} anybody decided."
        return "run-ended", f"Never trained on: {ended} the review decision reached its training."
    if quarantine.state == QuarantineState.PENDING:
        return "open", "Not trained on so far: it waits for a review decision."
    return "awaited", "Not trained on so far: the review decision takes effect in the run's next step."


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" + "s" * (number != 1)


def _number(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.3g}"


def _signed(value: float | None) -> str:
    return "unknown" if value is None else f"{value:+.2g}"
