"""The verbs that look at a home or end it: down, status, reset, logs, exec."""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from devtools import process
from devtools.errors import Unfit
from devtools.home import ROOT, Home, HomeLock, environment_for
from devtools.runs_view import RunRow

DOWN_TIMEOUT_S = 90.0


def down(_options: argparse.Namespace) -> int:
    home = Home.from_environment()
    lock = HomeLock(home)
    if not lock.is_held_by_somebody():
        print(f"nothing is up in {home.folder}")
        return 0
    pid = home.state().get("pid")
    if pid is None:
        raise Unfit("it is starting this very moment; try again")
    process.send_signal(pid, signal.SIGTERM)
    deadline = time.monotonic() + DOWN_TIMEOUT_S
    while lock.is_held_by_somebody():
        if time.monotonic() > deadline:
            raise Unfit(f"pid {pid} does not stop; see ./dev logs supervisor, or kill -9 {pid}: the next up recovers")
        time.sleep(0.1)
    print("stopped; ./dev up goes on where it stopped")
    return 0


def status(options: argparse.Namespace) -> int:
    """Exit code 0 when everything is up, 3 when not."""
    home = Home.from_environment()
    is_up = HomeLock(home).is_held_by_somebody()
    nothing: dict[str, Any] = {"phase": "starting" if is_up else "down", "services": [], "url": None}
    state = (home.state() if is_up else {}) or nothing
    state.pop("leftovers", None)
    if options.json:
        print(json.dumps({"home": str(home.folder), **state}, indent=1))
    else:
        _print_status(home, state)
    return 0 if state["phase"] == "ready" and all(row["state"] == "up" for row in state["services"]) else 3


def _print_status(home: Home, state: dict[str, Any]) -> None:
    if state["phase"] == "down":
        print(f"down ({home.folder}); ./dev up starts it")
        return
    print(f"{state['phase']} · {state['url'] or '...'} · {home.folder}")
    if not state["services"]:
        return
    print(f"supervisor {state['pid']} · at most {state['peak_rss_mib']} MiB so far")
    print(f"{'service':<10} {'state':<19} {'pid':>8} {'up':>8} {'restarts':>9} {'MiB':>6}")
    for row in state["services"]:
        age = _age(time.time() - row["started_at"]) if row["pid"] else "-"
        numbers = f"{row['pid'] or '-':>8} {age:>8} {row['restarts']:>9} {row['rss_mib']:>6}"
        print(f"{row['name']:<10} {row['state']:<19} {numbers}")
    for run in state.get("runs", []):
        print(RunRow(**run))


def _age(seconds: float) -> str:
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def reset(options: argparse.Namespace) -> int:
    """Remove the home: its database, runs and checkpoints."""
    home = Home.from_environment()
    if HomeLock(home).is_held_by_somebody():
        raise Unfit("it is up; ./dev down first")
    if not home.folder.exists():
        print(f"nothing to remove: {home.folder} does not exist")
        return 0
    _refuse_foreign_folder(home.folder)
    if not options.yes and not _confirmed(home.folder):
        print("nothing was removed")
        return 1
    for folder in (home.folder, home.sockets):
        shutil.rmtree(folder, ignore_errors=folder == home.sockets)
    print(f"removed {home.folder}")
    return 0


def _refuse_foreign_folder(folder: Path) -> None:
    """``PALESTRA_HOME`` may be a mistake; only what ``./dev up`` made is removed."""
    if not (folder / "lock").exists():
        raise Unfit(f"{folder} was not made by ./dev up, so it is not removed")


def _confirmed(folder: Path) -> bool:
    if not sys.stdin.isatty():
        raise Unfit(f"this removes every run in {folder}; say ./dev reset --yes")
    return input(f"Remove {folder} with its database, runs and checkpoints? Type yes: ").strip() == "yes"


def logs(options: argparse.Namespace) -> int:
    """The log, as ``tail`` shows it."""
    home = Home.from_environment()
    names = sorted(path.stem for path in home.logs.glob("*.log"))
    if options.name is None:
        print("\n".join(names) if names else f"no logs in {home.logs} yet")
        return 0
    if options.name not in names:
        raise Unfit(f"there is no log '{options.name}'; there are: {', '.join(names) or 'none yet'}")
    log = home.logs / f"{options.name}.log"
    follow = ["-F"] if options.follow else []
    return subprocess.run(["tail", "-n", str(options.lines), *follow, str(log)]).returncode


def run_command(options: argparse.Namespace) -> int:
    """``./dev exec CMD``: the command with the environment variables of the home, its servers running or not."""
    command = options.passed_on[1:] if options.passed_on[:1] == ["--"] else options.passed_on
    if not command:
        raise Unfit("say what to run: ./dev exec CMD [ARGUMENTS]")
    home = Home.from_environment()
    home.prepare()
    home.secret("ray/auth_token")
    try:
        os.execvpe(command[0], command, _environment_of(home))
    except FileNotFoundError:
        raise Unfit(f"there is no command '{command[0]}'") from None
    except OSError as error:
        raise Unfit(f"'{command[0]}' cannot be run: {error.strerror}") from None


def serve(options: argparse.Namespace) -> int:
    """``./dev serve``: a model or a checkpoint for programs (docs/serving.md)."""
    passed_on = options.passed_on[1:] if options.passed_on[:1] == ["--"] else options.passed_on
    command = [sys.executable, "-m", "engine", "serve-models", *(passed_on or ["--help"])]
    return run_command(argparse.Namespace(passed_on=command))


def _environment_of(home: Home) -> dict[str, str]:
    """That of the running services where there are some."""
    state = home.state()
    url, jobs = state.get("url") or "http://127.0.0.1:8700", state.get("ray_jobs_url") or "http://127.0.0.1:8265"
    environment = environment_for(home, port=int(url.rpartition(":")[2]), ray_jobs_port=int(jobs.rpartition(":")[2]))
    search_path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return environment | {"PYTHONPATH": search_path}
