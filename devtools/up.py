"""``./dev up``: start everything, say where it is, show what happens, until somebody says stop."""

import argparse
import json
import os
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from typing import Any

from devtools.errors import Unfit
from devtools.home import ROOT, Home
from devtools.measure import MIB, disk_bytes
from devtools.runs_view import RunRow, RunsView
from devtools.screen import Screen
from devtools.supervisor import TICK_S, Stopped, Supervisor, write_json

DETACHED_CHILD = "PALESTRA_DETACHED_CHILD"
SAMPLE_MODEL = "sample-qwen3"
"""The folder below the models folder that `engine/spec/samples/pretrained.toml` names."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--detach", action="store_true", help="return once everything is up; ./dev down stops it")
    parser.add_argument("--once", action="store_true", help="run the sample run to its end, then stop")
    parser.add_argument("--json", metavar="FILE", type=Path, help="with --once: write the summary there")
    parser.add_argument("--seed", type=int, help="with --once: the seed of the run")
    parser.add_argument("--spec", metavar="FILE.toml", type=Path, help="with --once: run this instead of the sample")
    parser.add_argument("--no-sample", action="store_true", help="start no run in an empty home")


def up(options: argparse.Namespace) -> int:
    _refuse_nonsense(options)
    home = Home.from_environment()
    if options.detach:
        return _up_in_the_background(home)
    screen = Screen()
    supervisor = Supervisor(home, show=screen.show)
    try:
        run = _run_once if options.once else _run_until_stopped
        return run(supervisor, screen, options)
    except Stopped:
        screen.show("stopped before it was done" if options.once else "stopped")
        return 130 if options.once else 0
    finally:
        supervisor.stop()


def _refuse_nonsense(options: argparse.Namespace) -> None:
    if not options.once and (options.json or options.seed is not None or options.spec):
        raise Unfit("--json, --seed and --spec belong to --once")
    if options.once and options.detach:
        raise Unfit("--once and --detach exclude each other")
    for path in (options.json.parent if options.json else None, options.spec):
        if path is not None and not path.exists():
            raise Unfit(f"{path} does not exist")
    if options.json and (options.json.is_dir() or not os.access(options.json.parent, os.W_OK)):
        raise Unfit(f"--json {options.json} cannot be written; name a file in a folder of yours")
    if options.spec and not options.spec.is_file():
        raise Unfit(f"--spec {options.spec} is no file; give the path of a run's TOML file")


# --- until stopped ----------------------------------------------------------------------------------
def _run_until_stopped(supervisor: Supervisor, screen: Screen, options: argparse.Namespace) -> int:
    _start(supervisor, screen)
    with RunsView(supervisor.environment["DATABASE_URL"]) as view:
        if not options.no_sample and view.newest() == []:
            _launch(supervisor, screen)
        _leave_the_terminal_if_detached(screen, supervisor.home)
        while True:
            _watch(supervisor, screen, view.newest())


def _start(supervisor: Supervisor, screen: Screen) -> None:
    screen.show(f"starting Palestra in {supervisor.home.folder}")
    supervisor.start()
    first = json.loads(supervisor.manage("bootstrap"))
    supervisor.finish_start()
    screen.show(f"Palestra is up: {supervisor.url}")
    if first["password"]:
        screen.show(f"sign in as {first['email']} with {first['password']} (shown once; change it at /password)")


def _launch(supervisor: Supervisor, screen: Screen, *arguments: str) -> str:
    """Queue a run; returns its id."""
    launched = json.loads(supervisor.manage("launch_sample", *arguments))
    screen.show(f"run {launched['number']}: {supervisor.url}{launched['path']}")
    return str(launched["run"])


def _watch(supervisor: Supervisor, screen: Screen, runs: list[RunRow] | None) -> None:
    """Look after the services for a second, and show how things stand."""
    until = time.monotonic() + 1
    while time.monotonic() < until:
        supervisor.tick()
        time.sleep(TICK_S)
    if runs is not None:
        supervisor.extra_state["runs"] = [run.as_dict() for run in runs]
    services = supervisor.troubled_services()
    trouble = f"{', '.join(services)} not up · " if services else ""
    if runs:
        current = runs[0]
        others = sum(not run.has_ended for run in runs[1:])
        more = f" (+{others} more)" if others else ""
        screen.status(f"{trouble}{current}{more}", change=f"{trouble}{current.state}{current.phase}{current.step}")
    else:
        screen.status(f"{trouble}no runs yet", change=trouble)


# --- once -------------------------------------------------------------------------------------------
def _run_once(supervisor: Supervisor, screen: Screen, options: argparse.Namespace) -> int:
    began = time.monotonic()
    _start(supervisor, screen)
    arguments = [] if options.seed is None else ["--seed", str(options.seed)]
    if options.spec:
        arguments += ["--spec", str(options.spec.resolve())]
        _make_sample_model(supervisor, screen, options.spec)
    run_id = _launch(supervisor, screen, *arguments)
    with RunsView(supervisor.environment["DATABASE_URL"]) as view:
        run = None
        while run is None or not run.has_ended:
            _watch(supervisor, screen, [run] if run else None)
            run = view.run(run_id) or run
        stored = json.loads(supervisor.manage("run_status", run_id))
        summary = _summary(supervisor, run, stored, seconds=time.monotonic() - began)
    screen.show(str(run))
    if options.json:
        write_json(options.json, summary)
        screen.show(f"summary: {options.json}")
    else:
        screen.show(json.dumps(summary, indent=1))
    return 0 if run.state == "succeeded" else 1


def _make_sample_model(supervisor: Supervisor, screen: Screen, spec: Path) -> None:
    """Make the model of ``pretrained.toml`` where the spec names it and no run has made it before."""
    try:
        model = tomllib.loads(spec.read_text()).get("model")
    except (OSError, ValueError) as error:
        raise Unfit(f"--spec {spec} cannot be read: {error}") from error
    models = Path(supervisor.environment.get("PALESTRA_MODELS", supervisor.home.folder / "models"))
    if not isinstance(model, dict) or model.get("path") != SAMPLE_MODEL or (models / SAMPLE_MODEL).exists():
        return
    models.mkdir(parents=True, exist_ok=True)
    screen.show(f"making the sample's model in {models / SAMPLE_MODEL}")
    command = [sys.executable, "-m", "engine", "make-model", str(models / SAMPLE_MODEL)]
    made = subprocess.run(command, env=supervisor.environment, cwd=ROOT, capture_output=True, text=True)
    if made.returncode:
        raise Unfit(f"the sample's model cannot be made: {(made.stderr.splitlines() or ['no word'])[-1]}")


def _summary(supervisor: Supervisor, run: RunRow, stored: dict[str, Any], *, seconds: float) -> dict[str, Any]:
    """The engine's own summary, what the database holds, and what the whole stack used."""
    home = supervisor.home
    engine_peak = (run.summary or {}).get("peak_rss_mib")
    return {
        "run_id": run.id,
        "state": run.state,
        "failure_reason": run.failure_reason or None,
        "attempts": run.attempt,
        **(run.summary or {}),
        "events_stored": stored["events_stored"],
        "events_duplicated": stored["events_duplicated"],
        "events_missing": stored["last_seq"] - stored["events_stored"],
        "alerts": stored["alerts"],
        "trajectories_stored": stored["trajectories_stored"],
        "engine_peak_rss_mib": engine_peak,
        "peak_rss_mib": round(supervisor.memory.peak_mib),
        "disk_mib": round(disk_bytes([home.folder, home.sockets]) / MIB),
        "environment_disk_mib": round(disk_bytes([Path(sys.prefix)]) / MIB),
        "total_seconds": round(seconds, 1),
        "service_restarts": supervisor.restarts(),
    }


# --- in the background ------------------------------------------------------------------------------
def _up_in_the_background(home: Home) -> int:
    """Start the same command without a terminal, and pass on what it says until it is up."""
    child = subprocess.Popen(
        [sys.executable, "-m", "devtools", *[word for word in sys.argv[1:] if word != "--detach"]],
        cwd=ROOT,
        env=os.environ | {DETACHED_CHILD: "1", "PALESTRA_HOME": str(home.folder)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    assert child.stdout is not None
    for line in child.stdout:
        print(line, end="", flush=True)
    try:
        return child.wait(0.5)  # it closed its output because it ended
    except subprocess.TimeoutExpired:
        print("running in the background; ./dev status shows it, ./dev down stops it")
        return 0


def _leave_the_terminal_if_detached(screen: Screen, home: Home) -> None:
    """From here on a detached supervisor speaks to its log.  What it said so far may hold a password."""
    if os.environ.get(DETACHED_CHILD):
        log = os.open(home.logs / "supervisor.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.close(log)
        screen.show(f"pid {os.getpid()} runs in the background")
