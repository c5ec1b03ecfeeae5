"""A Docker daemon of the test process: in a network of its own without a way out, its data in the test home."""

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import docker
import pytest

from devtools.process import spawn

START_S = 60
STOP_S = 30


def folder() -> Path:
    return Path(os.environ["PALESTRA_HOME"]) / "docker"


def address() -> str:
    return f"unix://{folder()}/docker.sock"


def missing() -> str | None:
    """Why no daemon can be started here."""
    programs = [name for name in ("dockerd", "containerd", "runc", "unshare") if shutil.which(name) is None]
    if programs:
        return f"{', '.join(programs)} missing: apt-get install docker.io"
    return None if os.geteuid() == 0 else "only root can start a Docker daemon"


@contextlib.contextmanager
def daemon() -> Iterator[docker.APIClient]:
    """It ends, and its containers with it, when the block ends or this process is killed."""
    if reason := missing():
        pytest.skip(reason)
    folder().mkdir(exist_ok=True)
    log = folder() / "log"
    process = spawn(_command(), log=log, environment=dict(os.environ), folder=folder(), death_signal=signal.SIGTERM)
    try:
        client = _client(process, log)
        yield client
        for container in client.containers(all=True):
            client.remove_container(container["Id"], force=True)
        client.close()
    finally:
        process.terminate()
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _command() -> list[str]:
    own = ["unshare", "--net", "--mount", "--", "dockerd"]
    places = [f"--{option}={folder() / name}" for option, name in (("data-root", "data"), ("exec-root", "exec"))]
    network = ["--bridge=none", "--iptables=false", "--ip6tables=false"]
    habits = ["--exec-opt=native.cgroupdriver=cgroupfs", "--shutdown-timeout=1", f"--host={address()}"]
    return [*own, *places, f"--pidfile={folder() / 'pid'}", *network, *habits]


def _client(process: subprocess.Popen[bytes], log: Path) -> docker.APIClient:
    give_up_s = time.monotonic() + START_S
    while True:
        with contextlib.suppress(docker.errors.DockerException):
            return docker.APIClient(base_url=address(), version="auto")
        if process.poll() is not None or time.monotonic() > give_up_s:
            pytest.fail(f"dockerd did not start:\n{log.read_text()[-2000:]}")
        time.sleep(0.05)
