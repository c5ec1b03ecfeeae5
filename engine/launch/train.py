"""``python -m engine train``: a run without database and web; its events stay in its folder."""

import asyncio
import json
import os
import re
import signal
import sys
from pathlib import Path
from typing import Any

from rich.console import Console

from engine.cluster.ray_token import use_private_token
from engine.cluster.sandboxes import probe
from engine.cluster.workers import WorkerGroup
from engine.launch import exit_codes
from engine.launch.exit_codes import Attempt
from engine.launch.pinned_dataset import with_pinned_dataset
from engine.launch.preflight import BadSpec, differing_fields, with_pinned_model
from engine.launch.run_files import MOST_WRITTEN, FileFolder, check_stage_files, with_pinned_files
from engine.loop.checkpoint import CheckpointError, Checkpoints
from engine.loop.loop import Loop
from engine.loop.quarantine import ALERTS, Quarantine
from engine.loop.requirements import lacking
from engine.loop.run_control import RunControl
from engine.reporting.console import display_for
from engine.reporting.event_writer import EventWriter
from engine.reporting.security_events import SecurityEvents, log_folder
from engine.reporting.spool import Spool, SpoolError
from engine.spec.event import Finished
from engine.spec.run import RunSpec
from engine.spec.strict import Strict
from sandboxes.interface import SandboxLost, SandboxUnavailable

CANCELLED = 130
"""As a shell reports a program that Ctrl-C ended."""


def train(
    spec: RunSpec, *, file: Path, run_dir: Path | None, resume: bool, in_process: bool, json_file: Path | None
) -> int:
    """The exit code.  ``spec`` is what ``file`` says.  Raises BadSpec before anything is started or written."""
    folder = run_dir or default_run_dir(spec.name)
    again = f"python -m engine train {file} --run-dir {folder} --resume"
    return carry_out(
        spec, file=file, folder=folder, resume=resume, in_process=in_process, json_file=json_file, again=again
    )


def carry_out(
    spec: RunSpec,
    *,
    file: Path,
    folder: Path,
    resume: bool,
    in_process: bool,
    json_file: Path | None,
    again: str,
    measures_only: bool = False,
) -> int:
    """Run what ``file`` says, or only the measurement of its tasks.  ``again`` is the command that goes on with it.

    Returns the exit code.  Raises BadSpec before anything is started or written.
    """
    spec = with_pinned_model(spec, folder, named_in=file, anywhere=True)
    spec = with_pinned_dataset(spec, named_in=file, anywhere=True)
    spec = with_pinned_files(spec, folder, FileFolder(file.parent, anywhere=True))
    if problems := lacking(spec):
        raise BadSpec([f"{file}: {problem}" for problem in problems])
    if in_process and spec.resources.placement.needs_ray:
        remedy = "leave out --in-process, or the table"
        raise BadSpec([f"{file}: resources.placement: one process has no cluster to be placed on; {remedy}"])
    check_stage_files(spec, file.parent, most_written=MOST_WRITTEN)
    _refuse_unwritable(json_file)
    checkpoints = _checkpoints_for(spec, folder, resume=resume)
    try:
        asyncio.run(probe(spec.environment))
        spool = Spool(folder / "spool", lock_timeout_s=1.0)
    except (SandboxUnavailable, SandboxLost, SpoolError, CheckpointError) as error:
        print(f"error: {error}", file=sys.stderr)
        return exit_codes.ATTEMPT_FAILED
    ended = _Ended()
    with display_for(Console(), spec.rl_steps) as display:
        control = RunControl()
        events = EventWriter(spool, _next_attempt(spool), listeners=(display, ended))
        workers = _workers(spec, folder, events, in_process=in_process, recordings=file.parent)
        quarantine = Quarantine(folder / ALERTS)
        security_events = SecurityEvents(log_folder(folder), events, quarantine.alerted)
        loop = Loop(
            spec, workers, events, checkpoints, control, quarantine, security_events, measures_only=measures_only
        )
        attempt = Attempt(loop, events)
        code = attempt.run(
            {signal.SIGINT: lambda: control.want("cancel"), signal.SIGTERM: lambda: control.want("cancel")}
        )
    spool.close()
    return _report_outcome(attempt, code, ended.summary, again=again, folder=folder, json_file=json_file)


def default_run_dir(name: str) -> Path:
    home = Path(os.environ.get("PALESTRA_HOME", ".palestra"))
    return home / "engine" / re.sub(r"[^\w.-]+", "-", name)


def _checkpoints_for(spec: RunSpec, folder: Path, *, resume: bool) -> Checkpoints:
    """Refuses to mix two runs in one folder."""
    if not resume and (folder / "spool").exists():
        raise BadSpec([f"{folder} holds a run already: give --resume to go on with it, or another --run-dir"])
    if resume and not (folder / "spool").exists():
        raise BadSpec([f"{folder} holds no run to resume: leave --resume out, or give the --run-dir of the run"])
    try:
        checkpoints = Checkpoints(folder / "checkpoints", keep=spec.schedule.keep_checkpoints)
        before = checkpoints.newest().state
    except (OSError, CheckpointError) as error:
        raise BadSpec([f"{folder}: {error}"]) from error
    if before is not None and (problems := differing_fields(before.spec, spec)):
        raise BadSpec([str(problem) for problem in problems])
    return checkpoints


def _refuse_unwritable(json_file: Path | None) -> None:
    """Found out before the run and not after it."""
    if json_file is None:
        return
    folder = json_file.parent
    if json_file.is_dir() or not os.access(json_file if json_file.exists() else folder, os.W_OK):
        raise BadSpec([f"--json {json_file} cannot be written; name a file in a folder that exists and is yours"])


def _next_attempt(spool: Spool) -> int:
    """One more than the last that has emitted anything."""
    newest = spool.read(spool.last_seq, max_events=1, max_bytes=1)
    return json.loads(newest[0])["attempt"] + 1 if newest else 1


def _workers(spec: RunSpec, folder: Path, events: EventWriter, *, in_process: bool, recordings: Path) -> WorkerGroup:
    """Ray and torch are imported only by the way that needs them."""
    recordings = recordings.resolve()
    if in_process:
        from engine.cluster.in_process import InProcessWorkers

        return InProcessWorkers(
            spec,
            security_log=log_folder(folder),
            recordings=recordings,
            report=lambda level, message: events.log(level, "workers", message),
        )
    use_private_token(folder / "ray_token")
    from engine.cluster.ray_connection import private_ray
    from engine.cluster.ray_workers import RayWorkers

    return RayWorkers(
        spec,
        name="train",
        connection=private_ray(),
        report=lambda level, message: events.log(level, "workers", message),
        security_log=log_folder(folder.resolve()),
        recordings=recordings,
    )


class _Ended:
    """Keeps the summary of the finished event."""

    def __init__(self) -> None:
        self.summary: dict[str, Any] | None = None

    def __call__(self, emitted: Strict) -> None:
        if isinstance(emitted, Finished):
            self.summary = emitted.model_dump(mode="json")["summary"]


def _report_outcome(
    attempt: Attempt, code: int, summary: dict[str, Any] | None, *, again: str, folder: Path, json_file: Path | None
) -> int:
    if json_file is not None and summary is not None:
        json_file.write_text(json.dumps(summary, indent=2) + "\n")
    if summary is not None:
        print(json.dumps(summary, indent=2))
    if attempt.reason:
        print(f"error: {attempt.reason}", file=sys.stderr)
    if attempt.ending == "succeeded":
        if any((folder / "checkpoints").iterdir()):
            print(f"weights: {folder / 'checkpoints'}")
        return code
    if code != exit_codes.RUN_FAILED:  # which another attempt would end as
        print(f"to go on: {again}", file=sys.stderr)
    return CANCELLED if attempt.ending == "cancelled" else exit_codes.ATTEMPT_FAILED
