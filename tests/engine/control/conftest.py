"""A service to ship to: the protocol of docs/events.md over real HTTP, with a mind to fail."""

import json
import subprocess
import sys
import threading
import time
import tomllib
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from engine.control.shipper import Ingest
from engine.control.spool import Spool
from engine.spec.event import Batch, Desired, Pulse
from engine.spec.run import RunSpec
from engine.spec.trajectory import Task, ToolCall, Trajectory, Turn

ROOT = Path(__file__).parents[3]
sys.path.insert(0, str(Path(__file__).parent))  # for ``rigs``


class Service:
    """Stores what it is sent as the web does: each number once, in order, or 409.

    ``fault`` is asked per request: "drop-before" and "drop-after" close the connection without an
    answer (before or after storing), a number answers with that status, "garbage" with no JSON.
    """

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.pulses: list[Pulse] = []
        self.batches = 0
        self.attempt = 1
        self.token = "secret"
        self.desired: Desired = "run"
        self.fault: Callable[[], str | int | None] = lambda: None
        self._mutex = threading.Lock()
        self._port = 0
        self.start()

    def start(self) -> None:
        service = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                service._handle(self)

            def log_message(self, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", self._port), Handler)
        self._server.daemon_threads = True
        self._port = self._server.server_port
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}/ingest/v1/runs/r1/batches"

    @property
    def ingest(self) -> Ingest:
        return Ingest(self.url, self.token, self.attempt)

    @property
    def numbers(self) -> list[int]:
        return [event["seq"] for event in self.events]

    def of_kind(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in self.events if event["kind"] == kind]

    def wait_for(self, condition: Callable[["Service"], bool], timeout_s: float = 60.0) -> None:
        deadline = time.monotonic() + timeout_s
        while not condition(self):
            assert time.monotonic() < deadline, "the service waited in vain"
            time.sleep(0.01)

    def _handle(self, request: BaseHTTPRequestHandler) -> None:
        fault = self.fault()
        body = request.rfile.read(int(request.headers["Content-Length"]))
        if fault == "drop-before":
            return request.connection.close()
        if isinstance(fault, int):
            return _answer(request, fault, {"detail": "as told"})
        status, answer = self._take(request, body)
        if fault == "drop-after":
            return request.connection.close()
        _answer(request, status, "<html>" if fault == "garbage" else answer)
        return None

    def _take(self, request: BaseHTTPRequestHandler, body: bytes) -> tuple[int, dict[str, Any]]:
        batch = Batch.model_validate_json(body)
        with self._mutex:
            if request.headers["Authorization"] != f"Bearer {self.token}":
                return 401, {}
            if batch.attempt != self.attempt:
                return 410, {}
            self.batches += 1
            if batch.pulse:
                self.pulses.append(batch.pulse)
            next_seq = len(self.events) + 1
            if batch.first_seq > next_seq:
                return 409, {"next_seq": next_seq}
            self.events += [event.model_dump() for event in batch.events if event.seq >= next_seq]
            return 200, {"next_seq": len(self.events) + 1, "desired": self.desired}


def _answer(request: BaseHTTPRequestHandler, status: int, answer: object) -> None:
    body = json.dumps(answer).encode()
    request.send_response(status)
    request.send_header("Content-Length", str(len(body)))
    request.end_headers()
    request.wfile.write(body)


@pytest.fixture
def service() -> Iterator[Service]:
    service = Service()
    yield service
    service.stop()


@pytest.fixture
def spool(tmp_path: Path) -> Iterator[Spool]:
    spool = Spool(tmp_path / "spool", segment_bytes=2000)
    yield spool
    spool.close()


RUN = """
name = "small"
seed = 3
[environment]
id = "python-math"
levels = [1]
[model]
layers = 1
hidden_size = 32
heads = 2
kv_heads = 1
head_dim = 16
intermediate_size = 64
[recipe]
preset = "grpo"
[recipe.reward]
tool_error = -0.5
[recipe.cold_start]
demonstrations = 256
wrong_fraction = 0.2
learning_rate = 3e-3
steps = 200
batch_size = 16
[resources]
threads = 1
kv_slots = 16
sandboxes = 4
rollout_workers = 2
[schedule]
steps = 5
prompts_per_step = 6
group_size = 4
minibatch_trajectories = 8
checkpoint_every = 2
[evaluation]
tasks = 8
interim_tasks = 4
every = 3
"""
"""So small that it runs in seconds; failing tools cost reward, so that every step changes the weights."""


@pytest.fixture(scope="session")
def run_toml(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("spec") / "run.toml"
    file.write_text(RUN)
    return file


@pytest.fixture(scope="session")
def small_spec() -> RunSpec:
    return RunSpec.model_validate(tomllib.loads(RUN))


class Training:
    """``python -m engine train`` in a process of its own, seen through the spool that it writes."""

    def __init__(self, toml: Path, folder: Path) -> None:
        self.folder = folder
        self._toml = toml
        self._processes: list[subprocess.Popen[str]] = []

    def start(self, *options: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "engine", "train", str(self._toml), "--run-dir", str(self.folder), *options]
        process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self._processes.append(process)
        return process

    def close(self) -> None:
        """End what a failed test left behind."""
        for process in self._processes:
            process.kill()
            process.wait()

    def finish(self, *options: str) -> str:
        process = self.start(*options)
        output, _ = process.communicate()
        assert process.returncode == 0, output
        return output

    def events(self) -> list[dict[str, Any]]:
        lines = [
            line
            for path in sorted((self.folder / "spool").glob("*.jsonl"))
            for line in path.read_bytes().split(b"\n")[:-1]
        ]
        return [json.loads(line) for line in lines]

    def of_kind(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in self.events() if event["kind"] == kind]

    def wait_for(self, process: subprocess.Popen[str], condition: Callable[[list[dict[str, Any]]], Any]) -> Any:
        deadline = time.monotonic() + 500
        while not (found := condition(self.events())):
            assert process.poll() is None, process.stdout and process.stdout.read()
            assert time.monotonic() < deadline, self.events()[-3:]
            time.sleep(0.01)
        return found

    def weights(self, step: int) -> bytes:
        return (self.folder / "checkpoints" / f"step-{step:06d}" / "model" / "model.safetensors").read_bytes()

    def state(self, step: int) -> dict[str, Any]:
        return json.loads((self.folder / "checkpoints" / f"step-{step:06d}" / "state.json").read_bytes())

    def lineage(self) -> list[dict[str, Any]]:
        """The events that still count: those of later steps are void when an attempt starts from below them."""
        kept: list[dict[str, Any]] = []
        for event in self.events():
            if event["kind"] == "started":
                kept = [one for one in kept if _still_counts(one, event["from_step"], event["from_cold_start_step"])]
            kept.append(event)
        return kept


def _still_counts(event: dict[str, Any], from_step: int, from_cold_start_step: int) -> bool:
    match event["kind"]:
        case "trajectory":
            return event["trajectory"]["step"] <= from_step
        case "metric" if "sft/loss" in event["values"]:
            return event["step"] <= from_cold_start_step
        case "metric":
            return event["step"] <= from_step
        case _:
            return True


@pytest.fixture
def training(run_toml: Path, tmp_path: Path) -> Iterator[Training]:
    training = Training(run_toml, tmp_path / "run")
    yield training
    training.close()


@pytest.fixture(scope="session")
def undisturbed(run_toml: Path, tmp_path_factory: pytest.TempPathFactory) -> Training:
    """The same run from start to end, which nobody disturbed."""
    training = Training(run_toml, tmp_path_factory.mktemp("undisturbed") / "run")
    training.finish("--in-process")
    return training


PARTS = """
name = "parts"
seed = 3
[environment]
id = "python-math"
levels = [1]
[environment.sandbox]
snapshots = true
[dataset]
train_tasks = 24
[model]
layers = 1
hidden_size = 48
heads = 2
kv_heads = 1
head_dim = 24
intermediate_size = 96
[recipe.credit]
kind = "attribution"
[recipe.reward]
tool_error = -0.5
[recipe.selection]
masks = ["overlong", "incomplete", "void-turn", "repetitive", "unreadable"]
keep_groups = 0.75
[recipe.selection.dynamic_sampling]
max_rounds = 2
[recipe.purification]
share = 0.5
[recipe.expert_starts]
share = 0.5
[recipe.cold_start]
demonstrations = 2048
wrong_fraction = 0.0
tool_error_fraction = 0.1
learning_rate = 5e-3
steps = 140
batch_size = 32
[resources]
threads = 1
kv_slots = 16
sandboxes = 4
rollout_workers = 2
[schedule]
steps = 5
prompts_per_step = 6
group_size = 4
minibatch_trajectories = 8
checkpoint_every = 2
[evaluation]
tasks = 8
interim_tasks = 4
every = 3
"""
"""Few tasks, which come again, and a policy that half knows them: every part of the recipe has something to do."""


@pytest.fixture(scope="session")
def parts_toml(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("parts-spec") / "run.toml"
    file.write_text(PARTS)
    return file


@pytest.fixture(scope="session")
def parts_spec() -> RunSpec:
    return RunSpec.model_validate(tomllib.loads(PARTS))


@pytest.fixture
def parts_training(parts_toml: Path, tmp_path: Path) -> Iterator[Training]:
    training = Training(parts_toml, tmp_path / "run")
    yield training
    training.close()


@pytest.fixture(scope="session")
def undisturbed_parts(parts_toml: Path, tmp_path_factory: pytest.TempPathFactory) -> Training:
    training = Training(parts_toml, tmp_path_factory.mktemp("undisturbed-parts") / "run")
    training.finish("--in-process")
    return training


def rollout(
    *,
    group: int = 0,
    index: int = 0,
    step: int = 1,
    task: int = 0,
    turns: int = 2,
    success: bool = True,
    reward: float | None = None,
    prefilled: int = 0,
    mark: int = 0,
    **fields: Any,
) -> Trajectory:
    """Calls the tool in all turns but the last, which answers.  Turn t says the tokens [t, ``mark``]."""
    call = ToolCall(name="python", arguments="1", output="1", status="ok", seconds=0.5)
    earned = float(success) if reward is None else reward
    made = [
        Turn(
            context_ids=[9],
            context_text="?",
            token_ids=[number, mark],
            pieces=["a", "b"],
            logprobs=[-0.5, -0.5],
            policy_versions=[step - 1] * 2,
            tool_call=call if number < turns - 1 else None,
            prefilled=number < prefilled,
        )
        for number in range(turns)
    ]
    return Trajectory.model_validate(
        {
            "id": f"train-{step}-{group}-{index}",
            "purpose": "train",
            "step": step,
            "group": group,
            "index": index,
            "task": Task(id=f"train-{task}", split="train", level=1, question=f"{task}+1=?", answer="1"),
            "turns": made,
            "stop_reason": "answered",
            "answer": "1",
            "success": success,
            "reward": earned,
            "rewards": {"outcome": earned},
            **fields,
        }
    )


@pytest.fixture(name="rollout")
def _rollout() -> Callable[..., Trajectory]:
    return rollout
