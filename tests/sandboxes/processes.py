"""Sandbox services and admins as processes of their own, which can be killed."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path


@dataclass
class Started:
    process: subprocess.Popen[bytes]
    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@contextmanager
def started(log: Path, *arguments: str, port: int = 0) -> Iterator[Started]:
    """``python -m sandboxes ...``, once it listens; ended afterwards if it still lives."""
    command = [sys.executable, "-m", "sandboxes", *arguments, "--port", str(port)]
    log.unlink(missing_ok=True)
    # A pipe that nobody reads would stop it.
    with open(log, "w") as stderr, subprocess.Popen(command, stderr=stderr) as process:
        try:
            yield Started(process, _port(log, process))
        finally:
            process.terminate()
            process.wait()


def _port(log: Path, process: "subprocess.Popen[bytes]") -> int:
    while True:
        for line in log.read_text().splitlines(keepends=True):
            if line.endswith("\n") and (port := json.loads(line).get("port")) is not None:
                return int(port)
        assert process.poll() is None, log.read_text()
        time.sleep(0.05)
