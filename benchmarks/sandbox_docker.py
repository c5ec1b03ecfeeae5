"""The peer of ``./dev bench sandbox``: ``docker run``, with a daemon that answers or one of our own.

Our own one is in a network namespace without a way out, and its data is in a folder that goes with it.
The image holds nothing: /usr is the host's, mounted read-only, so that the container runs the same interpreter
from the same files as a bare process, plain bubblewrap and a sandbox do.
"""

import io
import os
import shutil
import signal
import subprocess
import tarfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from devtools.process import kill_session, last_lines, spawn

PROGRAMS = ("dockerd", "containerd", "runc", "unshare")
LINKS = {"bin": "usr/bin", "lib": "usr/lib", "lib64": "usr/lib64"}
START_S = 60.0
STOP_S = 30.0
CALL_S = 60.0


class DockerMissing(Exception):
    """Docker cannot be measured here; the message says why."""


@dataclass(frozen=True)
class Docker:
    command: tuple[str, ...]
    """Runs what is appended to it in a container of its own, and removes that."""
    environment: Mapping[str, str]
    description: str


@contextmanager
def docker() -> Iterator[Docker]:
    """An image in a daemon, for as long as the block lasts.  Raises ``DockerMissing``."""
    if shutil.which("docker") is None:
        raise DockerMissing("docker is missing: apt-get install docker.io (docker-cli)")
    environment = dict(os.environ)
    if _server(environment) is None:
        with _own_daemon() as address:
            yield from _with_image(environment | {"DOCKER_HOST": address}, "a daemon of its own")
    else:
        yield from _with_image(environment, "the daemon that was there")


def _with_image(environment: dict[str, str], whose: str) -> Iterator[Docker]:
    name = f"palestra-bench:{os.getpid()}"
    imported = _call(environment, "import", "-", name, given=_image())
    if imported.returncode:
        raise DockerMissing(f"docker import failed: {imported.stderr.decode(errors='replace').strip()}")
    command = ("docker", "run", "--rm", "--network", "none", "--volume", "/usr:/usr:ro", name)
    try:
        tried = _call(environment, *command[1:], "/usr/bin/python3", "--version")
        if tried.returncode:
            raise DockerMissing(f"docker run failed: {tried.stderr.decode(errors='replace').strip()[-300:]}")
        yield Docker(command, environment, f"docker {_server(environment)}, {whose}")
    finally:
        _call(environment, "rmi", "--force", name).check_returncode()


def _image() -> bytes:
    """A tar of links to a /usr that is not in it."""
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w") as tar:
        for folder in ("usr", "proc", "dev", "tmp"):
            entry = tarfile.TarInfo(folder)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(entry)
        for link, target in LINKS.items():
            entry = tarfile.TarInfo(link)
            entry.type, entry.linkname = tarfile.SYMTYPE, target
            tar.addfile(entry)
    return written.getvalue()


@contextmanager
def _own_daemon() -> Iterator[str]:
    """Its address.  It ends with the block, or with this process."""
    if missing := [name for name in PROGRAMS if shutil.which(name) is None]:
        raise DockerMissing(f"no daemon answers, and {', '.join(missing)} missing: apt-get install docker.io")
    if os.geteuid() != 0:
        raise DockerMissing("no daemon answers, and only root can start one")
    with TemporaryDirectory(prefix="pd-", dir="/tmp") as home:
        folder = Path(home)
        process = spawn(
            _daemon_command(folder), log=folder / "log", environment=dict(os.environ), folder=folder,
            death_signal=signal.SIGTERM,
        )  # fmt: skip
        address = f"unix://{folder}/docker.sock"
        try:
            _wait(process, address, folder / "log")
            yield address
        finally:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):  # then it is killed, like whatever it leaves
                process.wait(STOP_S)
            process.kill()
            process.wait()
            kill_session(process.pid)


def _daemon_command(folder: Path) -> list[str]:
    places = [f"--{option}={folder / name}" for option, name in (("data-root", "data"), ("exec-root", "exec"))]
    network = ["--bridge=none", "--iptables=false", "--ip6tables=false"]
    habits = ["--exec-opt=native.cgroupdriver=cgroupfs", "--shutdown-timeout=1", f"--host=unix://{folder}/docker.sock"]
    own = ["unshare", "--net", "--mount", "--", "dockerd"]
    return [*own, *places, f"--pidfile={folder / 'pid'}", *network, *habits]


def _wait(process: subprocess.Popen[bytes], address: str, log: Path) -> None:
    give_up_s = time.monotonic() + START_S
    while _server(os.environ | {"DOCKER_HOST": address}) is None:
        if process.poll() is not None or time.monotonic() > give_up_s:
            raise DockerMissing("dockerd did not start: " + " | ".join(last_lines(log, 3)))
        time.sleep(0.1)


def _server(environment: Mapping[str, str]) -> str | None:
    """The version of the daemon that answers."""
    try:
        asked = _call(environment, "version", "--format", "{{.Server.Version}}")
    except subprocess.TimeoutExpired:
        return None
    return asked.stdout.decode().strip() if asked.returncode == 0 else None


def _call(environment: Mapping[str, str], *words: str, given: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(["docker", *words], env=environment, input=given, capture_output=True, timeout=CALL_S)
