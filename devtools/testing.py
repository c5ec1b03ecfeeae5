"""``./dev test``: everything that must hold.

    checks        ruff -> formatting -> types -> import contracts -> migrations
    environments  of selections that need their own, one after another
    tests         parts of one process, three at a time -> most tests, in three processes

The three go on beside each other.  All run even if one fails; the exit code is non-zero if any did, and checks that
failed are named in the last line.  ``./dev test quick``, ``soak``, ``verl``, ``protocols`` and ``backends`` choose
other tests, several names all of theirs; what else is given goes to pytest.
A few tests that fail in a whole selection run once more alone, and are named even if they pass then
(docs/decisions/0048).
"""

import argparse
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from itertools import takewhile
from pathlib import Path

from devtools import protocol_venvs, verl_venv
from devtools.home import ROOT, Home
from devtools.venvs import BACKENDS, Backend

SELECTIONS = {
    "quick": "not slow and not browser and not stack and not soak and not verl and not protocols and not backends",
    "everything": "not soak and not verl and not protocols and not backends",
    "soak": "soak and not backends",
    "verl": "verl",
    "protocols": "protocols",
    "backends": "backends",
}
FOR_CHECKS = {"PALESTRA_SECRET_KEY": "only-for-checks-" + "0" * 50, "DJANGO_SETTINGS_MODULE": "webapp.settings"}
"""Reading the settings takes a secret.  pytest gets neither: tests/conftest.py sets up a home of its own first."""
SOME_FAILED = 1
"""Pytest's exit code if tests ran and some failed."""
NOTHING_SELECTED = 5
"""Pytest's exit code if a selection is empty, as one of the two parts may be when paths are named."""
MOST_AGAIN = 4
"""If more tests fail, it is not by chance."""
PASSED_ALONE = "failed, and passed when it ran once more alone: something in it depends on time or on its neighbours"
LAST_FAILED = Path("v/cache/lastfailed")
"""In pytest's cache."""
LANES = 3
"""Parts beside each other.  Each waits now and then, so two leave one of two cores idle for much of the time."""
BEGAN = time.monotonic()


@dataclass(frozen=True)
class Part:
    """One call of pytest."""

    name: str
    command: Sequence[str]
    processes: int = 1
    """How many processes test; parts with one run beside each other."""
    environment: Callable[[], Sequence[str]] | None = None
    """Makes what the tests run in and returns the beginning of the command, which stands before ``command``."""

    @property
    def cache(self) -> Path:
        """Parts beside each other keep their failures apart."""
        return Path(".pytest_cache") / self.name


def test(options: argparse.Namespace) -> int:
    selections, rest = _chosen(options.passed_on)
    parts = [part for selection in selections for part in _parts(selection, rest)]
    with ThreadPoolExecutor(1) as beside:
        checking = beside.submit(_failed_checks)
        codes = [code for _, code in _run_all(parts, ROOT)] if rest else whole_selections(parts, ROOT)
    passed = 0 in codes and all(code in (0, NOTHING_SELECTED) for code in codes)
    if failed := checking.result():
        print(f"dev: failed beside the tests: {', '.join(failed)}", flush=True)
    return 0 if passed and not failed else 1


def _chosen(words: list[str]) -> tuple[list[str], list[str]]:
    """The selections that are named first, or all that a plain call means; and what goes to pytest."""
    named = list(takewhile(SELECTIONS.__contains__, words))
    return named or ["everything"], words[len(named) :]


def _with_paths(passed_on: list[str], mark: str) -> list[str]:
    """What goes to pytest, and behind it the files that name ``mark``, unless a path is among it.

    Reading all the others takes most of a minute.
    """
    named = any((ROOT / word.partition("::")[0]).exists() for word in passed_on)
    return passed_on if named else [*passed_on, *_files_that_name(mark)]


def _files_that_name(mark: str) -> list[str]:
    named = re.compile(rf"\bpytest\.mark\.{mark}\b")
    files = sorted((ROOT / "tests").rglob("test_*.py"))
    return [str(file.relative_to(ROOT)) for file in files if named.search(file.read_text())]


def _checks() -> dict[str, list[str]]:
    return {
        "ruff": ["ruff", "check", "--quiet", "."],
        "formatting": ["ruff", "format", "--check", "--quiet", "."],
        "types": ["mypy"],
        "import contracts": ["lint-imports", "--no-cache"],
        "migrations": [sys.executable, "manage.py", "makemigrations", "--check", "--dry-run"],
        "installed packages fit together": [sys.executable, "-m", "pip", "check"],
    }


def _parts(selection: str, passed_on: list[str]) -> list[Part]:
    """Those that share a stack in one process, beside those that drive a browser in another; then most in three.

    Those beside verl, protocols and backends need environments of their own, and run only when they are asked for.
    """
    pytest, chosen = [sys.executable, "-m", "pytest", "-q"], SELECTIONS[selection]
    if selection == "backends":
        return [_backend_part(backend, "not soak", passed_on) for backend in BACKENDS]
    if selection == "verl":
        return [Part("verl", [*pytest[1:], "-m", "verl", *_with_paths(passed_on, "verl")], environment=_with_verl)]
    if selection == "protocols":
        marked = ["-m", "protocols", *_with_paths(passed_on, "protocols")]
        return [Part("protocols", [*pytest, *marked], environment=_with_other_libraries)]
    # A file's tests share what its fixtures make, which are runs to their end, so they stay in one process.
    most = [*pytest, "-n", "3", "--dist", "loadfile", "-m", f"({chosen}) and not stack and not browser", *passed_on]
    together = Part("most tests", most, processes=3)
    if selection == "quick":
        return [together]
    stacks = ["-m", f"({chosen}) and stack", *_with_paths(passed_on, "stack")]
    browsers = ["-m", f"({chosen}) and browser and not stack", *_with_paths(passed_on, "browser")]
    parts = [Part("stacks", [*pytest, *stacks]), Part("browsers", [*pytest, *browsers]), together]
    if selection == "soak" and not passed_on:
        parts[:0] = [_backend_part(backend, "soak", passed_on) for backend in BACKENDS]
    return parts


def _backend_part(backend: Backend, which: str, passed_on: list[str]) -> Part:
    """``which``: of its tests."""
    marked = f"backends and {backend.marker} and {which}"
    pytest = ["-m", "pytest", "-q", "-m", marked, *_with_paths(passed_on, backend.marker)]
    return Part(backend.marker, pytest, environment=partial(_with_backend, backend))


def _with_backend(backend: Backend) -> list[str]:
    python = str(backend.python(Home.from_environment().folder))
    if backend.interpreter_variable is None:
        return [python]
    return ["/usr/bin/env", f"{backend.interpreter_variable}={python}", sys.executable]


def _with_verl() -> list[str]:
    return [str(verl_venv.python_of(Home.from_environment().folder))]


def _with_other_libraries() -> list[str]:
    folders = protocol_venvs.made_in(Home.from_environment().folder)
    return ["/usr/bin/env", *(f"{name}={folder}" for name, folder in folders.items())]


def whole_selections(parts: Iterable[Part], folder: Path) -> list[int]:
    """Run all that ``parts`` select in ``folder``; the few of each that fail run once more, alone.

    Returns pytest's exit codes, which are 0 if each of them passes then.
    """
    return [_second_chance(part, code, folder) for part, code in _run_all(map(_with_cache, parts), folder)]


def _with_cache(part: Part) -> Part:
    return replace(part, command=[*part.command, "--cache-clear", "-o", f"cache_dir={part.cache}"])


def _second_chance(part: Part, code: int, folder: Path) -> int:
    failed = _last_failed(folder / part.cache) if code == SOME_FAILED else []
    if not 0 < len(failed) <= MOST_AGAIN:
        return code
    (folder / part.cache / LAST_FAILED).write_text(json.dumps(dict.fromkeys(failed, True)))
    command = [word for word in part.command if word != "--cache-clear"]
    in_one_process = [*command, "--dist", "no", "-n", "0"] if "-n" in command else command
    code = _run(Part(f"{part.name}, failed tests alone", [*in_one_process, "--last-failed"]), folder)
    again = _last_failed(folder / part.cache)
    for test_id in failed:
        print(f"dev: {test_id} {'failed twice' if test_id in again else PASSED_ALONE}", flush=True)
    return code


def _last_failed(cache: Path) -> list[str]:
    try:
        return sorted(json.loads((cache / LAST_FAILED).read_text()))
    except FileNotFoundError:  # pytest removes it when nothing failed
        return []


def _failed_checks() -> list[str]:
    return [name for name, command in _checks().items() if not _passes(name, command)]


def _passes(name: str, command: list[str]) -> bool:
    """Quiet when it holds."""
    began = time.monotonic()
    environment = FOR_CHECKS | os.environ
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    verdict = "ok" if done.returncode == 0 else "FAILED"
    _emit(name, f"{verdict} ({time.monotonic() - began:.1f} s)")
    if done.returncode:
        for line in (done.stdout + done.stderr)[-6000:].splitlines():
            _emit(name, line)
    return done.returncode == 0


def _run_all(parts: Iterable[Part], folder: Path) -> list[tuple[Part, int]]:
    """Parts of one process run beside each other, those that need an environment once it is made; then the others.

    Returns each part as it ran, and pytest's exit code.
    """
    parts = list(parts)
    small = [part for part in parts if part.processes == 1]
    with ThreadPoolExecutor(1) as maker, ThreadPoolExecutor(LANES) as lanes:
        made = [maker.submit(_in_its_environment, part) for part in small if part.environment]
        ran = [(part, lanes.submit(_run, part, folder)) for part in small if not part.environment]
        ran += [(part.result(), lanes.submit(_run, part.result(), folder)) for part in made]
    return [
        *((part, code.result()) for part, code in ran),
        *((part, _run(part, folder)) for part in parts if part.processes > 1),
    ]


def _in_its_environment(part: Part) -> Part:
    assert part.environment is not None
    return replace(part, command=[*part.environment(), *part.command], environment=None)


def _run(part: Part, folder: Path) -> int:
    """Each line of the output says whose it is, for another part may write between them."""
    _emit(part.name, " ".join(part.command[1:]))
    began = time.monotonic()
    with subprocess.Popen(part.command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        assert process.stdout is not None
        for line in process.stdout:
            _emit(part.name, line.decode(errors="replace").rstrip("\n"))
    _emit(part.name, f"{time.monotonic() - began:.0f} s")
    return process.returncode


def _emit(name: str, line: str) -> None:
    print(f"[{time.monotonic() - BEGAN:.0f} s] {name}: {line}\n", end="", flush=True)
