"""What a review decision did to training, or why nothing: on the pages and over REST."""

import json
from typing import Any

import pytest
from django.test import Client

from tests.webapp.runs.conftest import ORIGIN, Engine
from webapp.accounts.models import User
from webapp.runs.models import Run
from webapp.security.models import Alert, AlertedTurn, Quarantine
from webapp.security.services import review

pytestmark = pytest.mark.django_db
TRAJECTORY = "train-1-0"
TRAINED = {
    "outcome": "trained-on", "updates_since": 2, "advantage": 0.7, "reward": 0.9, "group_mean": 0.4, "group_size": 8,
    "rewards_differ": True,
}  # fmt: skip


def settled(engine: Engine, step: int = 3, trajectory: str = TRAJECTORY, **fields: Any) -> dict[str, Any]:
    return engine.event("settled", step=step, trajectory=trajectory, **TRAINED | fields)


def page_of(user: User, path: str) -> str:
    client = Client()
    client.force_login(user)
    answer = client.get(path)
    assert answer.status_code == 200, path
    return answer.content.decode()


def effect(api_of: Any, user: User, run: Run) -> dict[str, Any]:
    return api_of(user).get(f"/runs/{run.id}/quarantines/{TRAJECTORY}").json()["effect"]


def test_alert_trajectory_and_rest_say_what_the_review_decision_did(
    engine: Engine, alarming_run: Run, rita: User, api_of: Any
) -> None:
    review(alarming_run, TRAJECTORY, "benign", acting_user=rita)
    engine.post(settled(engine))
    phrase = "Trained on at step 3, advantage +0.7: reward 0.9, mean of the 8 compared rollouts 0.4."
    alert = Alert.objects.get()
    for path in (f"/alerts/{alert.id}/", f"/runs/{alarming_run.id}/trajectories/{TRAJECTORY}/"):
        assert phrase in page_of(rita, path), path
    assert "advantage +0.7" in page_of(rita, f"/runs/{alarming_run.id}/security/")
    assert effect(api_of, rita, alarming_run) == {"effect": "trained-on", "text": phrase, "step": 3, "advantage": 0.7}
    assert api_of(rita).get(f"/alerts/{alert.id}").json()["quarantine"]["effect"]["advantage"] == 0.7


@pytest.mark.parametrize(
    ("verdict", "fields", "kind", "phrase"),
    [
        (None, None, "open", "Not trained on so far: it waits for a review decision."),
        ("benign", None, "awaited", "takes effect in the run's next step"),
        ("malicious", None, "never", "Never trained on: it was found malicious."),
        (None, {"outcome": "discarded", "updates_since": 8}, "discarded", "after 8 updates without a review decision"),
        ("benign", {"outcome": "too-late", "updates_since": 9}, "too-late", "found benign after 9 updates, and 8 are"),
        ("benign", {"outcome": "incomparable"}, "incomparable", "too few rollouts of its group"),
        ("benign", {"outcome": "masked", "because": "overlong"}, "masked", "still not trained on: overlong."),
        ("benign", {"advantage": 0.0, "rewards_differ": False}, "trained-on", "advantage 0: the rewards of its 8"),
        (
            "benign",
            {"advantage": -0.95, "reward": -1.0, "group_mean": -1.0, "rewards_differ": False},
            "trained-on",
            "advantage -0.95: reward -1, mean of the 8 compared rollouts -1.",
        ),
    ],
)
def test_each_reason_has_its_words(
    engine: Engine, alarming_run: Run, rita: User, api_of: Any, verdict: Any, fields: Any, kind: str, phrase: str
) -> None:
    if verdict:
        review(alarming_run, TRAJECTORY, verdict, acting_user=rita)
    if fields is not None:
        assert engine.post(settled(engine, **fields)).status_code == 200
    found = effect(api_of, rita, alarming_run)
    assert found["effect"] == kind
    assert phrase in found["text"]


def test_a_run_that_ended_says_so_and_does_not_deny_what_was_trained_on(
    engine: Engine, alarming_run: Run, rita: User, api_of: Any
) -> None:
    other = engine.alert("sandbox-1/2", origin={"trajectory": "train-1-5", "turn": 0})
    engine.post(other, settled(engine), engine.finished())
    api = api_of(rita, scopes=("read", "review"))
    pending = api.get(f"/runs/{alarming_run.id}/quarantines/train-1-5").json()["effect"]
    assert pending["effect"] == "run-ended"
    assert "before anybody decided" in pending["text"]
    assert effect(api_of, rita, alarming_run)["effect"] == "trained-on"
    api.post(f"/runs/{alarming_run.id}/quarantines/train-1-5/review-decisions", {"verdict": "benign"})
    after = api.get(f"/runs/{alarming_run.id}/quarantines/train-1-5").json()["effect"]
    assert "before the review decision reached its training" in after["text"]


def test_an_evaluations_trajectory_is_never_trained_on(engine: Engine, rita: User, api_of: Any) -> None:
    engine.post(engine.alert(origin={"trajectory": "eval-greedy-0-0", "turn": 0}))
    api = api_of(rita)
    found = api.get(f"/runs/{engine.run_id}/quarantines/eval-greedy-0-0").json()["effect"]
    assert found["effect"] == "evaluation"


def test_an_attempt_that_goes_on_from_before_voids_what_was_settled(engine: Engine, alarming_run: Run) -> None:
    engine.post(settled(engine, step=3))
    assert Quarantine.objects.get().outcome == "trained-on"
    engine.post(engine.started(from_step=3))
    assert Quarantine.objects.get().outcome == "trained-on"
    engine.post(settled(engine, step=5), engine.started(from_step=2), settled(engine, step=2, outcome="discarded"))
    assert (Quarantine.objects.get().outcome, Quarantine.objects.get().settled_step) == ("discarded", 2)
    engine.post(engine.started(from_step=1))
    held = Quarantine.objects.get()
    assert (held.outcome, held.settled_step, held.settled) == ("", None, None)


def test_what_nobody_quarantined_is_settled_nowhere(engine: Engine) -> None:
    assert engine.post(engine.started(), settled(engine, trajectory="train-9-9")).status_code == 200
    assert not Quarantine.objects.exists()


# --- the turn of an alert -------------------------------------------------------------------------
TEXT = {"wrote": "<tool>relay()</tool>", "call": "relay()"}


def test_the_page_of_an_alert_shows_its_turn_while_its_step_is_not_over(
    engine: Engine, victor: User, api_of: Any
) -> None:
    engine.post(engine.started(), engine.event("turn", origin=ORIGIN, text=TEXT), engine.alert())
    alert = Alert.objects.get()
    text = page_of(victor, f"/alerts/{alert.id}/")
    assert "&lt;tool&gt;relay()&lt;/tool&gt;" in text
    assert "under way" in text
    assert "turn-link" not in text
    reported = api_of(victor).get(f"/alerts/{alert.id}").json()["turn_text"]
    assert reported == {**TEXT, "output": None, "error_class": None}
    ended = TEXT | {"output": "stopped by alert", "error_class": "frozen"}
    engine.post(engine.event("turn", origin=ORIGIN, text=ended))
    text = page_of(victor, f"/alerts/{alert.id}/")
    assert "stopped by alert" in text
    assert "under way" not in text
    assert AlertedTurn.objects.count() == 1


def test_then_it_shows_the_turn_of_the_trajectory(alarming_run: Run, victor: User) -> None:
    text = page_of(victor, f"/alerts/{Alert.objects.get().id}/")
    assert '<pre class="call-code hostile">1+1</pre>' in text
    assert 'id="turn-link"' in text


def test_hostile_text_of_a_turn_stays_text_and_too_much_is_refused(engine: Engine, victor: User) -> None:
    evil = "<script>alert(1)</script>\0"
    body = TEXT | {"wrote": evil, "call": evil, "output": evil}
    assert engine.post(engine.event("turn", origin=ORIGIN, text=body), engine.alert()).status_code == 200
    text = page_of(victor, f"/alerts/{Alert.objects.get().id}/")
    assert "&lt;script&gt;alert(1)" in text
    assert "<script>alert" not in text
    large = engine.event("turn", origin=ORIGIN, text=TEXT | {"call": "x" * 4001})
    answer = engine.post(large)
    assert answer.status_code == 422
    assert "call" in json.dumps(answer.json())


def test_the_description_tells_of_groups_and_decisions(api_of: Any, victor: User) -> None:
    document = api_of(victor).get("/openapi.json").json()
    assert "post" in document["paths"]["/api/v1/alerts/decisions"]
    assert "get" in document["paths"]["/api/v1/alerts/groups"]
    schemas = document["components"]["schemas"]
    assert set(schemas["DecisionRequest"]["properties"]) == {"decision", "note", "alerts", "like", "through"}
    assert "effect" in schemas["QuarantineOut"]["properties"]
    assert "turn_text" in schemas["AlertDetail"]["properties"]
