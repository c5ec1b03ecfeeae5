"""Ray's job server, as far as runs need it: what is there, submit, stop.

Submission ids come from the run's row (``run-<id>-<attempt>``), so submitting twice is submitting
once.  The token that Ray's client sends is the one of ``RAY_AUTH_TOKEN_PATH``.
"""

import re
import shlex
import sys
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import requests
from django.conf import settings
from ray.exceptions import AuthenticationError
from ray.job_submission import JobStatus, JobSubmissionClient

REQUEST_TIMEOUT_S = 15.0
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
JobState = Literal["alive", "succeeded", "failed"]


class RayUnreachable(Exception):
    """The job server does not answer or cannot answer: nothing is known about any job."""


@dataclass(frozen=True)
class Job:
    state: JobState
    exit_code: int | None = None
    message: str = ""
    """Ray's own words; after a failure they end with the last lines of the job's log."""

    @property
    def last_words(self) -> str:
        """The last line that is worth showing.  Ray's own line about the entrypoint stands anywhere among them."""
        lines = [_COLOURS.sub("", line).strip() for line in self.message.splitlines()]
        lines = [line for line in lines if line and "Running entrypoint for job" not in line]
        return lines[-1][:300] if lines else ""


class Jobs(Protocol):
    """Each method raises ``RayUnreachable``."""

    def all(self) -> dict[str, Job]:
        """Every job that the cluster remembers, by submission id.  A restarted cluster remembers none."""
        ...

    def submit(self, submission_id: str, entrypoint: str) -> None:
        """Submitting what is there already changes nothing."""
        ...

    def stop(self, submission_id: str) -> None:
        """SIGTERM, then SIGKILL; returns at once.  Stopping what is not there changes nothing."""
        ...


class _Client(JobSubmissionClient):
    def _do_request(self, method: str, endpoint: str, **options: Any) -> requests.Response:
        """Ray's client waits for ever; a hung job server must not hang the worker."""
        return super()._do_request(method, endpoint, timeout=REQUEST_TIMEOUT_S, **options)


class RayJobs:
    def __init__(self, address: str) -> None:
        if not address:
            raise RayUnreachable("PALESTRA_RAY_JOBS is not set")
        try:
            self._client = _Client(address)
        except (ConnectionError, RuntimeError, requests.RequestException, AuthenticationError) as error:
            raise RayUnreachable(f"{address}: {error}") from error

    def all(self) -> dict[str, Job]:
        try:
            found = self._client.list_jobs()
        except (RuntimeError, requests.RequestException) as error:
            raise RayUnreachable(str(error)) from error
        return {job.submission_id: _job(job) for job in found if job.submission_id}

    def submit(self, submission_id: str, entrypoint: str) -> None:
        try:
            self._client.submit_job(entrypoint=entrypoint, submission_id=submission_id)
        except (RuntimeError, requests.RequestException) as error:
            if submission_id not in self.all():
                raise RayUnreachable(f"cannot submit {submission_id}: {error}") from error

    def stop(self, submission_id: str) -> None:
        try:
            self._client.stop_job(submission_id)
        except (RuntimeError, requests.RequestException) as error:
            if submission_id in self.all():
                raise RayUnreachable(f"cannot stop {submission_id}: {error}") from error


def _job(details: Any) -> Job:
    match details.status:
        case JobStatus.SUCCEEDED:
            return Job("succeeded", 0)
        case JobStatus.FAILED | JobStatus.STOPPED:
            return Job(
                "failed", details.driver_exit_code, details.message or f"the job was {str(details.status).lower()}"
            )
        case _:
            return Job("alive")


def engine_command(*arguments: str) -> str:
    """The entrypoint of a job that runs ``python -m engine`` with these arguments, and with what jobs get
    of the environment: the cluster may have inherited more."""
    command = shlex.join([sys.executable, "-m", "workers.engine_environment", "engine", *arguments])
    return f"cd {shlex.quote(str(settings.ROOT))} && exec {command}"


def connect() -> Jobs:
    return RayJobs(settings.PALESTRA_RAY_JOBS)
