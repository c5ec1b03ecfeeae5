"""From a queued row to a Ray job: claim, write the launch file, submit.

What a kill -9 leaves behind, and who mends it:

* before the claim: a queued row; ``reconcile`` sends the message again.
* after the claim, before the submission: a launching row without a job; ``reconcile`` submits it,
  under the same id.
* after the submission: nothing is missing, because the id was in the row since the claim.
"""

import os
from datetime import datetime, timedelta
from pathlib import Path
from uuid import UUID

import structlog
from django.conf import settings
from django.utils import timezone

from engine.spec.launch import Launch
from webapp import queue
from webapp.foreign_code import allowed_by_settings
from webapp.runs.models import Desired, Run, RunStatus
from webapp.runs.tokens import attempt_token
from workers import ray_jobs
from workers.app import app
from workers.ray_jobs import Jobs, RayUnreachable, engine_command

START_LEASE = timedelta(seconds=120)
"""How long an attempt may take to say its first word: Ray starts its processes and torch is imported."""
BACKOFF_S = (0, 0, 0, 5, 10, 20, 40, 60)
"""Waits before the 1st, 2nd ... attempt; the last one goes on.  A killed process is made good at once; what kills every
attempt, e.g. a full disk, gets some minutes to pass before all are used up."""

log = structlog.get_logger(__name__)


@app.task(name=queue.LAUNCH)
def launch(run_id: str) -> None:
    """Start the next attempt of a queued run.  A second message for the same run does nothing, nor does an early one:
    reconcile sends another.
    """
    run = Run.objects.filter(id=UUID(run_id), state=RunStatus.QUEUED, desired=Desired.RUN).first()
    if run is None or not is_over(run.state_since, back_off(run.attempt)):
        return
    try:
        start_attempt(run, ray_jobs.connect())
    except RayUnreachable as error:
        log.warning("Ray cannot be reached; reconcile tries again", run=run_id, error=str(error))


def is_over(since: datetime, wait: timedelta) -> bool:
    """Say whether it is over, also where ``since`` lies ahead: then the clock was set back, and nobody knows how long
    it has been."""
    return not timedelta() <= timezone.now() - since < wait


def back_off(attempts: int) -> timedelta:
    return timedelta(seconds=BACKOFF_S[min(attempts, len(BACKOFF_S) - 1)])


def start_attempt(run: Run, jobs: Jobs) -> bool:
    """Claim the run and submit its next attempt; return whether we did.  Raises RayUnreachable."""
    before = jobs.all().get(run.submission_id)
    if before is not None and before.state == "alive":
        # Two attempts must never write into the same folder; reconcile comes back.
        jobs.stop(run.submission_id)
        return False
    attempt = run.attempt + 1
    claimed = run.move_to(
        RunStatus.LAUNCHING,
        by="worker",
        attempt=attempt,
        submission_id=f"run-{run.id}-{attempt}",
        lease_until=timezone.now() + START_LEASE,
        heartbeat_at=None,
        heartbeat=None,
        phase="",
        missed_heartbeats=0,
    )
    if claimed:
        submit(run, jobs)
    return claimed


def submit(run: Run, jobs: Jobs) -> None:
    """Submit the run's current attempt; the second time changes nothing.  Raises RayUnreachable."""
    file = _write_launch_file(run)
    jobs.submit(run.submission_id, engine_command("job", str(file)))
    log.info("attempt submitted", run=str(run.id), attempt=run.attempt)


def _write_launch_file(run: Run) -> Path:
    """``<run dir>/attempt-<n>.json``, whole or not at all, and never readable by others."""
    folder = settings.PALESTRA_RUNS / str(run.id)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    document = Launch(
        run_id=str(run.id),
        attempt=run.attempt,
        spec=run.run_spec,
        ingest_url=f"{settings.PALESTRA_INGEST_URL}/ingest/v1/runs/{run.id}/batches",
        token=attempt_token(run.id, run.attempt),
        run_dir=str(folder),
        catalog=None if run.model_version is None else run.model_version.pinned,
        judge=None if run.judge_version is None else run.judge_version.pinned,
        dataset=None if run.dataset_version is None else run.dataset_version.pinned,
        tasks=None if run.task_version is None else run.task_version.pinned,
        packages=[version.pinned for version in run.package_versions.select_related("package__team").order_by("id")],
        allowed=allowed_by_settings(),
    )
    path = folder / f"attempt-{run.attempt}.json"
    unfinished = path.with_suffix(f".{os.getpid()}")
    unfinished.unlink(missing_ok=True)
    with os.fdopen(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(document.model_dump_json())
        file.flush()
        os.fsync(file.fileno())
    unfinished.replace(path)
    return path
