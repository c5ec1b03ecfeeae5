"""The contract of ``ray_jobs``, against a real Ray head."""

import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest

from devtools import ray_head
from workers.ray_jobs import Job, RayJobs, RayUnreachable

Answer = TypeVar("Answer")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def jobs() -> Iterator[RayJobs]:
    ports = ray_head.choose_ports()
    token = Path(os.environ["RAY_AUTH_TOKEN_PATH"]).read_text()
    address = f"http://127.0.0.1:{ports['dashboard-port']}"
    with tempfile.TemporaryDirectory(prefix="ptr-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        command = ray_head.head_command(ports, Path(folder))
        with open(Path(folder) / "head.log", "wb") as log:
            head = subprocess.Popen(command, stdout=log, stderr=log, env=os.environ | ray_head.environment(ports))
        try:
            wait_for(lambda: ray_head.answers(address, token), timeout_s=120)
            yield RayJobs(address)
        finally:
            head.terminate()
            head.wait(60)


def wait_for(ready: Callable[[], bool], *, timeout_s: float = 60) -> None:
    deadline = time.monotonic() + timeout_s
    while not ready():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.2)


def answered(ask: Callable[[], Answer]) -> Answer:
    """Ask again, as reconcile does: on a busy machine Ray's head does not see its own agent for some seconds."""
    for _ in range(8):
        try:
            return ask()
        except RayUnreachable:
            time.sleep(2)
    return ask()


def submit(jobs: RayJobs, submission_id: str, entrypoint: str) -> None:
    answered(lambda: jobs.submit(submission_id, entrypoint))


def ended(jobs: RayJobs, submission_id: str) -> Job:
    wait_for(lambda: answered(jobs.all)[submission_id].state != "alive")
    return answered(jobs.all)[submission_id]


def test_a_job_is_alive_until_it_ends_and_then_says_how(jobs: RayJobs) -> None:
    submit(jobs, "good", "sleep 5")
    assert answered(jobs.all)["good"].state == "alive"
    submit(jobs, "bad", "echo the disk is full; exit 3")
    assert ended(jobs, "good").state == "succeeded"
    bad = ended(jobs, "bad")
    assert (bad.state, bad.exit_code, bad.last_words) == ("failed", 3, "the disk is full"), bad.message


def test_submitting_twice_is_submitting_once(jobs: RayJobs, tmp_path: Path) -> None:
    for _ in range(2):
        submit(jobs, "twice", f"echo x >> {tmp_path}/lines; sleep 1")
    ended(jobs, "twice")
    assert (tmp_path / "lines").read_text() == "x\n"


def test_a_stopped_job_has_failed_and_stopping_the_unknown_changes_nothing(jobs: RayJobs) -> None:
    submit(jobs, "long", "exec sleep 600")
    answered(lambda: jobs.stop("long"))
    assert ended(jobs, "long").state == "failed"
    answered(lambda: jobs.stop("long"))
    answered(lambda: jobs.stop("never submitted"))


def test_a_job_server_that_is_not_there_is_unreachable() -> None:
    for address in ("http://127.0.0.1:9", ""):
        with pytest.raises(RayUnreachable):
            RayJobs(address)
