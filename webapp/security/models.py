"""What the sandboxes of a run tried to reach, what looked alarming about it, and what people decided.

Records and alerts are projections of the run's ``egress`` and ``alert`` events
(``webapp/ingest/security.py``); they are an audit: rows are added and never voided.  Everything in
them that came out of a sandbox was chosen by hostile code.  docs/security-console.md says what it means.
"""

from typing import ClassVar

from django.db import models

from sandboxes.egress.connection_attempt import printable
from sandboxes.egress.decision import WHY
from webapp.accounts.models import Team, User
from webapp.runs.models import Run


class EgressRecord(models.Model):
    """One record of one sandbox (``sandboxes.egress.record.EgressRecord``): an attempt, or traffic of one let
    through."""

    pk = models.CompositePrimaryKey("run_id", "sandbox", "seq")
    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="egress", db_index=False)
    sandbox = models.CharField(max_length=200)
    seq = models.BigIntegerField()
    event_seq = models.BigIntegerField()
    """The first event that reported it; with ``seq`` it orders the run's records."""
    trajectory_id = models.CharField(max_length=100, blank=True)
    """Empty where no tool call was under way; then ``turn`` is None."""
    turn = models.IntegerField(null=True)
    """Counted from 0, as in ``engine.spec.trajectory.Trajectory.turns``."""
    at = models.DateTimeField()
    last_at = models.DateTimeField()
    phase = models.CharField(max_length=8)
    attempt = models.BigIntegerField()
    """The attempt's number in its sandbox; the traffic of a connection has that of its attempt."""
    stage = models.CharField(max_length=8)
    protocol = models.CharField(max_length=8)
    family = models.CharField(max_length=8)
    address = models.CharField(max_length=64, blank=True)
    port = models.IntegerField(null=True)
    name = models.CharField(max_length=255, blank=True)
    query_type = models.CharField(max_length=32, blank=True)
    sni = models.CharField(max_length=255, blank=True)
    host = models.CharField(max_length=255, blank=True)
    method = models.CharField(max_length=32, blank=True)
    allowed = models.BooleanField()
    policy = models.CharField(max_length=200)
    rule = models.CharField(max_length=255, blank=True)
    reason = models.CharField(max_length=40)
    label = models.CharField(max_length=200, blank=True)
    count = models.BigIntegerField()
    spread = models.JSONField(null=True)
    """``sandboxes.egress.record.Spread`` where the record stands for different attempts."""
    bytes_up = models.BigIntegerField()
    bytes_down = models.BigIntegerField()
    packets_up = models.BigIntegerField()
    ended = models.CharField(max_length=12, blank=True)
    opening_up = models.BinaryField()
    opening_down = models.BinaryField()

    class Meta:
        indexes: ClassVar = [
            models.Index(fields=["run", "-event_seq", "-seq"], name="egress_newest_first"),
            models.Index(fields=["run", "trajectory_id", "turn"], name="egress_by_turn"),
            models.Index(fields=["run", "-event_seq", "-seq"], name="egress_denied", condition=models.Q(allowed=False)),
        ]

    @property
    def target(self) -> str:
        """Return where to, in a few words; all of it is what the sandbox chose."""
        if self.protocol == "dns":
            return f"{self.query_type or 'query'} {self.name or '(no name)'}"
        where = f"[{self.address}]" if ":" in self.address else self.address or "(no address)"
        return where if self.port is None else f"{where}:{self.port}"

    @property
    def names(self) -> str:
        """The names that it was reached by, each once."""
        given = [] if self.protocol == "dns" else [self.name]
        return ", ".join(dict.fromkeys(name for name in (*given, self.sni, self.host) if name))

    @property
    def why(self) -> str:
        """The reason in words; as it is where an older or newer engine gave one that is not known here."""
        return next((words for reason, words in WHY.items() if reason == self.reason), self.reason)

    @property
    def opening_text(self) -> str:
        return printable(bytes(self.opening_up), 1100)

    @property
    def opening_hex(self) -> str:
        return bytes(self.opening_up).hex(" ")


class EgressTotals(models.Model):
    """The sums over a run's records, kept with every batch: always exactly those of the rows."""

    run = models.OneToOneField(Run, on_delete=models.CASCADE, primary_key=True, related_name="egress_totals")
    records = models.BigIntegerField()
    allowed = models.BigIntegerField()
    """Attempts, not records."""
    denied = models.BigIntegerField()
    bytes_up = models.BigIntegerField()
    bytes_down = models.BigIntegerField()

    @property
    def attempts(self) -> int:
        return self.allowed + self.denied


class Severity(models.TextChoices):
    CRITICAL = "critical"
    WARNING = "warning"
    INFO = "info"


class AlertState(models.TextChoices):
    OPEN = "open"
    ACKNOWLEDGED = "acknowledged"
    RUN_ENDED = "run-ended", "Run ended"
    """Nobody decided before the run ended (``Run.move_to``): a decision is still possible and changes no training."""


class Alert(models.Model):
    """A finding of a detector.  ``id`` follows the order of commits, so a reader's cursor skips nothing."""

    team = models.ForeignKey(Team, on_delete=models.CASCADE, related_name="alerts", db_index=False)
    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="alerts", db_index=False)
    alert_id = models.CharField(max_length=220)
    """``AlertRaised.id``: ``<sandbox>/<n>``."""
    event_seq = models.BigIntegerField()
    rule = models.CharField(max_length=60)
    severity = models.CharField(max_length=8, choices=Severity.choices)
    category = models.CharField(max_length=40)
    attack = models.CharField(max_length=20)
    """MITRE ATT&CK technique."""
    title = models.TextField()
    subject = models.CharField(max_length=200)
    evidence = models.JSONField(default=list)
    """Lines of text."""
    trajectory_id = models.CharField(max_length=100, blank=True)
    turn = models.IntegerField(null=True)
    sandbox = models.CharField(max_length=200)
    label = models.CharField(max_length=200, blank=True)
    record_seq = models.BigIntegerField(null=True)
    """The record of ``sandbox`` that completed the evidence; None for a command."""
    at = models.DateTimeField()
    stored_at = models.DateTimeField()
    quarantined = models.BooleanField()
    state = models.CharField(max_length=12, choices=AlertState.choices, default=AlertState.OPEN)
    acknowledged_by = models.ForeignKey(User, on_delete=models.SET_NULL, null=True, related_name="+")
    acknowledged_at = models.DateTimeField(null=True)

    held: str | None
    """No column; lists of alerts put here how its trajectory stands, None for one that nothing quarantined."""
    within: int
    """No column; lists of alerts put here after how many updates a release is still in time."""

    class Meta:
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["run", "alert_id"], name="alert_is_told_once"),
            models.CheckConstraint(condition=models.Q(state__in=AlertState.values), name="alert_state_is_known"),
        ]
        indexes: ClassVar = [
            models.Index(fields=["team", "-id"], name="alert_newest_first"),
            models.Index(fields=["team", "-id"], name="alert_open", condition=models.Q(state="open")),
            models.Index(fields=["run", "trajectory_id", "turn"], name="alert_by_turn"),
            models.Index(fields=["run", "rule", "subject", "-id"], name="alert_alike"),
        ]

    def __str__(self) -> str:
        return f"{self.rule} {self.alert_id}"

    @property
    def is_undecided(self) -> bool:
        return self.state != AlertState.ACKNOWLEDGED


class AlertedTurn(models.Model):
    """The turn of an alert as far as the engine has reported it; the trajectory itself comes at the end of its step."""

    pk = models.CompositePrimaryKey("run_id", "trajectory_id", "turn")
    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="alerted_turns", db_index=False)
    trajectory_id = models.CharField(max_length=100)
    turn = models.IntegerField()
    wrote = models.TextField()
    """All that the policy wrote; all of these texts are cut at ``engine.spec.security.MOST_TURN_CHARACTERS``."""
    call = models.TextField()
    output = models.TextField(null=True)
    """It is None while the call is under way."""
    error_class = models.CharField(max_length=40, blank=True)
    at = models.DateTimeField()


class QuarantineState(models.TextChoices):
    PENDING = "pending"
    BENIGN = "benign"
    MALICIOUS = "malicious"


class Quarantine(models.Model):
    """A trajectory that is kept out of training until somebody decides, and how the last review decision was."""

    pk = models.CompositePrimaryKey("run_id", "trajectory_id")
    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="quarantines", db_index=False)
    trajectory_id = models.CharField(max_length=100)
    state = models.CharField(max_length=10, choices=QuarantineState.choices, default=QuarantineState.PENDING)
    since = models.DateTimeField()
    """When the alert was stored that began it, or the one that opened it again."""
    number = models.PositiveIntegerField(null=True)
    """The review decision that holds; None while it is pending.  The engine gets those beyond the last one it
    has."""
    decided_by = models.ForeignKey(User, on_delete=models.SET_NULL, null=True, related_name="+")
    decided_at = models.DateTimeField(null=True)
    note = models.TextField(blank=True)
    outcome = models.CharField(max_length=16, blank=True, default="", db_default="")
    """``engine.spec.security.SettledAs``: what became of it in training; empty until that is certain."""
    settled_step = models.IntegerField(null=True)
    settled = models.JSONField(null=True)
    """The other fields of ``engine.spec.event.QuarantineSettled``."""

    training: str
    """No column; a run's page puts here in words what became of it in training."""

    class Meta:
        constraints: ClassVar = [
            models.CheckConstraint(
                condition=models.Q(state="pending", number=None)
                | models.Q(state__in=("benign", "malicious"), number__isnull=False),
                name="quarantine_has_its_review_decision",
            ),
        ]
        indexes: ClassVar = [
            models.Index(fields=["run", "number"], name="quarantine_by_review_decision"),
            models.Index(fields=["run"], name="quarantine_pending", condition=models.Q(state="pending")),
        ]


class ReviewDecision(models.Model):
    """One of the review decisions about a trajectory, kept for good; the one with the highest number holds."""

    pk = models.CompositePrimaryKey("run_id", "number")
    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="review_decision_history", db_index=False)
    number = models.PositiveIntegerField()
    """1, 2, 3 ... within the run, given out under its row's lock."""
    trajectory_id = models.CharField(max_length=100)
    verdict = models.CharField(max_length=10)
    note = models.TextField(blank=True)
    user = models.ForeignKey(User, on_delete=models.SET_NULL, null=True, related_name="+")
    who = models.CharField(max_length=254)
    """The e-mail address as it was, kept when the user is gone."""
    at = models.DateTimeField()

    class Meta:
        constraints: ClassVar = [
            models.CheckConstraint(condition=models.Q(verdict__in=("benign", "malicious")), name="verdict_is_known"),
        ]
        indexes: ClassVar = [
            models.Index(fields=["run", "trajectory_id", "-number"], name="review_decision_history_of_one")
        ]
