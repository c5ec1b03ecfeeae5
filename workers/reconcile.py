"""Every few seconds: compare each run's row with its Ray job and its heartbeat, and mend what does not fit.

    queued, wanted             -> the launch message is sent again
    model being stored, silent -> its message is sent again; datasets and task sets likewise
    version being checked      -> its job is followed (``checks.py``)
    launching, no job          -> submitted again under the same id; where that cannot be, as a dead job
    job dead, run not finished -> next attempt from the last checkpoint, or failed with the reason
    silent or stalled          -> job stopped, then the same
    cancel not obeyed          -> job stopped, cancelled
    job without a live attempt -> stopped

Every step is a conditional move or safe to repeat, so a tick may die anywhere and the next one goes
on; an advisory lock keeps two ticks from doing the same work at once.  A run that cannot be followed
is left to the next tick, and holds up no other.  If Ray does not answer, nothing is known and nothing
is changed.
"""

import re
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import structlog
from celery.exceptions import SoftTimeLimitExceeded
from django.conf import settings
from django.db import connection
from django.utils import timezone
from pydantic import ValidationError

from engine.spec.problems import problems_in
from engine.spec.run import RunSpec
from webapp import queue
from webapp.catalog.models import DatasetVersion, Measurement, ModelVersion, PackageVersion, TaskSetVersion
from webapp.catalog.version_models import StoredVersion
from webapp.runs.models import ENDED, LIVE, Desired, Run, RunStatus
from workers import ray_jobs
from workers.app import app
from workers.launch import is_over, submit
from workers.package_store import PACKAGE_CHECKS
from workers.ray_jobs import Job, Jobs, RayUnreachable
from workers.task_checks import TASK_CHECKS

RESEND_AFTER = timedelta(seconds=4)
RESEND_STORE_AFTER = timedelta(seconds=60)
RESUBMIT_AFTER = timedelta(seconds=10)
OBEY_WITHIN = timedelta(seconds=30)
"""How long an engine may take to obey a cancel, and an ended run's job to go away."""
MOST_MISSED_HEARTBEATS = 4
"""Ticks in a row with a lapsed lease and a reachable service.  One would not do: after an outage every lease
has lapsed, and the engines need a few seconds to come back."""
POINTLESS_EXIT_CODES = {2: "the engine refused the spec", 3: "the engine gave up"}
"""Ends of a job that another attempt would only repeat."""

_SUBMISSION_ID = re.compile(r"run-([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})-\d+$")
_LOCK = 0x70616C65
log = structlog.get_logger(__name__)


@app.task(name=queue.RECONCILE)
def reconcile() -> None:
    with _only_one() as alone:
        if alone:
            resend_lost_messages()
            resend_lost_messages_about_models()
            resend_lost_messages_about_datasets()
            resend_lost_messages_about_checked_versions()
            try:
                jobs = ray_jobs.connect()
                follow_jobs(jobs)
                TASK_CHECKS.follow_all(jobs)
                PACKAGE_CHECKS.follow_all(jobs)
            except RayUnreachable as error:
                log.warning("Ray cannot be reached; runs are left as they are", error=str(error))


@contextmanager
def _only_one() -> Iterator[bool]:
    """Whether this is the only tick right now.  The lock goes with the connection if the process dies."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_try_advisory_lock(%s)", [_LOCK])
        alone = cursor.fetchone()[0]
    try:
        yield alone
    finally:
        if alone:
            with connection.cursor() as cursor:
                cursor.execute("SELECT pg_advisory_unlock(%s)", [_LOCK])


def resend_lost_messages() -> None:
    waiting = Run.objects.filter(state=RunStatus.QUEUED, desired=Desired.RUN).order_by("state_since")
    for run_id, since in waiting.values_list("id", "state_since"):
        if is_over(since, RESEND_AFTER):
            queue.send(queue.LAUNCH, str(run_id))


def resend_lost_messages_about_models() -> None:
    """A version for which nobody has done anything for a while gets its message again; the task drops what is late."""
    _resend(ModelVersion)


def resend_lost_messages_about_datasets() -> None:
    _resend(DatasetVersion)
    for measurement in Measurement.objects.filter(report__isnull=True, problem__isnull=True).order_by("id"):
        if is_over(measurement.heartbeat_at, RESEND_STORE_AFTER):
            Measurement.objects.filter(id=measurement.id).update(heartbeat_at=timezone.now())
            queue.send(queue.MEASURE_DATASET, str(measurement.id))


def resend_lost_messages_about_checked_versions() -> None:
    _resend(TaskSetVersion)
    _resend(PackageVersion)


def _resend(kind: type[StoredVersion]) -> None:
    for version in kind._default_manager.filter(state__in=kind.unfinished).order_by("id"):
        if is_over(version.heartbeat_at, RESEND_STORE_AFTER):
            kind._default_manager.filter(pk=version.pk).update(heartbeat_at=timezone.now())
            queue.send(kind.store_message, str(version.pk), version.progress_mark)


def follow_jobs(jobs: Jobs) -> None:
    """Raises RayUnreachable."""
    # First the jobs, then the rows: a job that has ended by then has delivered everything that it ever will.
    found = jobs.all()
    web_answers = _web_answers()
    for run in Run.objects.filter(state__in=LIVE).defer("summary"):
        try:
            _follow(run, found.get(run.submission_id), jobs, web_answers=web_answers)
        except (RayUnreachable, SoftTimeLimitExceeded):
            raise
        except Exception:  # the others are not left alone for it, and the next tick tries it again
            log.exception("cannot follow this run now", run=str(run.id))
    _stop_leftovers(found, jobs)


def _follow(run: Run, job: Job | None, jobs: Jobs, *, web_answers: bool) -> None:
    now = timezone.now()
    is_alive = job is not None and job.state == "alive"
    if run.desired == Desired.CANCEL and (not is_alive or now - run.desired_since > OBEY_WITHIN):
        reason = "the engine did not obey in time and was stopped" if is_alive else "its job has ended"
        _give_up(run, jobs, RunStatus.CANCELLED, reason, stop=is_alive)
    elif job is None and run.state == RunStatus.LAUNCHING:
        if is_over(run.state_since, RESUBMIT_AFTER):
            _submit_again(run, jobs)
    elif job is None or job.state != "alive":
        _restart_or_fail(run, jobs, *_why_ended(job), stop=False)
    elif (stalled := _why_stalled(run)) is not None:
        _restart_or_fail(run, jobs, stalled, may_repeat=True, stop=True)
    elif _is_silent(run, now, web_answers=web_answers):
        silent_s = (now - (run.heartbeat_at or run.state_since)).total_seconds()
        reason = f"attempt {run.attempt} has sent nothing for {silent_s:.0f} s although its job lives"
        _restart_or_fail(run, jobs, reason, may_repeat=True, stop=True)


def _submit_again(run: Run, jobs: Jobs) -> None:
    """Give it up where that cannot be: its file may be written at another attempt, a spec is never read.

    Raises RayUnreachable.
    """
    try:
        submit(run, jobs)
    except ValidationError as error:
        problem = problems_in(error, RunSpec)[0]
        _give_up(run, jobs, RunStatus.FAILED, f"its spec cannot be read by this version: {problem}", stop=False)
    except OSError as error:
        reason = f"its launch file cannot be written: {error.strerror or error}"
        _restart_or_fail(run, jobs, reason, may_repeat=True, stop=False)


def _why_ended(job: Job | None) -> tuple[str, bool]:
    """The reason, and whether another attempt could go better."""
    if job is None:
        return "its job is gone: the Ray cluster was restarted", True
    if job.exit_code in POINTLESS_EXIT_CODES:
        return f"{POINTLESS_EXIT_CODES[job.exit_code]}: {job.last_words}", False
    if job.state == "succeeded":
        return "its job ended without finishing the run", True
    if job.exit_code is not None and job.exit_code < 0:
        return f"its job was killed (signal {-job.exit_code})", True  # what it logged before has nothing to do with it
    return f"its job died (exit code {job.exit_code}): {job.last_words}", True


def _why_stalled(run: Run) -> str | None:
    """The stall's reason if one phase lasts too long.

    Measured up to the last heartbeat, not up to now: without heartbeats we do not know the phase.
    """
    heartbeat = run.heartbeat
    if run.state != RunStatus.RUNNING or heartbeat is None or run.heartbeat_at is None:
        return None
    lasted_s, limit_s = run.heartbeat_at.timestamp() - heartbeat["phase_since"], run.run_spec.schedule.stall_timeout_s
    if heartbeat["phase"] == "paused" or lasted_s <= limit_s:
        return None
    since = datetime.fromtimestamp(heartbeat["phase_since"], tz=run.heartbeat_at.tzinfo).isoformat(timespec="seconds")
    waiting = f", waiting for {heartbeat['waiting_for']}" if heartbeat["waiting_for"] else ""
    phase = f"phase {heartbeat['phase']} of step {heartbeat['step']}"
    return f"stalled: {phase} has lasted since {since}, more than {limit_s:.0f} s{waiting}"


def _is_silent(run: Run, now: datetime, *, web_answers: bool) -> bool:
    """Whether the attempt has been silent for so long, with the service reachable, that it must be broken."""
    if run.lease_until is None or now <= run.lease_until:
        return False
    missed_heartbeats = run.missed_heartbeats + 1 if web_answers else 0
    # Only if no batch came meanwhile: that would have renewed the lease.
    unchanged = Run.objects.filter(id=run.id, attempt=run.attempt, lease_until=run.lease_until)
    return bool(unchanged.update(missed_heartbeats=missed_heartbeats)) and missed_heartbeats >= MOST_MISSED_HEARTBEATS


def _restart_or_fail(run: Run, jobs: Jobs, reason: str, may_repeat: bool, *, stop: bool) -> None:
    most = run.run_spec.schedule.max_attempts
    if not may_repeat:
        _give_up(run, jobs, RunStatus.FAILED, reason, stop=stop)
    elif run.attempt >= most:
        _give_up(run, jobs, RunStatus.FAILED, f"{reason}; that was attempt {run.attempt} of {most}", stop=stop)
    elif _give_up(run, jobs, RunStatus.QUEUED, reason, stop=stop):
        queue.send(queue.LAUNCH, str(run.id))


def _give_up(run: Run, jobs: Jobs, state: str, reason: str, *, stop: bool) -> bool:
    """Fence the attempt, then stop its job; in this order, so that it cannot finish in between."""
    fields: dict[str, Any] = {"failure_reason": reason} if state == RunStatus.FAILED else {}
    won = run.move_to(state, by="reconcile", reason=reason, **fields)
    if won:
        log.warning("attempt given up", run=str(run.id), attempt=run.attempt, state=state, reason=reason)
        if stop:
            jobs.stop(run.submission_id)
    return won


def _stop_leftovers(found: dict[str, Job], jobs: Jobs) -> None:
    """Jobs whose attempt nobody waits for any more, e.g. because we died between fencing and stopping.

    Only jobs of runs that we know: the cluster may serve others too.
    """
    names = [_SUBMISSION_ID.match(submission_id) for submission_id, job in found.items() if job.state == "alive"]
    ours = {name[0]: UUID(name[1]) for name in names if name}
    runs = Run.objects.only("state", "state_since", "submission_id").in_bulk(set(ours.values()))
    for submission_id, run_id in ours.items():
        if run_id in runs and _is_leftover(runs[run_id], submission_id):
            jobs.stop(submission_id)


def _is_leftover(run: Run, submission_id: str) -> bool:
    if run.submission_id != submission_id:
        return True
    return run.state in ENDED | {RunStatus.QUEUED} and timezone.now() - run.state_since > OBEY_WITHIN


def _web_answers() -> bool:
    """Whether engines could have reached the service."""
    try:
        with urllib.request.urlopen(f"{settings.PALESTRA_INGEST_URL}/healthz", timeout=3) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False
