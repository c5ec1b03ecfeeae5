"""Review decisions are numbered, kept and replaced; two reviewers at once get two numbers."""

from functools import partial
from typing import Any

import pytest

from tests.webapp.at_once import at_once
from tests.webapp.runs.conftest import Engine, finding
from webapp.accounts.models import AuditEntry, User
from webapp.audit.sentences import plain
from webapp.refusals import Invalid, Refused
from webapp.runs.models import Run
from webapp.security.models import Alert, Quarantine, ReviewDecision
from webapp.security.services import acknowledge_alert, review

pytestmark = pytest.mark.django_db


def test_a_review_decision_is_numbered_kept_and_audited(alarming_run: Run, rita: User) -> None:
    made = review(alarming_run, "train-1-0", "malicious", " mined coins ", acting_user=rita)
    assert (made.number, made.verdict, made.note, made.who) == (1, "malicious", "mined coins", "rita@example.org")
    held = Quarantine.objects.get()
    assert (held.state, held.number, held.decided_by, held.note) == ("malicious", 1, rita, "mined coins")
    assert Run.objects.get().review_decisions == 1
    entry = AuditEntry.objects.get(verb="quarantine.decide")
    assert (entry.user, entry.details["verdict"], entry.details["review_decision"]) == (rita, "malicious", 1)


def test_a_later_review_decision_replaces_an_earlier_one_and_both_stay_on_record(
    alarming_run: Run, rita: User, alice: User
) -> None:
    review(alarming_run, "train-1-0", "malicious", acting_user=rita)
    review(alarming_run, "train-1-0", "benign", "it was the tutorial", acting_user=alice)
    assert list(ReviewDecision.objects.order_by("number").values_list("number", "verdict", "who")) == [
        (1, "malicious", "rita@example.org"),
        (2, "benign", "alice@example.org"),
    ]
    assert Quarantine.objects.get().state == "benign"


def test_the_same_review_decision_twice_is_one(alarming_run: Run, rita: User) -> None:
    first = review(alarming_run, "train-1-0", "benign", acting_user=rita)
    again = review(alarming_run, "train-1-0", "benign", acting_user=rita)
    assert first.number == again.number == 1
    assert ReviewDecision.objects.count() == AuditEntry.objects.filter(verb="quarantine.decide").count() == 1


def test_a_review_decision_acknowledges_the_alerts_about_it(alarming_run: Run, rita: User) -> None:
    review(alarming_run, "train-1-0", "benign", acting_user=rita)
    alert = Alert.objects.get()
    assert (alert.state, alert.acknowledged_by) == ("acknowledged", rita)


def test_the_same_review_decision_again_acknowledges_the_alerts_that_came_since(
    alarming_run: Run, engine: Engine, rita: User, alice: User
) -> None:
    first = review(alarming_run, "train-1-0", "benign", acting_user=rita)
    engine.post(engine.alert("sandbox-1/2", finding=finding(rule="beacon"), quarantined=False))
    assert Quarantine.objects.get().state == "benign"
    again = review(alarming_run, "train-1-0", "benign", acting_user=alice)
    assert (again.number, ReviewDecision.objects.count()) == (first.number, 1)
    assert list(Alert.objects.order_by("id").values_list("state", "acknowledged_by")) == [
        ("acknowledged", rita.id), ("acknowledged", alice.id),
    ]  # fmt: skip
    entry = AuditEntry.objects.get(verb="alert.acknowledge")
    assert (entry.user, entry.details["alerts"]) == (alice, 1)
    assert plain(entry) == f"acknowledged 1 alert of run #{alarming_run.number}"


def test_what_was_never_quarantined_cannot_be_decided_on(alarming_run: Run, rita: User) -> None:
    with pytest.raises(Refused, match="no alert quarantined trajectory train-9-9"):
        review(alarming_run, "train-9-9", "benign", acting_user=rita)
    assert Run.objects.get().review_decisions == 0


@pytest.mark.parametrize(
    ("verdict", "note", "field"),
    [("pending", "", "verdict"), ("benign", "x" * 2001, "note"), ("benign", "a\0b", "note")],
)
def test_bad_review_decisions_name_the_field(
    alarming_run: Run, rita: User, verdict: Any, note: str, field: str
) -> None:
    with pytest.raises(Invalid) as refusal:
        review(alarming_run, "train-1-0", verdict, note, acting_user=rita)
    assert refusal.value.problems[0].field == field
    assert Quarantine.objects.get().state == "pending"


@pytest.mark.django_db(transaction=True)
def test_reviewers_at_the_same_time_get_numbers_without_gap_or_double(alarming_run: Run, rita: User) -> None:
    def decide_ten_times(name: str) -> None:
        for index in range(10):
            verdict = "benign" if index % 2 else "malicious"
            review(alarming_run, "train-1-0", verdict, f"{name} {index}", acting_user=rita)

    at_once(*(partial(decide_ten_times, name) for name in "abc"))
    assert list(ReviewDecision.objects.order_by("number").values_list("number", flat=True)) == list(range(1, 31))
    assert Quarantine.objects.get().number == Run.objects.get().review_decisions == 30


def test_acknowledging_twice_is_once_and_keeps_the_quarantine(alarming_run: Run, rita: User, alice: User) -> None:
    alert = Alert.objects.get()
    acknowledge_alert(alert, acting_user=rita)
    again = acknowledge_alert(alert, acting_user=alice)
    assert (again.state, again.acknowledged_by) == ("acknowledged", rita)
    assert AuditEntry.objects.filter(verb="alert.acknowledge").count() == 1
    assert Quarantine.objects.get().state == "pending"
