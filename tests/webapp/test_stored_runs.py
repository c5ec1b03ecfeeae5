"""Runs that earlier versions stored are opened: their rows are migrated, and their documents read."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.core.management import call_command
from django.db import connection
from django.test import Client
from django.utils import timezone

from engine.spec.event import Batch
from tests.stored_runs import events_of
from webapp.accounts.audit import record
from webapp.accounts.models import Team, User
from webapp.audit.sentences import plain
from webapp.experiments.models import Experiment
from webapp.ingest.endpoint import accept
from webapp.runs.models import Run
from webapp.security.services import review
from webapp.serving.models import ServingKey
from webapp.serving.services import KeyLimits, serve_checkpoint

OLD = "0003_alerts"
ROWS = ("trajectory_id", "purpose", "prompt", "member", "sampled_at_version", "trained_at_step", "reward", "masked")
_ADD_ROW = """
INSERT INTO trajectories_trajectory (run_id, trajectory_id, seq, purpose, step, "group", index, level, success, reward,
    tool_calls, tool_errors, turns, tokens, stop_reason)
VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, 0, 0, %s, 0, %s)
"""
_ADD_EVENT = """
INSERT INTO runs_event (run_id, seq, attempt, kind, step, at, body)
SELECT %s, seq, 1, kind, 0, now(), body
FROM unnest(%s::bigint[], %s::text[], %s::jsonb[]) AS given (seq, kind, body)
"""
_QUARANTINE = """
INSERT INTO security_quarantine (run_id, trajectory_id, state, number, since, note, outcome, settled_step, settled)
VALUES (%s, %s, 'benign', 1, now(), '', 'trained-on', %s, '{"updates_since": 1, "advantage": 0.5}')
"""


@pytest.fixture
def migrated(transactional_db: None) -> Iterator[Callable[[Callable[[], None]], None]]:
    """Calls a function while the tables are those of version 0.2, and migrates what it wrote."""

    def migrate(write: Callable[[], None]) -> None:
        call_command("migrate", "trajectories", OLD, verbosity=0)
        write()
        call_command("migrate", verbosity=0)

    yield migrate
    call_command("migrate", verbosity=0)


def stored_by_0_2(run: Run) -> None:
    """As its projections wrote rows; one rollout of step 1 was released from quarantine and trained on in step 2."""
    events = events_of("0.2")
    with connection.cursor() as cursor:
        columns = ([event[name] for event in events] for name in ("seq", "kind"))
        cursor.execute(_ADD_EVENT, [run.id, *columns, [json.dumps(event) for event in events]])
        for event in events:
            if event["kind"] == "trajectory":
                it = event["trajectory"]
                cursor.execute(
                    _ADD_ROW,
                    [run.id, it["id"], event["seq"], it["purpose"], it["step"], it["group"], it["index"],
                     it["task"]["level"], it["success"], it["reward"], len(it["turns"]), it["stop_reason"]],
                )  # fmt: skip
        cursor.execute(_QUARANTINE, [run.id, "train-1-0-1", 2])


def test_rows_of_0_2_keep_their_ids_and_their_pages_open(
    run: Run, alice: User, api_of: Any, migrated: Callable[[Callable[[], None]], None]
) -> None:
    migrated(lambda: stored_by_0_2(run))
    rows = {row[0]: row[1:6] for row in run.trajectories.values_list(*ROWS)}
    assert rows["train-2-1-0"] == ("train", 2_000_001, 0, 1, 2)
    assert rows["train-1-0-1"] == ("train", 1_000_000, 1, 0, 2)  # released
    assert rows["eval-greedy-0-1-0"] == ("eval-greedy", 1, 0, 0, None)
    client = Client()
    client.force_login(alice)
    listed = client.get(f"/runs/{run.id}/trajectories/?step=2&purpose=train").content.decode()
    assert {name for name in rows if f">{name}<" in listed} == {
        "train-1-0-1", "train-2-0-0", "train-2-0-1", "train-2-1-0", "train-2-1-1",
    }  # fmt: skip
    page = client.get(f"/runs/{run.id}/trajectories/train-1-0-1/").content.decode()
    assert "sampled by version 0, trained at step 2" in page
    document = api_of(alice).get(f"/runs/{run.id}/trajectories/train-1-0-1").json()
    assert (document["id"], document["prompt"], document["member"]) == ("train-1-0-1", 1_000_000, 1)
    assert (document["sampled_at_version"], document["trained_at_step"]) == (0, 2)
    assert "group" not in document
    assert "turns" not in document
    assert [[turn["tool_calls"] for turn in segment["turns"]] for segment in document["segments"]] == [[[]]]
    assert set(run.trajectories.values_list("segments", flat=True)) == {1}


def test_what_an_engine_of_0_2_still_sends_becomes_the_rows_to_which_stored_ones_are_migrated(
    launching_run: Run, migrated: Callable[[Callable[[], None]], None]
) -> None:
    migrated(lambda: stored_by_0_2(launching_run))
    stored = set(launching_run.trajectories.values_list(*ROWS))
    launching_run.trajectories.all().delete()
    launching_run.events.all().delete()
    accept(launching_run.id, Batch.model_validate({"attempt": 1, "first_seq": 1, "events": events_of("0.2")}))
    sent = set(launching_run.trajectories.values_list(*ROWS))
    assert len(sent) == 14
    assert {row[0] for row in sent ^ stored} == {"train-1-0-1"}  # the released one


@pytest.fixture
def renamed(transactional_db: None) -> Iterator[Callable[[Callable[[], None]], None]]:
    """Calls a function while columns and stored events have the words of version 0.2, and migrates what it wrote."""

    def migrate(write: Callable[[], None]) -> None:
        call_command("migrate", "security", "0003_ended_runs", verbosity=0)
        call_command("migrate", "runs", "0005_heartbeats", verbosity=0)
        write()
        call_command("migrate", verbosity=0)

    yield migrate
    call_command("migrate", verbosity=0)


def bodies(run: Run) -> list[dict[str, Any]]:
    with connection.cursor() as cursor:
        cursor.execute("SELECT body FROM runs_event WHERE run_id = %s ORDER BY seq", [run.id])
        return [json.loads(body) if isinstance(body, str) else body for (body,) in cursor.fetchall()]


def validated(events: list[dict[str, Any]]) -> Batch:
    return Batch.model_validate_json(json.dumps({"attempt": 1, "first_seq": 1, "events": events}))


def test_events_rows_and_review_decisions_of_0_2_are_those_of_today(
    alarming_run: Run, rita: User, api_of: Any, renamed: Callable[[Callable[[], None]], None]
) -> None:
    review(alarming_run, "train-1-0", "benign", acting_user=rita)
    before = bodies(alarming_run)
    old: list[dict[str, Any]] = []
    renamed(lambda: old.extend(bodies(alarming_run)))
    assert bodies(alarming_run) == before
    egress, alert = (next(body for body in old if body["kind"] == kind) for kind in ("egress", "alert"))
    [record, *_] = egress["records"]
    assert {"box", "place"} <= egress.keys()
    assert not {"sandbox", "origin"} & egress.keys()
    assert ("verdict" in record, "box" in record["attempt"]) == (True, True)
    assert ("box" in alert["finding"], "place" in alert) == (True, True)
    assert validated(old) == validated(before)
    api = api_of(rita, scopes=("read", "review"))
    [held] = api.get(f"/runs/{alarming_run.id}/quarantines").json()["items"]
    assert (held["review_decision"], held["decided_by"]) == (1, rita.email)
    [row, *_] = api.get(f"/runs/{alarming_run.id}/egress").json()["items"]
    assert row["sandbox"] == "sandbox-1"


def test_a_review_decision_in_an_older_audit_log_has_its_sentence(
    transactional_db: None, team: Team, alice: User
) -> None:
    target = "trajectory train-1-0 of run 00000000-0000-0000-0000-000000000001"
    call_command("migrate", "accounts", "0002_idempotent_response", verbosity=0)
    try:
        record(team, alice, "quarantine.rule", target, verdict="benign", run_number=2)
        record(team, alice, "run.cancel", "run gone")
    finally:
        call_command("migrate", verbosity=0)
    last, decision = team.audit_entries.order_by("-id")[:2]
    assert (last.verb, decision.verb) == ("run.cancel", "quarantine.decide")
    assert " ".join(plain(decision).split()) == "found benign: trajectory train-1-0 of run #2"


@pytest.fixture
def before_stages(transactional_db: None) -> Iterator[Callable[[Callable[[], None]], None]]:
    """Calls a function while specs have the form of version 0.2, and migrates what it wrote."""

    def migrate(write: Callable[[], None]) -> None:
        call_command("migrate", "runs", "0006_words", verbosity=0)
        call_command("migrate", "experiments", "0001_initial", verbosity=0)
        write()
        call_command("migrate", verbosity=0)

    yield migrate
    call_command("migrate", verbosity=0)


@pytest.mark.parametrize("table", ["runs_run", "experiments_experiment"])
def test_the_cold_start_of_a_stored_spec_is_a_stage(
    launching_run: Run, before_stages: Callable[[Callable[[], None]], None], table: str
) -> None:
    kept = Experiment.objects.create(team=launching_run.team, name="kept", spec=launching_run.spec)
    cold_start = {"demonstrations": 99, "steps": 7, "recorded": None, "learning_rate": 0.25}

    def write() -> None:
        with connection.cursor() as cursor:
            cursor.execute(
                f"""UPDATE {table} SET spec = jsonb_set(spec #- '{{recipe,stages}}', '{{recipe,cold_start}}', %s)""",
                [json.dumps(cold_start)],
            )

    before_stages(write)
    stored: Run | Experiment = launching_run if table == "runs_run" else kept
    stored.refresh_from_db()
    [stage] = stored.run_spec.recipe.stages
    assert (stage.steps, stage.learning_rate, stage.data.model_dump()["count"]) == (7, 0.25, 99)


def test_a_stored_key_of_a_checkpoint_names_what_no_version_of_a_model_is_called(
    launching_run: Run, alice: User, transactional_db: None
) -> None:
    launching_run.checkpoints.create(step=10, path="x", size_bytes=1, seconds=0.1, at=timezone.now())
    key = serve_checkpoint(launching_run, 10, "evaluation", KeyLimits(), acting_user=alice).key
    call_command("migrate", "serving", "0001_initial", verbosity=0)
    before = ServingKey.objects.get(id=key.id).model_name
    call_command("migrate", verbosity=0)
    after = ServingKey.objects.get(id=key.id).model_name
    assert (before, after) == (f"blue-team/run-{launching_run.number}@10", f"blue-team/runs/{launching_run.number}@10")


def test_of_stored_checkpoints_the_newest_that_their_run_keeps_are_on_the_disk(
    launching_run: Run, transactional_db: None
) -> None:
    for step in range(0, 50, 10):
        launching_run.checkpoints.create(step=step, path="x", size_bytes=1, seconds=0.1, at=timezone.now())
    call_command("migrate", "runs", "0013_judge_version", verbosity=0)
    call_command("migrate", verbosity=0)
    assert [checkpoint.step for checkpoint in launching_run.checkpoints_on_disk] == [40, 30, 20]
