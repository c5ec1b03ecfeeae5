"""What the sandbox of a trajectory tried and what was alarming, turn by turn, for its page."""

from collections import defaultdict
from dataclasses import dataclass, field

from django.db.models import Count, Q, Sum

from webapp.runs.models import Run
from webapp.security.models import Alert, AlertedTurn, EgressRecord
from webapp.trajectories.models import Trajectory

RECORDS_PER_TURN = 20
MOST_RECORDS = 1000
"""Read for one page; the counts are of all."""
MOST_ALERTS = 100


@dataclass
class Watched:
    """What one turn's sandbox tried, in order of time."""

    alerts: list[Alert] = field(default_factory=list)
    records: list[EgressRecord] = field(default_factory=list)
    count: int = 0
    """It counts records."""
    denied: int = 0
    allowed: int = 0
    """Attempts, not records."""

    @property
    def left_out(self) -> int:
        """Records that are not shown."""
        return self.count - len(self.records)

    @property
    def in_words(self) -> str:
        total = self.denied + self.allowed
        return f"{total} attempt{'s' * (total != 1)} to reach something: {self.denied} denied, {self.allowed} allowed"


def of_turns(run: Run, trajectory_id: str) -> dict[int, Watched]:
    """Return them by the turn's number in ``Trajectory.turns``; turns without anything are not there."""
    turns: dict[int | None, Watched] = defaultdict(Watched)
    records = EgressRecord.objects.filter(run=run, trajectory_id=trajectory_id, turn__isnull=False)
    tried = Q(phase="attempt")
    for row in records.values("turn").annotate(
        records=Count("seq"),
        denied=Sum("count", filter=tried & Q(allowed=False), default=0),
        allowed_=Sum("count", filter=tried & Q(allowed=True), default=0),
    ):
        turns[row["turn"]] = Watched(count=row["records"], denied=row["denied"], allowed=row["allowed_"])
    for record in records.order_by("event_seq", "seq")[:MOST_RECORDS]:
        if len(turns[record.turn].records) < RECORDS_PER_TURN:
            turns[record.turn].records.append(record)
    alerts = Alert.objects.filter(run=run, trajectory_id=trajectory_id, turn__isnull=False)
    for alert in alerts.order_by("id")[:MOST_ALERTS]:
        turns[alert.turn].alerts.append(alert)
    return {turn: watched for turn, watched in turns.items() if turn is not None}


@dataclass(frozen=True)
class TurnShown:
    """What the page of an alert shows of its turn."""

    wrote: str
    call: str
    output: str | None
    """It is None while the call is under way."""
    error_class: str
    read: str = ""
    """What the policy read before it; known from the trajectory only."""


def turn_shown(alert: Alert, row: Trajectory | None) -> TurnShown | None:
    """From the trajectory once it is there, before that as far as the engine has reported it; None if nobody knows."""
    if row is not None and alert.turn is not None:
        turns = row.document.turns
        turn = turns[alert.turn] if alert.turn < len(turns) else None
        if turn is not None and turn.tool_calls:
            return TurnShown(
                "".join(turn.pieces),
                "\n".join(call.text for call in turn.tool_calls),
                "\n".join(call.output for call in turn.tool_calls),
                next((call.error_class for call in turn.tool_calls if call.error_class is not None), ""),
                turn.context_text,
            )
    reported = turn_of(alert)
    return TurnShown(reported.wrote, reported.call, reported.output, reported.error_class) if reported else None


def turn_of(alert: Alert) -> AlertedTurn | None:
    """Return the turn as far as the engine has reported it."""
    place = {"run_id": alert.run_id, "trajectory_id": alert.trajectory_id, "turn": alert.turn}
    return AlertedTurn.objects.filter(**place).first() if alert.turn is not None else None
