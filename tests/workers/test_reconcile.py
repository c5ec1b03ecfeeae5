"""Whatever dies, a tick mends it or says why it cannot be mended."""

import re
import threading
from datetime import timedelta
from typing import Any

import pytest
from celery.exceptions import SoftTimeLimitExceeded
from django.db import connections
from django.utils import timezone

from engine.spec.run import RunSpec
from webapp import queue
from webapp.accounts.models import User
from webapp.runs.models import Desired, Run, RunStatus
from webapp.runs.services import submit_run
from workers import reconcile as module
from workers.launch import BACKOFF_S, launch
from workers.ray_jobs import Job, RayUnreachable
from workers.reconcile import MOST_MISSED_HEARTBEATS, reconcile

pytestmark = pytest.mark.django_db


def seconds_ago(seconds: float) -> Any:
    return timezone.now() - timedelta(seconds=seconds)


def heartbeat(phase: str = "collect", lasted_s: float = 1.0, **fields: Any) -> dict[str, Any]:
    since = timezone.now().timestamp() - lasted_s
    return {
        "step": 7,
        "total_steps": 60,
        "phase": phase,
        "phase_since": since,
        "waiting_for": None,
        "eta_s": None,
    } | fields


@pytest.fixture
def lost(run: Run, cluster: Any) -> Run:
    """Claimed by a worker that died before it submitted anything, some time ago."""
    launch(str(run.id))
    cluster.restart()
    Run.objects.update(state_since=seconds_ago(20))
    return run


@pytest.fixture
def running(run: Run, cluster: Any, sent: list[Any]) -> Run:
    """Attempt 1 works and speaks."""
    launch(str(run.id))
    now = timezone.now()
    Run.objects.update(
        state=RunStatus.RUNNING,
        heartbeat_at=now,
        lease_until=now + timedelta(seconds=30),
        heartbeat=heartbeat(),
        state_since=now,
    )
    run.refresh_from_db()
    sent.clear()
    return run


def state_of(run: Run) -> str:
    run.refresh_from_db()
    return run.state


def test_a_healthy_run_is_left_alone(running: Run, cluster: Any, sent: list[Any]) -> None:
    before = Run.objects.values().get()
    reconcile()
    assert Run.objects.values().get() == before
    assert (sent, cluster.stopped) == ([], [])


def test_a_lost_message_is_sent_again(run: Run, cluster: Any, sent: list[Any]) -> None:
    sent.clear()
    reconcile()
    assert sent == []  # the first message may still be on its way
    Run.objects.update(state_since=seconds_ago(10))
    reconcile()
    assert sent == [(queue.LAUNCH, (str(run.id),))]


def test_a_clock_that_was_set_back_holds_no_run_up(run: Run, cluster: Any, sent: list[Any]) -> None:
    sent.clear()
    Run.objects.update(state_since=seconds_ago(-3600))
    reconcile()
    assert sent == [(queue.LAUNCH, (str(run.id),))]
    launch(str(run.id))
    cluster.restart()
    assert state_of(run) == RunStatus.LAUNCHING
    Run.objects.update(state_since=seconds_ago(-3600))
    reconcile()
    assert list(cluster.jobs) == [f"run-{run.id}-1"]


def test_a_paused_queued_run_is_kept_back(run: Run, cluster: Any, sent: list[Any]) -> None:
    sent.clear()
    Run.objects.update(state_since=seconds_ago(10), desired=Desired.PAUSE)
    reconcile()
    assert sent == []


def test_a_worker_that_died_between_claim_and_submission_is_finished(run: Run, cluster: Any) -> None:
    launch(str(run.id))
    cluster.restart()
    reconcile()
    assert cluster.jobs == {}  # the worker may be about to submit
    Run.objects.update(state_since=seconds_ago(20))
    reconcile()
    reconcile()
    assert list(cluster.jobs) == [f"run-{run.id}-1"]
    assert state_of(run) == RunStatus.LAUNCHING


def test_a_run_that_cannot_be_followed_holds_up_no_other(
    lost: Run, cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    behind = submit_run(lost.team, RunSpec(name="behind it"), acting_user=User.objects.get())
    launch(str(behind.id))
    Run.objects.filter(id=behind.id).update(desired=Desired.CANCEL, desired_since=seconds_ago(31))
    cluster.jobs[f"run-{lost.id}-0"] = Job("alive")
    followed: list[Any] = []
    for checks in (module.TASK_CHECKS, module.PACKAGE_CHECKS):
        monkeypatch.setattr(type(checks), "follow_all", lambda self, _jobs: followed.append(self))

    def fails(run: Run, _jobs: Any) -> None:
        assert run == lost
        raise RuntimeError("a mistake in our code")

    monkeypatch.setattr(module, "submit", fails)
    reconcile()
    assert (state_of(lost), state_of(behind)) == (RunStatus.LAUNCHING, RunStatus.CANCELLED)
    assert cluster.stopped == [behind.submission_id, f"run-{lost.id}-0"]
    assert followed == [module.TASK_CHECKS, module.PACKAGE_CHECKS]


@pytest.mark.parametrize("ends_the_tick", [RayUnreachable("down"), SoftTimeLimitExceeded()])
def test_what_concerns_all_runs_ends_the_tick_at_the_first(
    lost: Run, cluster: Any, monkeypatch: pytest.MonkeyPatch, ends_the_tick: Exception
) -> None:
    def fails(_run: Run, _jobs: Any) -> None:
        raise ends_the_tick

    monkeypatch.setattr(module, "submit", fails)
    with pytest.raises(type(ends_the_tick)):
        module.follow_jobs(cluster)


def test_a_run_whose_launch_file_cannot_be_written_is_tried_again_so_often_and_then_failed(
    lost: Run, cluster: Any, settings: Any, tmp_path: Any, sent: list[Any]
) -> None:
    sent.clear()
    settings.PALESTRA_RUNS = tmp_path / "file"
    settings.PALESTRA_RUNS.touch()
    reconcile()
    assert state_of(lost) == RunStatus.QUEUED
    assert sent == [(queue.LAUNCH, (str(lost.id),))]
    assert lost.transitions.last().reason == "its launch file cannot be written: Not a directory"
    most = lost.run_spec.schedule.max_attempts
    Run.objects.update(state=RunStatus.LAUNCHING, attempt=most, state_since=seconds_ago(20))
    reconcile()
    assert state_of(lost) == RunStatus.FAILED
    assert (
        lost.failure_reason == f"its launch file cannot be written: Not a directory; that was attempt {most} of {most}"
    )


def test_a_run_whose_spec_this_version_cannot_read_is_failed_with_the_field(lost: Run, cluster: Any) -> None:
    lost.spec["schedule"]["of_another_version"] = 7
    lost.save(update_fields=["spec"])
    reconcile()
    assert state_of(lost) == RunStatus.FAILED
    assert lost.failure_reason.startswith("its spec cannot be read by this version: schedule.of_another_version = 7")
    assert cluster.jobs == {}


def test_a_dead_job_is_restarted_with_the_reason(running: Run, cluster: Any, sent: list[Any]) -> None:
    cluster.die(running)
    reconcile()
    assert state_of(running) == RunStatus.QUEUED
    assert sent == [(queue.LAUNCH, (str(running.id),))]
    assert running.transitions.last().reason == "its job died (exit code 1): OSError: disk full"
    launch(str(running.id))
    running.refresh_from_db()
    assert (running.state, running.attempt, running.heartbeat) == (RunStatus.LAUNCHING, 2, None)


def test_attempts_that_all_die_are_not_used_up_in_a_minute(running: Run, cluster: Any) -> None:
    for attempt in (1, 2):
        cluster.die(running)
        reconcile()
        launch(str(running.id))  # at once
        assert (state_of(running), running.attempt) == (RunStatus.LAUNCHING, attempt + 1)
    cluster.die(running)
    reconcile()
    launch(str(running.id))
    assert (state_of(running), running.attempt) == (RunStatus.QUEUED, 3)
    Run.objects.update(state_since=seconds_ago(BACKOFF_S[3]))
    launch(str(running.id))
    assert (state_of(running), running.attempt) == (RunStatus.LAUNCHING, 4)
    assert sum(BACKOFF_S[min(attempt, len(BACKOFF_S) - 1)] for attempt in range(1, 10)) > 180


def test_a_killed_job_is_called_killed(running: Run, cluster: Any) -> None:
    cluster.die(running, -9, "some harmless line")
    reconcile()
    assert state_of(running) == RunStatus.QUEUED
    assert running.transitions.last().reason == "its job was killed (signal 9)"


def test_a_restarted_cluster_restarts_its_runs(running: Run, cluster: Any) -> None:
    cluster.restart()
    reconcile()
    assert state_of(running) == RunStatus.QUEUED
    assert "Ray cluster was restarted" in running.transitions.last().reason


def test_a_job_that_ended_well_but_unfinished_is_restarted(running: Run, cluster: Any) -> None:
    cluster.jobs[running.submission_id] = Job("succeeded", 0)
    reconcile()
    assert state_of(running) == RunStatus.QUEUED


def test_the_last_attempt_fails_the_run_with_the_reason(running: Run, cluster: Any, sent: list[Any]) -> None:
    most = running.run_spec.schedule.max_attempts
    Run.objects.update(attempt=most, submission_id=f"run-{running.id}-{most}")
    cluster.die(running)
    reconcile()
    assert state_of(running) == RunStatus.FAILED
    assert (
        running.failure_reason == f"its job died (exit code 1): OSError: disk full; that was attempt {most} of {most}"
    )
    assert sent == []


@pytest.mark.parametrize("exit_code", [2, 3])
def test_what_another_attempt_would_only_repeat_fails_at_once(running: Run, cluster: Any, exit_code: int) -> None:
    cluster.die(running, exit_code, "...\nmodel.heads = 0: too few")
    reconcile()
    assert state_of(running) == RunStatus.FAILED
    assert "model.heads = 0: too few" in running.failure_reason


def test_a_stalled_phase_is_ended_and_named(running: Run, cluster: Any, sent: list[Any]) -> None:
    Run.objects.update(heartbeat=heartbeat(lasted_s=400, waiting_for="rollout-0"))
    reconcile()
    assert state_of(running) == RunStatus.QUEUED
    reason = running.transitions.last().reason
    assert reason.startswith("stalled: phase collect of step 7 has lasted since 20")
    assert reason.endswith("more than 300 s, waiting for rollout-0")
    assert cluster.stopped == [running.submission_id]


def test_a_pause_is_no_stall(running: Run, cluster: Any) -> None:
    Run.objects.update(heartbeat=heartbeat("paused", lasted_s=4000), state=RunStatus.PAUSED)
    reconcile()
    assert state_of(running) == RunStatus.PAUSED


def test_a_phase_is_not_called_long_while_we_hear_nothing(running: Run, cluster: Any) -> None:
    Run.objects.update(
        heartbeat=heartbeat(lasted_s=4000), heartbeat_at=seconds_ago(3990), lease_until=seconds_ago(3960)
    )
    reconcile()
    assert state_of(running) == RunStatus.RUNNING


def test_silence_ends_an_attempt_only_after_several_ticks(running: Run, cluster: Any) -> None:
    Run.objects.update(lease_until=seconds_ago(5), heartbeat_at=seconds_ago(35))
    for _ in range(MOST_MISSED_HEARTBEATS - 1):
        reconcile()
        assert state_of(running) == RunStatus.RUNNING
    reconcile()
    assert state_of(running) == RunStatus.QUEUED
    silent_s = re.search(r"has sent nothing for (\d+) s", running.transitions.last().reason)
    assert silent_s is not None
    assert int(silent_s[1]) >= 35
    assert cluster.stopped == [running.submission_id]


def test_nobody_is_called_silent_while_the_service_cannot_be_reached(
    running: Run, cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    Run.objects.update(lease_until=seconds_ago(3600), heartbeat_at=seconds_ago(3600))
    for _ in range(MOST_MISSED_HEARTBEATS - 1):
        reconcile()
    monkeypatch.setattr(module, "_web_answers", lambda: False)
    for _ in range(2 * MOST_MISSED_HEARTBEATS):
        reconcile()
    monkeypatch.setattr(module, "_web_answers", lambda: True)
    reconcile()
    assert state_of(running) == RunStatus.RUNNING  # the outage made us forget the heartbeats that were missed before it


def test_a_batch_clears_the_doubts(running: Run, cluster: Any, client: Any) -> None:
    from webapp.runs.tokens import attempt_token

    Run.objects.update(lease_until=seconds_ago(5), missed_heartbeats=MOST_MISSED_HEARTBEATS - 1)
    client.post(
        f"/ingest/v1/runs/{running.id}/batches",
        '{"attempt": 1, "first_seq": 1, "events": []}',
        content_type="application/json",
        headers={"authorization": f"Bearer {attempt_token(running.id, 1)}"},
    )
    reconcile()
    running.refresh_from_db()
    assert (running.state, running.missed_heartbeats) == (RunStatus.RUNNING, 0)


def test_without_ray_nothing_is_known_and_nothing_changes(running: Run, cluster: Any) -> None:
    cluster.restart()
    cluster.is_up = False
    before = Run.objects.values().get()
    reconcile()
    assert Run.objects.values().get() == before


def test_a_cancel_is_left_to_the_engine_first_and_then_enforced(running: Run, cluster: Any) -> None:
    Run.objects.update(desired=Desired.CANCEL, desired_since=timezone.now())
    reconcile()
    assert state_of(running) == RunStatus.RUNNING
    Run.objects.update(desired_since=seconds_ago(31))
    reconcile()
    assert state_of(running) == RunStatus.CANCELLED
    assert cluster.stopped == [running.submission_id]


def test_a_dead_job_that_was_to_be_cancelled_is_not_restarted(running: Run, cluster: Any, sent: list[Any]) -> None:
    Run.objects.update(desired=Desired.CANCEL)
    cluster.die(running)
    reconcile()
    assert state_of(running) == RunStatus.CANCELLED
    assert sent == []


def test_a_run_that_finished_while_we_looked_keeps_its_end(running: Run, cluster: Any) -> None:
    """The row was read before the last batch, the job died after it."""
    stale = Run.objects.get()
    Run.objects.update(state=RunStatus.SUCCEEDED)
    module._follow(stale, Job("succeeded", 0), cluster, web_answers=True)
    assert state_of(running) == RunStatus.SUCCEEDED


def test_jobs_that_nobody_waits_for_are_stopped_and_foreign_ones_are_not(running: Run, cluster: Any) -> None:
    cluster.jobs |= {
        f"run-{running.id}-0": Job("alive"),
        "run-00000000-0000-0000-0000-000000000000-1": Job("alive"),
        "run-of-somebody-else": Job("alive"),
    }
    reconcile()
    assert cluster.stopped == [f"run-{running.id}-0"]


def test_an_ended_runs_job_may_say_goodbye_before_it_is_stopped(running: Run, cluster: Any) -> None:
    Run.objects.update(state=RunStatus.SUCCEEDED, state_since=timezone.now())
    reconcile()
    assert cluster.stopped == []
    Run.objects.update(state_since=seconds_ago(40))
    reconcile()
    assert cluster.stopped == [running.submission_id]


def test_a_tick_that_dies_between_fencing_and_stopping_is_completed_by_the_next(
    running: Run, cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    Run.objects.update(heartbeat=heartbeat(lasted_s=400))

    def dies(_submission_id: str) -> None:
        raise RayUnreachable("kill -9")

    with monkeypatch.context() as patched:
        patched.setattr(cluster, "stop", dies)
        reconcile()
    assert state_of(running) == RunStatus.QUEUED
    launch(str(running.id))  # finds the old job alive, stops it, and waits
    assert cluster.stopped == [running.submission_id]
    assert state_of(running) == RunStatus.QUEUED


@pytest.mark.django_db(transaction=True)
def test_only_one_tick_works_at_a_time(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    inside, go_on, entered = threading.Event(), threading.Event(), []

    def slow() -> None:
        entered.append(1)
        inside.set()
        go_on.wait(20)

    def tick() -> None:
        reconcile()
        connections.close_all()

    monkeypatch.setattr(module, "resend_lost_messages", slow)
    first = threading.Thread(target=tick)
    first.start()
    inside.wait(20)
    second = threading.Thread(target=tick)
    second.start()
    second.join()
    go_on.set()
    first.join()
    assert len(entered) == 1
    tick()
    assert len(entered) == 2
