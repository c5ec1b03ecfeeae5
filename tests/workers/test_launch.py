"""From a queued row to a job."""

import json
import shlex
import stat
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings as django_settings

from engine.spec.launch import Launch
from webapp.runs.models import Desired, Run, RunStatus
from webapp.runs.tokens import attempt_in
from workers.launch import launch
from workers.ray_jobs import Job

pytestmark = pytest.mark.django_db


def launch_file(run: Run, attempt: int) -> Path:
    return Path(django_settings.PALESTRA_RUNS) / str(run.id) / f"attempt-{attempt}.json"


def test_a_queued_run_becomes_a_job_under_its_own_id(run: Run, cluster: Any) -> None:
    launch(str(run.id))
    run.refresh_from_db()
    assert (run.state, run.attempt, run.submission_id) == (RunStatus.LAUNCHING, 1, f"run-{run.id}-1")
    assert list(cluster.jobs) == [run.submission_id]
    assert run.lease_until is not None


def test_the_launch_file_says_everything_and_is_for_its_owner_only(run: Run, cluster: Any) -> None:
    launch(str(run.id))
    file = launch_file(run, 1)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    document = Launch.model_validate_json(file.read_text())
    assert document.spec == run.run_spec
    assert document.ingest_url == f"http://127.0.0.1:8700/ingest/v1/runs/{run.id}/batches"
    assert attempt_in(document.token, run.id) == 1
    assert list(file.parent.iterdir()) == [file]


def test_a_run_whose_spec_a_younger_rule_would_refuse_is_launched_as_it_was_taken(run: Run, cluster: Any) -> None:
    run.spec["schedule"]["minibatch_trajectories"] = 7
    run.save(update_fields=["spec"])
    launch(str(run.id))
    assert list(cluster.jobs) == [f"run-{run.id}-1"]
    assert json.loads(launch_file(run, 1).read_text())["spec"]["schedule"]["minibatch_trajectories"] == 7


def test_engines_post_to_the_inner_address_if_there_is_one(run: Run, cluster: Any, settings: Any) -> None:
    settings.PALESTRA_INGEST_URL = "http://web:8700"
    launch(str(run.id))
    document = Launch.model_validate_json(launch_file(run, 1).read_text())
    assert document.ingest_url == f"http://web:8700/ingest/v1/runs/{run.id}/batches"


def test_no_secret_of_the_service_reaches_the_job(run: Run, cluster: Any) -> None:
    launch(str(run.id))
    command = shlex.split(cluster.entrypoints[f"run-{run.id}-1"])
    assert json.loads(launch_file(run, 1).read_text())["token"] not in command
    assert command[-5:-1] == ["-m", "workers.engine_environment", "engine", "job"], (
        "tests/workers/test_engine_environment.py"
    )


def test_two_messages_make_one_attempt(run: Run, cluster: Any) -> None:
    launch(str(run.id))
    launch(str(run.id))
    run.refresh_from_db()
    assert (run.attempt, len(cluster.jobs)) == (1, 1)


@pytest.mark.parametrize("desired", [Desired.PAUSE, Desired.CANCEL])
def test_who_is_not_wanted_is_not_launched(run: Run, cluster: Any, desired: str) -> None:
    Run.objects.update(desired=desired)
    launch(str(run.id))
    assert cluster.jobs == {}


def test_without_ray_the_run_stays_queued(run: Run, cluster: Any) -> None:
    cluster.is_up = False
    launch(str(run.id))
    run.refresh_from_db()
    assert (run.state, run.attempt) == (RunStatus.QUEUED, 0)


def test_an_attempt_waits_until_the_job_of_the_last_one_is_gone(run: Run, cluster: Any) -> None:
    launch(str(run.id))
    Run.objects.update(state=RunStatus.QUEUED)
    launch(str(run.id))
    assert cluster.stopped == [f"run-{run.id}-1"]
    assert list(cluster.jobs) == [f"run-{run.id}-1"]
    cluster.jobs[f"run-{run.id}-1"] = Job("failed", -15)
    launch(str(run.id))
    run.refresh_from_db()
    assert run.submission_id == f"run-{run.id}-2"
    assert attempt_in(Launch.model_validate_json(launch_file(run, 2).read_text()).token, run.id) == 2


def test_a_run_that_was_deleted_meanwhile_is_nobodys_error(cluster: Any, db: None) -> None:
    launch("00000000-0000-0000-0000-000000000000")
