"""Serving keys: who makes and revokes them, what is shown once, and what a key is bound to."""

import hashlib
from io import StringIO
from typing import Any
from uuid import uuid4

import pytest
from django.core.management import CommandError, call_command
from django.test import Client
from django.utils import timezone

from tests.webapp.models import ready_version
from webapp.accounts.models import AuditEntry, Team, User
from webapp.catalog.models import ModelVersion
from webapp.library.services import delete_version
from webapp.refusals import Invalid, Refused, TooMany
from webapp.runs.models import Checkpoint, Run
from webapp.serving import services
from webapp.serving.models import ServingKey, ServingUsage

LIMITS = services.KeyLimits()


@pytest.fixture
def version(team: Team, settings: Any, tmp_path: Any) -> ModelVersion:
    settings.PALESTRA_MODELS = tmp_path
    return ready_version(team)


@pytest.fixture
def trained_run(run: Run) -> Run:
    """With checkpoints after steps 0 to 40, of which three are kept."""
    Checkpoint.objects.bulk_create(
        Checkpoint(
            run=run, step=step, path=f"/ck/{step}", size_bytes=1, seconds=0.1, at=timezone.now(), on_disk=step >= 20
        )
        for step in range(0, 50, 10)
    )
    return run


@pytest.fixture
def key(version: ModelVersion, bob: User) -> ServingKey:
    return services.serve_version(version, "evaluation", LIMITS, acting_user=bob).key


def signed_in(user: User) -> Client:
    client = Client()
    client.force_login(user)
    return client


# ---- REST ----


def test_a_member_makes_a_key_which_is_shown_once_and_kept_as_a_digest(
    api_of: Any, bob: User, version: ModelVersion
) -> None:
    api = api_of(bob)
    made = api.post("/serving-keys", {"name": "evaluation", "model_version": version.id, "tokens_per_day": 1000})
    assert made.status_code == 201
    text, described = made.json()["key"], made.json()["serving_key"]
    assert text.startswith("pst-")
    row = ServingKey.objects.get(id=described["id"])
    assert row.digest == hashlib.sha256(text.encode()).hexdigest()
    assert described["model"] == f"{version.team.slug}/{version}"
    assert (described["ending"], described["tokens_per_day"], described["expires_at"]) == (text[-4:], 1000, None)
    for path in ("/serving-keys", f"/serving-keys/{row.id}", f"/serving-keys/{row.id}/usage"):
        assert text not in api.get(path).content.decode()
    assert text not in str(list(AuditEntry.objects.values()))


def test_a_key_for_a_checkpoint_names_its_step_and_by_default_the_newest(
    api_of: Any, bob: User, trained_run: Run
) -> None:
    api = api_of(bob)
    newest = api.post("/serving-keys", {"name": "a", "run": str(trained_run.id)}).json()["serving_key"]
    chosen = api.post("/serving-keys", {"name": "b", "run": str(trained_run.id), "step": 30}).json()["serving_key"]
    assert (newest["step"], chosen["step"]) == (40, 30)
    assert chosen["model"] == f"blue-team/runs/{trained_run.number}@30"
    gone = api.post("/serving-keys", {"name": "c", "run": str(trained_run.id), "step": 10})
    assert gone.status_code == 422
    assert "use one of 20, 30, 40" in gone.content.decode()


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"model_version": None}, "run"),
        ({"run": str(uuid4())}, "run"),
        ({"step": 3}, "step"),
        ({"requests_per_minute": 0}, "requests_per_minute"),
        ({"parallel": 257}, "parallel"),
        ({"tokens_per_day": 0}, "tokens_per_day"),
        ({"expires_in_days": 10**9}, "expires_in_days"),
        ({"name": " "}, "name"),
        ({"name": "x" * 101}, "name"),
        ({"unknown": 1}, "unknown"),
    ],
)
def test_bad_input_names_its_field_and_makes_no_key(
    api_of: Any, bob: User, version: ModelVersion, changed: dict[str, Any], field: str
) -> None:
    wanted = {"name": "evaluation", "model_version": version.id} | changed
    refused = api_of(bob).post("/serving-keys", {name: value for name, value in wanted.items() if value is not None})
    assert refused.status_code == 422
    assert field in [problem["field"] for problem in refused.json()["problems"]]
    assert not ServingKey.objects.exists()


def test_who_may_only_look_makes_and_revokes_no_key(api_of: Any, victor: User, key: ServingKey) -> None:
    api = api_of(victor)
    wanted = {"name": "evaluation", "model_version": key.model_version_id}
    assert api.post("/serving-keys", wanted).status_code == 403
    assert api.post(f"/serving-keys/{key.id}/revoke").status_code == 403
    assert api.get(f"/serving-keys/{key.id}").json()["name"] == "evaluation"


def test_a_stranger_cannot_tell_that_a_key_or_its_model_exists(
    api_of: Any, charlie: User, key: ServingKey, trained_run: Run
) -> None:
    api = api_of(charlie)
    for path in (f"/serving-keys/{key.id}", f"/serving-keys/{key.id}/usage"):
        assert api.get(path).status_code == 404
    assert api.post(f"/serving-keys/{key.id}/revoke").status_code == 404
    assert api.post("/serving-keys", {"name": "x", "model_version": key.model_version_id}).status_code == 404
    assert api.post("/serving-keys", {"name": "x", "run": str(trained_run.id)}).status_code == 404
    assert api.get("/serving-keys").json()["items"] == []


def test_a_serving_key_opens_nothing_of_the_service(version: ModelVersion, bob: User) -> None:
    text = services.serve_version(version, "evaluation", LIMITS, acting_user=bob).text
    client = Client(headers={"authorization": f"Bearer {text}"})
    assert {client.get(f"/api/v1/{path}").status_code for path in ("runs", "models", "serving-keys")} == {401}


def test_a_revoked_key_stays_revoked_and_the_audit_log_has_one_entry(api_of: Any, bob: User, key: ServingKey) -> None:
    api = api_of(bob)
    first = api.post(f"/serving-keys/{key.id}/revoke").json()["revoked_at"]
    assert api.post(f"/serving-keys/{key.id}/revoke").json()["revoked_at"] == first
    verbs = AuditEntry.objects.filter(verb__startswith="serving-key").values_list("verb", flat=True)
    assert sorted(verbs) == ["serving-key.create", "serving-key.revoke"]


def test_usage_is_told_by_day_with_what_was_not_answered(api_of: Any, bob: User, key: ServingKey) -> None:
    today = timezone.now().date()
    for outcome, calls, read, sampled in (("answered", 3, 30, 12), ("rate", 2, 0, 0)):
        ServingUsage.objects.create(
            key=key, day=today, outcome=outcome, calls=calls, prompt_tokens=read, sampled_tokens=sampled
        )
    [used] = api_of(bob).get(f"/serving-keys/{key.id}/usage").json()["items"]
    assert used == {
        "day": str(today), "calls": 5, "prompt_tokens": 30, "sampled_tokens": 12, "refused": {"rate": 2},
    }  # fmt: skip


# ---- services ----


def test_what_cannot_be_served_is_refused(team: Team, bob: User, run: Run, version: ModelVersion) -> None:
    with pytest.raises(Refused, match="no checkpoint on the disk"):
        services.serve_checkpoint(run, None, "x", LIMITS, acting_user=bob)
    ModelVersion.objects.filter(id=version.id).update(state="failed")
    with pytest.raises(Refused, match="only a ready one"):
        services.serve_version(version, "x", LIMITS, acting_user=bob)


def test_all_limits_that_are_wrong_are_named_at_once(version: ModelVersion, bob: User) -> None:
    with pytest.raises(Invalid) as refused:
        services.serve_version(version, "x", services.KeyLimits(0, 0, 0, 0), acting_user=bob)
    fields = [problem.field for problem in refused.value.problems]
    assert fields == ["requests_per_minute", "parallel", "tokens_per_day", "expires_in_days"]


def test_a_team_has_so_many_keys_and_revoked_ones_do_not_count(
    version: ModelVersion, bob: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(services, "MOST_KEYS", 1)
    key = services.serve_version(version, "x", LIMITS, acting_user=bob).key
    with pytest.raises(TooMany):
        services.serve_version(version, "y", LIMITS, acting_user=bob)
    services.revoke_serving_key(key, acting_user=bob)
    services.serve_version(version, "y", LIMITS, acting_user=bob)


def test_a_key_outlives_its_model_and_says_so(key: ServingKey, version: ModelVersion, bob: User) -> None:
    delete_version(version, acting_user=bob)
    key.refresh_from_db()
    assert key.model_is_gone
    assert "deleted" in signed_in(bob).get("/serving/").content.decode()


# ---- pages ----


def test_the_page_is_empty_then_shows_a_new_key_once_and_then_its_usage(version: ModelVersion, bob: User) -> None:
    client = signed_in(bob)
    assert "No keys" in client.get("/serving/").content.decode()
    wanted = {"name": "evaluation", "opens": f"version-{version.id}", "requests_per_minute": 10, "parallel": 2}
    page = client.post("/serving/keys", wanted).content.decode()
    key = ServingKey.objects.get()
    assert key.requests_per_minute == 10
    assert "it is not shown again" in page
    [text] = {
        word.strip('"<>')
        for word in page.replace("<", " ").replace(">", " ").split()
        if word.startswith("pst-") and len(word) == 68
    }
    assert hashlib.sha256(text.encode()).hexdigest() == key.digest
    assert text not in client.get("/serving/").content.decode()
    detail = client.get(f"/serving/{key.id}/").content.decode()
    assert "Nobody has asked with this key yet" in detail
    assert key.model_name in detail
    revoked = client.post(f"/serving/{key.id}/revoke", follow=True).content.decode()
    assert "opens nothing any more" in revoked


def test_a_form_that_is_wrong_says_where_and_makes_no_key(version: ModelVersion, trained_run: Run, bob: User) -> None:
    client = signed_in(bob)
    good = {"name": "x", "opens": f"run-{trained_run.id}", "requests_per_minute": 10, "parallel": 2}
    for changed, named in (
        ({"name": ""}, "Name"),
        ({"opens": "everything"}, "Model"),
        ({"parallel": 1000}, "Answers at once"),
        ({"step": 10}, "Step"),
    ):
        answer = client.post("/serving/keys", good | changed)
        assert answer.status_code == 422
        assert f"<b>{named}</b>" in answer.content.decode()
    assert not ServingKey.objects.exists()


def test_pages_are_for_the_team_and_buttons_for_those_who_launch(key: ServingKey, victor: User, charlie: User) -> None:
    shown = signed_in(victor).get("/serving/").content.decode()
    assert "evaluation" in shown
    assert "Create a key" not in shown
    assert "Revoke" not in shown
    assert signed_in(victor).post(f"/serving/{key.id}/revoke").status_code == 403
    stranger = signed_in(charlie)
    assert "evaluation" not in stranger.get("/serving/").content.decode()
    assert stranger.get(f"/serving/{key.id}/").status_code == 404
    assert stranger.post(f"/serving/{key.id}/revoke").status_code == 404
    assert Client().get("/serving/").status_code == 302


# ---- the command ----


def printed(*arguments: str) -> str:
    out = StringIO()
    call_command("serving_key", *arguments, stdout=out)
    return out.getvalue()


def test_the_command_makes_lists_and_revokes(team: Team, version: ModelVersion, trained_run: Run, bob: User) -> None:
    who = ["--team", team.slug, "--by", bob.email]
    first, text = printed(*who, "--model", str(version), "--name", "nightly").splitlines()
    assert str(version) in first
    assert ServingKey.objects.get(digest=hashlib.sha256(text.encode()).hexdigest()).name == "nightly"
    printed(*who, "--run", str(trained_run.number), "--step", "20")
    assert len(printed(*who, "--list").splitlines()) == 2
    key = ServingKey.objects.get(name="nightly")
    printed(*who, "--revoke", str(key.id))
    assert "revoked" in printed(*who, "--list")


@pytest.mark.parametrize(
    ("asked", "named"),
    [(["--model", "none@1"], "no such version"), (["--model", "qwen"], "name@number"), (["--run", "99"], "no such run"),
     (["--revoke", str(uuid4())], "no such key")],
)  # fmt: skip
def test_the_command_says_what_is_wrong(
    team: Team, version: ModelVersion, bob: User, asked: list[str], named: str
) -> None:
    with pytest.raises(CommandError, match=named):
        printed("--team", team.slug, "--by", bob.email, *asked)
