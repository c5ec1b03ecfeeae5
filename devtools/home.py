"""Where one Palestra keeps its things, and what every process of it is told.

A home is a folder (``PALESTRA_HOME``, by default ``.palestra`` in the repository).  Sockets live in
a second, short-lived folder under the system's temporary directory, because the path of a unix
socket may not exceed 107 bytes and a home may lie deep.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import secrets
import stat
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any
from urllib.parse import quote

from devtools.errors import Unfit

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Home:
    folder: Path
    """Everything that must survive a restart."""
    sockets: Path
    """Private to this user, empty after a reboot."""

    @classmethod
    def from_environment(cls) -> "Home":
        folder = Path(os.environ.get("PALESTRA_HOME") or ROOT / ".palestra").expanduser().resolve()
        return cls(folder, socket_folder_of(folder))

    @property
    def logs(self) -> Path:
        return self.folder / "logs"

    @property
    def runs(self) -> Path:
        return self.folder / "runs"

    @property
    def state_file(self) -> Path:
        """Return what the supervisor says about itself and its services, rewritten every second."""
        return self.folder / "supervisor.json"

    @property
    def temporary(self) -> Path:
        """``TMPDIR`` of every service, so that what a killed one leaves is found and dropped."""
        return self.sockets / "tmp"

    @property
    def ray_token_file(self) -> Path:
        return self.folder / "ray" / "auth_token"

    def prepare(self) -> None:
        """Make the folders.  Refuses a home or a socket folder of somebody else."""
        for folder in (self.folder, self.logs, self.runs, self.folder / "ray", self.folder / "celery"):
            make_private(folder)
        make_private(self.sockets)
        make_private(self.temporary)

    def secret(self, name: str) -> str:
        """A random secret of this home, made on first use and readable by its owner only.

        It is there as a whole or not at all: an empty one is what a power cut left, and is made anew.
        """
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists() and not path.read_text():
            path.unlink()
        if not path.exists():
            _create_private(path, secrets.token_hex(32))
        return path.read_text()

    def state(self) -> dict[str, Any]:
        """The last state that a supervisor wrote; empty before the first, and after a power cut in mid-write."""
        try:
            state: dict[str, Any] = json.loads(self.state_file.read_text())
            return state
        except (FileNotFoundError, json.JSONDecodeError):
            return {}


def make_private(folder: Path) -> None:
    """Create ``folder`` with mode 0700, or check that it is ours and nobody else's."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise Unfit(f"cannot make {folder}: {error.strerror}; set PALESTRA_HOME to a folder of yours") from None
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        raise Unfit(f"{folder} belongs to somebody else; set PALESTRA_HOME to a folder of yours")
    if stat.S_IMODE(found.st_mode) & 0o077:
        folder.chmod(0o700)


def _create_private(path: Path, content: str) -> None:
    """Whoever comes second keeps the first one's file, and nobody ever reads half of it."""
    fresh = path.with_name(f"{path.name}.{os.getpid()}")
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    with contextlib.suppress(FileExistsError):
        os.link(fresh, path)
    fresh.unlink()


def socket_folder_of(folder: Path) -> Path:
    """Short and the same at every start, so that the next one finds what the last one left."""
    digest = hashlib.sha256(os.fsencode(folder)).hexdigest()[:10]
    parent = Path(tempfile.gettempdir())
    if len(os.fsencode(parent)) > 20:
        parent = Path("/tmp")
    return parent / f"palestra-{os.geteuid()}-{digest}"


TRIES, BETWEEN_TRIES_S = 5, 0.02


class HomeLock:
    """Held while a supervisor runs in the home; the kernel lets go of it however that process ends."""

    def __init__(self, home: Home) -> None:
        self._path = home.folder / "lock"
        self._file: IO[str] | None = None

    @property
    def is_mine(self) -> bool:
        return self._file is not None

    def acquire(self) -> bool:
        """Tried a few times: somebody who only looks holds it for a moment."""
        for _ in range(TRIES):
            if self._try():
                return True
            time.sleep(BETWEEN_TRIES_S)
        return False

    def _try(self) -> bool:
        file = open(self._path, "a")  # noqa: SIM115 - open for as long as the lock is held
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            return False
        self._file = file
        os.set_inheritable(file.fileno(), False)
        return True

    def release(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def is_held_by_somebody(self) -> bool:
        if not self._path.exists():
            return False
        if self._try():
            self.release()
            return False
        return True


def environment_for(home: Home, *, port: int, ray_jobs_port: int) -> dict[str, str]:
    """Return what every process of this home gets.  Real servers named by the caller win over the embedded ones."""
    given = os.environ
    base_url = f"http://127.0.0.1:{port}"
    return {
        **given,
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), given.get("PATH", os.defpath)]),
        "PYTHONPATH": str(ROOT),
        "PYTHONUNBUFFERED": "1",
        "PALESTRA_HOME": str(home.folder),
        "PALESTRA_RUNS": str(home.runs),
        "PALESTRA_SECRET_KEY": given.get("PALESTRA_SECRET_KEY") or home.secret("secret_key"),
        "PALESTRA_BASE_URL": base_url,
        "DATABASE_URL": given.get("DATABASE_URL") or embedded_database_url(home),
        "REDIS_URL": given.get("REDIS_URL") or f"unix://{home.sockets / 'valkey.sock'}",
        "PALESTRA_RAY_JOBS": f"http://127.0.0.1:{ray_jobs_port}",
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(home.ray_token_file),
        "RAY_USAGE_STATS_ENABLED": "0",
        # Everything here talks over loopback; a proxy of the surroundings must not see it.
        "NO_PROXY": "127.0.0.1,localhost",
        "no_proxy": "127.0.0.1,localhost",
    }


def embedded_database_url(home: Home) -> str:
    return f"postgres://palestra@/palestra?host={quote(str(home.sockets))}"
