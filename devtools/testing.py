"""``./dev test``: everything that must hold, in the order in which it is cheap to find out.

    ruff -> formatting -> types -> import contracts -> migrations -> pytest

All of them run even if one fails; the exit code is non-zero if any did.  ``./dev test quick``, ``soak``, ``verl``,
``protocols`` and ``backends`` choose other tests, several names all of theirs; what else is given goes to pytest.
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
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import takewhile
from pathlib import Path

from devtools import protocol_venvs, verl_venv
from devtools.home import ROOT, Home
from devtools.venvs import BACKENDS, Backend

SELECTIONS = {
    "quick": "not slow and not browser and not stack and not soak and not verl and not protocols and not backends",
    "everything": "not soak and not verl and not protocols and not backends",
    "soak": "soak",
    "verl": "verl",
    "protocols": "protocols",
    "backends": "backends",
}
IN_ENGINE = ("tests/engine",)
"""Where the tests beside protocols and backends are: what is not read needs no time."""
BESIDE_VERL = ("tests/engine/algorithms",)
WITH_A_STACK = ("tests/browser", "tests/end_to_end")
"""Where those are that share a stack or drive a browser."""

FOR_CHECKS = {"PALESTRA_SECRET_KEY": "only-for-checks-" + "0" * 50, "DJANGO_SETTINGS_MODULE": "webapp.settings"}
"""Reading the settings takes a secret.  pytest gets neither: tests/conftest.py sets up a home of its own first."""
SOME_FAILED = 1
"""Pytest's exit code if tests ran and some failed."""
NOTHING_SELECTED = 5
"""Pytest's exit code if a selection is empty, as one of the two parts may be when paths are named."""
MOST_AGAIN = 4
"""If more tests fail, it is not by chance."""
PASSED_ALONE = "failed, and passed when it ran once more alone: something in it depends on time or on its neighbours"
LAST_FAILED = Path(".pytest_cache/v/cache/lastfailed")


def test(options: argparse.Namespace) -> int:
    selections, rest = _chosen(options.passed_on)
    with ThreadPoolExecutor() as beside:  # pip waits for networks and disks, and the checks take one core
        making = [beside.submit(_pytest_commands, selection, rest) for selection in selections]
        failed = [name for name, command in _checks().items() if not _passes(name, command)]
    commands = [command for made in making for command in made.result()]
    codes = [_run("tests", command) if rest else whole_selection(command, ROOT) for command in commands]
    passed = 0 in codes and all(code in (0, NOTHING_SELECTED) for code in codes)
    if failed:
        print(f"dev: failed before the tests: {', '.join(failed)}", file=sys.stderr)
    return 0 if passed and not failed else 1


def _chosen(words: list[str]) -> tuple[list[str], list[str]]:
    """The selections that are named first, or all that a plain call means; and what goes to pytest."""
    named = list(takewhile(SELECTIONS.__contains__, words))
    return named or ["everything"], words[len(named) :]


def _with_paths(passed_on: list[str], folders: Sequence[str]) -> list[str]:
    """What goes to pytest, and behind it the folders where it looks, unless a path is among it."""
    named = any((ROOT / word.partition("::")[0]).exists() for word in passed_on)
    return passed_on if named else [*passed_on, *folders]


def _checks() -> dict[str, list[str]]:
    return {
        "ruff": ["ruff", "check", "--quiet", "."],
        "formatting": ["ruff", "format", "--check", "--quiet", "."],
        "types": ["mypy"],
        "import contracts": ["lint-imports", "--no-cache"],
        "migrations": [sys.executable, "manage.py", "makemigrations", "--check", "--dry-run"],
        "installed packages fit together": [sys.executable, "-m", "pip", "check"],
    }


def _pytest_commands(selection: str, passed_on: list[str]) -> list[list[str]]:
    """Most tests in two processes; then those that share a stack in one, beside those that drive a browser in another.

    Those beside verl, protocols and backends need environments of their own, and run only when they are asked for.
    """
    if selection == "backends":
        return [_backend_command(backend, passed_on) for backend in BACKENDS]
    if selection == "verl":
        python = verl_venv.python_of(Home.from_environment().folder)
        return [[str(python), "-m", "pytest", "-q", "-m", "verl", *_with_paths(passed_on, BESIDE_VERL)]]
    if selection == "protocols":
        folders = protocol_venvs.made_in(Home.from_environment().folder)
        pytest = [sys.executable, "-m", "pytest", "-q", "-m", "protocols", *_with_paths(passed_on, IN_ENGINE)]
        return [["/usr/bin/env", *(f"{name}={folder}" for name, folder in folders.items()), *pytest]]
    pytest, chosen = [sys.executable, "-m", "pytest", "-q"], SELECTIONS[selection]
    by_group = [*pytest, "-n", "2", "--dist", "loadgroup"]
    apart = [*by_group, "-m", f"({chosen}) and (stack or browser)", *_with_paths(passed_on, WITH_A_STACK)]
    together = [*pytest, "-n", "2", "-m", f"({chosen}) and not stack and not browser", *passed_on]
    return [together] if selection == "quick" else [together, apart]


def _backend_command(backend: Backend, passed_on: list[str]) -> list[str]:
    """Makes the backend's environment where it is missing."""
    python = str(backend.python(Home.from_environment().folder))
    pytest = ["-m", "pytest", "-q", "-m", f"backends and {backend.marker}", *_with_paths(passed_on, IN_ENGINE)]
    if backend.interpreter_variable is None:
        return [python, *pytest]
    return ["/usr/bin/env", f"{backend.interpreter_variable}={python}", sys.executable, *pytest]


def whole_selection(command: list[str], folder: Path) -> int:
    """Run all that the pytest ``command`` selects in ``folder``; the few that fail run once more, alone.

    Returns pytest's exit code, which is 0 if each of them passes then.
    """
    code = _run("tests", [*command, "--cache-clear"], folder)
    failed = _last_failed(folder) if code == SOME_FAILED else []
    if not 0 < len(failed) <= MOST_AGAIN:
        return code
    (folder / LAST_FAILED).write_text(json.dumps(dict.fromkeys(failed, True)))
    in_one_process = [*command, "--dist", "no", "-n", "0"] if "-n" in command else command
    code = _run("tests that failed, alone", [*in_one_process, "--last-failed"], folder)
    again = _last_failed(folder)
    for test_id in failed:
        print(f"dev: {test_id} {'failed twice' if test_id in again else PASSED_ALONE}", flush=True)
    return code


def _last_failed(folder: Path) -> list[str]:
    """The names by which pytest finds them; ``--dist loadgroup`` writes a test's group behind its own."""
    try:
        return sorted(re.sub(r"@\w+$", "", name) for name in json.loads((folder / LAST_FAILED).read_text()))
    except FileNotFoundError:  # pytest removes it when nothing failed
        return []


def _passes(name: str, command: list[str]) -> bool:
    """Quiet when it holds."""
    began = time.monotonic()
    environment = FOR_CHECKS | os.environ
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    verdict = "ok" if done.returncode == 0 else "FAILED"
    print(f"{name}: {verdict} ({time.monotonic() - began:.1f} s)", flush=True)
    if done.returncode:
        print((done.stdout + done.stderr)[-6000:], flush=True)
    return done.returncode == 0


def _run(name: str, command: list[str], folder: Path = ROOT) -> int:
    print(f"{name}: {' '.join(command[1:])}", flush=True)
    began = time.monotonic()
    code = subprocess.run(command, cwd=folder).returncode
    print(f"{name}: {time.monotonic() - began:.0f} s", flush=True)
    return code
