"""One attempt of a launched run, as a process on a Ray of its own, against a real service."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from engine.launch.job import launch_from_file
from engine.launch.preflight import BadSpec, spec_from_file
from engine.spec.impossible import AS_STORED
from engine.spec.launch import Launch
from engine.spec.run import RunSpec
from tests.engine.dying import dying
from tests.engine.rigs import entered

ROOT = Path(__file__).parents[3]


class Job:
    """Launches attempts of one run the way a worker does: a file, and a process that reads it."""

    def __init__(self, spec: RunSpec, folder: Path, service: Any) -> None:
        self.folder = folder
        self._spec = spec
        self._service = service
        self._processes: list[subprocess.Popen[str]] = []
        folder.mkdir()

    def start(self, program: Sequence[str] = ("engine",)) -> subprocess.Popen[str]:
        launch = Launch(
            run_id="r1",
            attempt=self._service.attempt,
            spec=self._spec,
            ingest_url=self._service.url,
            token=self._service.token,
            run_dir=str(self.folder),
        )
        file = self.folder / f"attempt-{launch.attempt}.json"
        file.touch(mode=0o600)
        file.write_text(launch.model_dump_json())
        token = self.folder / "ray_token"
        token.write_text("t" * 64)
        environment = {
            **os.environ,
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": str(token),
            "RAY_USAGE_STATS_ENABLED": "0",
        }
        environment.pop("RAY_ADDRESS", None)
        command = [sys.executable, "-m", *program, "job", str(file)]
        process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self._processes.append(process)
        return process

    def close(self) -> None:
        """End what a failed test left behind."""
        for process in self._processes:
            process.kill()
            process.wait()

    def weights(self, step: int) -> bytes:
        return (self.folder / "checkpoints" / f"step-{step:06d}" / "model" / "model.safetensors").read_bytes()


@pytest.fixture
def job(small_spec: RunSpec, tmp_path: Path, service: Any) -> Iterator[Job]:
    job = Job(small_spec, tmp_path / "run", service)
    yield job
    job.close()


@pytest.mark.slow
@pytest.mark.soak  # test_kills.py kills the job's driver, test_resume.py compares the weights of a killed run
def test_a_killed_job_goes_on_as_attempt_two_and_every_event_is_stored_once(
    job: Job, service: Any, undisturbed: Any
) -> None:
    first = job.start(program=dying(signal.SIGKILL, "collect", 3))
    assert first.wait() == -signal.SIGKILL
    service.attempt, service.token = 2, "another secret"
    second = job.start()
    output, _ = second.communicate()
    assert second.returncode == 0, output
    assert job.weights(5) == undisturbed.weights(5)
    last = service.events[-1]
    assert (last["kind"], last["outcome"], last["attempt"]) == ("finished", "succeeded", 2)
    assert service.numbers == list(range(1, last["summary"]["events_emitted"] + 1))
    assert [event["from_step"] for event in service.of_kind("started")] == [0, 2]
    assert "secret" not in output + json.dumps(service.events)


@pytest.mark.slow
@pytest.mark.soak  # test_shipper.py stops the service at every moment
def test_a_run_that_ended_while_the_service_was_down_is_reported_by_the_next_attempt(job: Job, service: Any) -> None:
    first = job.start()
    service.wait_for(entered("collect", 1), 500)
    service.stop()
    assert first.stdout
    while "last events wait for the service" not in (line := first.stdout.readline()):
        assert line, "the job ended although its events have not arrived"
    first.kill()
    first.wait()
    service.start()
    service.attempt = 2
    second = job.start()
    output, _ = second.communicate()
    assert second.returncode == 0, output
    last = service.events[-1]
    assert (last["kind"], last["attempt"]) == ("finished", 1)
    assert service.numbers == list(range(1, last["summary"]["events_emitted"] + 1))
    assert len(service.of_kind("started")) == 1


def test_a_job_without_its_disk_goes_on_with_the_number_that_the_service_knows(job: Job, service: Any) -> None:
    service.events = [{"seq": number, "kind": "log"} for number in range(1, 8)]
    service.attempt = 2
    process = job.start()
    service.wait_for(lambda service: len(service.events) > 7, 300)
    assert service.events[7]["kind"] == "started"
    assert service.events[7]["seq"] == 8
    process.kill()
    process.wait()


def test_a_bad_launch_file_is_refused_without_showing_its_token(tmp_path: Path) -> None:
    (tmp_path / "launch.json").write_text(json.dumps({"run_id": "r", "attempt": 1, "token": "top secret"}))
    command = [sys.executable, "-m", "engine", "job", str(tmp_path / "launch.json")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2
    assert "not a launch file of this version (see spec, ingest_url, run_dir)" in done.stderr
    assert "top secret" not in done.stderr + done.stdout


def test_a_run_whose_spec_a_younger_rule_would_refuse_is_launched_as_it_was_taken(tmp_path: Path) -> None:
    document = {"name": "taken once", "schedule": {"minibatch_trajectories": 7}}
    spec = RunSpec.model_validate(document, context=AS_STORED)
    launch = Launch(
        run_id="r1", attempt=2, spec=spec, ingest_url="http://127.0.0.1:1", token="t", run_dir=str(tmp_path)
    )
    (tmp_path / "attempt-2.json").write_text(launch.model_dump_json())
    assert launch_from_file(tmp_path / "attempt-2.json").spec == spec
    (tmp_path / "run.toml").write_text('name = "new"\n[schedule]\nminibatch_trajectories = 7\n')
    with pytest.raises(BadSpec, match="do not divide into minibatches of 7"):
        spec_from_file(tmp_path / "run.toml")


@pytest.mark.parametrize("environment", [{"id": "import", "path": "os:system"}, {"id": "package", "path": "/tmp"}])
def test_the_services_engine_runs_nobodys_environment(environment: dict[str, str], tmp_path: Path) -> None:
    spec = RunSpec.model_validate({"name": "x", "environment": environment})
    launch = Launch(
        run_id="r1", attempt=1, spec=spec, ingest_url="http://127.0.0.1:1", token="t", run_dir=str(tmp_path)
    )
    (tmp_path / "attempt-1.json").write_text(launch.model_dump_json())
    with pytest.raises(BadSpec, match="runs nobody's environment"):
        launch_from_file(tmp_path / "attempt-1.json")
