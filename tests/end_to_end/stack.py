"""A whole Palestra of its own for tests, driven only from outside: ``./dev``, REST, signals."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil

ROOT = Path(__file__).resolve().parent.parent.parent
SET_BY_PYTEST = ("DATABASE_URL", "REDIS_URL", "PALESTRA_", "RAY_", "DJANGO_", "PYTEST_", "COV_")
MAKE_KEY = """
from webapp.accounts.models import User
from webapp.accounts.services import create_api_key
owner = User.objects.get(email="owner@palestra.local")
print(create_api_key(owner.memberships.get().team, "tests", ["read", "launch", "review"], acting_user=owner).text)
"""


def small_spec(name: str, *, steps: int = 30, **schedule: Any) -> dict[str, Any]:
    """A run of seconds: the smallest model on the easiest tasks, with a checkpoint every few steps."""
    return {
        "name": name,
        "environment": {"levels": [1]},
        "dataset": {"heldout_tasks": 16},
        "model": {"layers": 1, "hidden_size": 32, "heads": 2, "kv_heads": 1, "head_dim": 16, "intermediate_size": 64},
        "recipe": {
            "preset": "grpo",
            "stages": [{"data": {"kind": "demonstrations", "count": 128}, "steps": 10, "batch_size": 16}],
        },
        "resources": {"threads": 1, "kv_slots": 16, "sandboxes": 4},
        "schedule": {
            "steps": steps, "prompts_per_step": 4, "group_size": 4, "minibatch_trajectories": 16, "checkpoint_every": 4,
        } | schedule,
        "evaluation": {"every": 0, "tasks": 16, "interim_tasks": 8},
    }  # fmt: skip


@dataclass
class Stack:
    """``up`` starts the supervisor in the foreground of a child process; ``down`` ends it and removes the home."""

    home: Path = field(default_factory=lambda: Path(tempfile.mkdtemp(prefix="pe-", dir="/tmp")))
    url: str = ""
    printed: str = ""
    _process: subprocess.Popen[bytes] | None = None
    _key: str = ""

    @property
    def environment(self) -> dict[str, str]:
        clean = {name: value for name, value in os.environ.items() if not name.startswith(SET_BY_PYTEST)}
        return clean | {"PALESTRA_HOME": str(self.home), "PYTHONPATH": str(ROOT)}

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def dev(self, *words: str, timeout_s: float = 120, **more: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "devtools", *words]
        return subprocess.run(
            command, env=self.environment | more, cwd=ROOT, capture_output=True, text=True, timeout=timeout_s
        )

    def up(self) -> None:
        with open(self.home / "up.txt", "wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "devtools", "up", "--no-sample"],
                env=self.environment, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
            )  # fmt: skip
        self.until("everything is up", lambda: self.status()["phase"] == "ready", timeout_s=240)
        self.url = self.status()["url"]
        self._key = self._key or self._make_key()

    def _make_key(self) -> str:
        return self.dev("exec", "python", "manage.py", "shell", "-v0", "-c", MAKE_KEY).stdout.split()[-1]

    def stop(self) -> None:
        """As Ctrl-C does."""
        if self._process is not None:
            self._process.send_signal(signal.SIGINT)
            self._process.wait(120)
            self._process = None

    def remove(self) -> None:
        self.stop()
        shutil.rmtree(self.home, ignore_errors=True)

    def status(self) -> dict[str, Any]:
        self._check_alive()
        status_json = self.dev("status", "--json").stdout
        return json.loads(status_json) if status_json else {"phase": "none"}

    def _check_alive(self) -> None:
        if self._process is not None and self._process.poll() is not None:
            raise AssertionError(f"the supervisor ended:\n{(self.home / 'up.txt').read_text()[-3000:]}")

    # --- over REST --------------------------------------------------------------------------------
    def ask(self, method: str, path: str, **options: Any) -> Any:
        """The answer's JSON.  A service that is just being killed is asked again."""
        deadline = time.monotonic() + 60
        while True:
            try:
                headers = {"Authorization": f"Bearer {self._key}"}
                answer = httpx.request(method, f"{self.url}/api/v1{path}", headers=headers, timeout=10, **options)
                if answer.status_code < 500:
                    break
            except httpx.TransportError:
                pass  # the web is being restarted
            if time.monotonic() > deadline:
                raise AssertionError(f"{method} {path} was not answered for a minute")
            time.sleep(0.2)
        assert answer.is_success, f"{method} {path}: {answer.status_code} {answer.text[:500]}"
        return answer.json()

    def launch(self, spec: dict[str, Any]) -> str:
        return self.ask("POST", "/runs", json=spec)["id"]

    def run(self, run_id: str) -> dict[str, Any]:
        return self.ask("GET", f"/runs/{run_id}")

    def until_step(self, run_id: str, step: int) -> None:
        def reached() -> bool:
            run = self.run(run_id)
            assert run["ended_at"] is None or run["step"] >= step, run
            return run["step"] >= step

        self.until(f"step {step}", reached, timeout_s=180, every_s=0.1)

    def until_ended(self, run_id: str, *, timeout_s: float = 300) -> dict[str, Any]:
        self.until("the end of the run", lambda: self.run(run_id)["ended_at"] is not None, timeout_s=timeout_s)
        return self.run(run_id)

    def events(self, run_id: str) -> Iterator[dict[str, Any]]:
        after = 0
        while (page := self.ask("GET", f"/runs/{run_id}/events", params={"after": after, "limit": 1000}))["items"]:
            yield from page["items"]
            after = page["next_after"]

    def steps_of(self, run_id: str, key: str) -> list[int]:
        """The steps at which a curve has points, in order."""
        found = self.ask("GET", f"/runs/{run_id}/metrics", params={"keys": key, "buckets": 2000})
        return [int(point[0]) for series in found["series"] for point in series["points"]]

    # --- processes --------------------------------------------------------------------------------
    def pid_of(self, name: str, run_id: str) -> int | None:
        """A service, the driver of the run's job, or an actor (``rollout``, ``generator``, ``learner``)."""
        if name == "driver":
            return self._pid_with(lambda words: words[1:4] == ["-m", "engine", "job"] and run_id in words[4])
        if name in ("rollout", "generator", "learner"):
            return self._pid_with(lambda words: words[0].lower().startswith(f"ray::{name}"))
        return next((item["pid"] for item in self.status()["services"] if item["name"] == name), None)

    def _pid_with(self, matches: Callable[[list[str]], bool]) -> int | None:
        for child in psutil.Process(self.pid).children(recursive=True):
            try:
                words = child.cmdline()
            except psutil.Error:
                continue  # it ended while we looked
            if words and matches(words):
                return child.pid
        return None

    def kill_at_step(self, step: int, names: Sequence[str], run_id: str) -> float:
        """kill -9 of each, in the middle of the run; returns when (Unix time)."""
        self.until_step(run_id, 1)
        victims = [self._living(name, run_id) for name in names]
        self.until_step(run_id, step)
        for pid in victims:
            os.kill(pid, signal.SIGKILL)
        return time.time()

    def _living(self, name: str, run_id: str) -> int:
        self.until(f"{name} lives", lambda: self.pid_of(name, run_id) is not None, timeout_s=60, every_s=0.1)
        pid = self.pid_of(name, run_id)
        assert pid is not None
        return pid

    def until(self, what: str, holds: Callable[[], bool], *, timeout_s: float = 60, every_s: float = 0.3) -> None:
        deadline = time.monotonic() + timeout_s
        while not holds():
            self._check_alive()
            assert time.monotonic() < deadline, f"waited {timeout_s} s for: {what}\n{self.dev('status').stdout}"
            time.sleep(every_s)
