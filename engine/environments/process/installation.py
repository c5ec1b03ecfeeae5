"""Environment packages as they are installed: a folder each below the home, by what is in it.

Nothing of a package runs while it is installed.  Its modules are copied, and what it depends on is taken from wheels
alone: building a source distribution would run its author's code with the rights of the engine.
"""

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.environments.process.source import GROUP, PackageRefused, PackageSource
from engine.spec.problems import Problem
from sandboxes.confined import SANDBOX_PYTHON

INSIDE = "/environment"
"""Where the installed folder is read in the process."""
OLDEST_PYTHON = (3, 10)
INSTALL_S = 1800
MOST_BYTES = 8 * 2**30
"""What an installation may take of the disk."""
LOOK_S = 1.0
KEPT_S = 30 * 24 * 3600.0
"""How long an installation is kept that nobody uses."""
PASSED_ON = ("PATH", "HOME", "LANG", "SSL_CERT_FILE", "http_proxy", "https_proxy", "no_proxy")
"""What pip is given of our variables, beside its own: no secret of the engine's is among them."""
FACTS = "import json, sys; print(json.dumps([sys.version_info[:2], sys.base_prefix, sys.prefix, sys.executable]))"


@dataclass(frozen=True)
class Interpreter:
    """A Python of this machine."""

    executable: str
    base: str
    prefix: str
    """It is ``base`` where it belongs to no virtual environment."""

    @property
    def folders(self) -> tuple[tuple[str, str], ...]:
        """What a process reads of it beside the system's folders, where it is here."""
        needed = dict.fromkeys((self.base, self.prefix))
        return tuple((folder, folder) for folder in needed if not folder.startswith("/usr/") and folder != "/usr")


@dataclass(frozen=True)
class InstalledPackage:
    source: PackageSource
    folder: Path
    interpreter: Interpreter

    @property
    def folders(self) -> tuple[tuple[str, str], ...]:
        return ((str(self.folder), INSIDE), *self.interpreter.folders)

    @property
    def python(self) -> str:
        return f"{INSIDE}/venv/bin/python"

    @property
    def modules(self) -> str:
        return f"{INSIDE}/src"


def packages_home() -> Path:
    return Path(os.environ.get("PALESTRA_HOME", ".palestra")).resolve() / "environment-packages"


def interpreter_at(python: str | None) -> Interpreter:
    """Raises PackageRefused."""
    path = SANDBOX_PYTHON if python is None else python
    remedy = f"name an interpreter of Python {'.'.join(map(str, OLDEST_PYTHON))} or later"
    try:
        asked = subprocess.run([path, "-I", "-c", FACTS], capture_output=True, text=True, timeout=60, env={}, cwd="/")
        version, base, prefix, executable = json.loads(asked.stdout)
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        raise PackageRefused([Problem("environment.python", path, f"no Python: {error}", remedy)]) from error
    if tuple(version) < OLDEST_PYTHON:
        raise PackageRefused([Problem("environment.python", path, f"it is Python {version}", remedy)])
    return Interpreter(executable, base, prefix)


def installed(source: PackageSource, python: str | None) -> InstalledPackage:
    """The package in a folder of its own, made where it is not there yet.  Raises PackageRefused."""
    interpreter = interpreter_at(python)
    key = hashlib.sha256(f"{source.digest}\n{interpreter}\n".encode()).hexdigest()
    folder = packages_home() / key
    if not folder.exists():
        packages_home().mkdir(parents=True, exist_ok=True)
        _forget_unused()
        making = Path(tempfile.mkdtemp(prefix=f".{key[:16]}.", dir=packages_home()))
        try:
            _fill(making, source, interpreter)
            _published(making, folder)
        finally:
            shutil.rmtree(making, ignore_errors=True)  # what was published is not there any more
    os.utime(folder)
    return InstalledPackage(source, folder, interpreter)


def _forget_unused() -> None:
    """Remove what nobody has used for long: it is made again when somebody asks for it."""
    for folder in packages_home().iterdir():
        if time.time() - folder.stat().st_mtime > KEPT_S:
            shutil.rmtree(folder, ignore_errors=True)


def entry_of(source: PackageSource, wanted: str | None) -> str:
    """Raises PackageRefused."""
    if wanted is not None:
        return wanted
    if len(source.entries) == 1:
        return source.entries[0][1]
    names = ", ".join(entry for _, entry in source.entries) or "none"
    problem = f"the package has not one entry point of the group {GROUP}: {names}"
    raise PackageRefused([Problem("environment.entry", None, problem, "set environment.entry = 'package.module:Name'")])


def _fill(folder: Path, source: PackageSource, interpreter: Interpreter) -> None:
    for path, content in source.files:
        target = folder / "src" / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
    venv = folder / "venv"
    _run(
        [interpreter.executable, "-I", "-m", "venv", "--without-pip", str(venv)],
        "making the virtual environment",
        folder,
    )
    if source.dependencies:
        pip = [sys.executable, "-m", "pip", "--python", str(venv / "bin" / "python"), "install", "--no-input"]
        wheels_only = ["--quiet", "--disable-pip-version-check", "--only-binary", ":all:", "--no-compile"]
        _run([*pip, *wheels_only, "--", *source.dependencies], f"installing {', '.join(source.dependencies)}", folder)
    _readable(folder)


def _readable(folder: Path) -> None:
    """For the user of the process, who is nobody; nothing in here is a secret."""
    folder.chmod(0o755)
    for path in folder.rglob("*"):
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() or os.access(path, os.X_OK) and path.stat().st_mode & 0o100 else 0o644)


def _run(command: Sequence[str], doing: str, folder: Path) -> None:
    """Raises PackageRefused, also where ``folder`` grows beyond ``MOST_BYTES`` or it takes too long."""
    kept = {name: value for name, value in os.environ.items() if name in PASSED_ON or name.startswith("PIP_")}
    pipes: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "start_new_session": True}
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, text=True, env=kept, cwd="/", **pipes)
    until = time.monotonic() + INSTALL_S
    try:
        while True:
            try:
                _, errors = process.communicate(timeout=LOOK_S)
                break
            except subprocess.TimeoutExpired:
                if time.monotonic() > until:
                    raise _not_installed(doing, "it took too long", "try again") from None
                if (size := _bytes_in(folder)) > MOST_BYTES:
                    remedy = f"it may take {MOST_BYTES} bytes: name fewer or smaller dependencies"
                    raise _not_installed(doing, f"it takes {size} bytes already", remedy) from None
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    if process.returncode != 0:
        remedy = "see that the index has wheels of all of them for this Python"
        raise _not_installed(doing, errors.strip()[-600:], remedy)


def _not_installed(doing: str, message: str, remedy: str) -> PackageRefused:
    return PackageRefused([Problem("environment.path", doing, message, remedy)])


def _bytes_in(folder: Path) -> int:
    """What is there now; pip moves files while one looks."""
    total = 0
    for path in folder.rglob("*"):
        with suppress(OSError):
            total += path.lstat().st_size
    return total


def _published(making: Path, folder: Path) -> None:
    try:
        making.rename(folder)
    except OSError:
        if not folder.exists():  # else somebody else was faster, with the same
            raise
