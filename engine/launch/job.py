"""``python -m engine job``: one attempt of a run that the service launched, as a Ray job.

launch file -> spool (goes on with the numbers) -> shipper ─► service
                    ▲                                │ desired
                  events ◄── loop ◄── control ◄────┘
"""

import logging
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from engine.cluster.ray_connection import cluster_ray
from engine.cluster.ray_workers import RayWorkers
from engine.judge_endpoint import has_addresses
from engine.launch import exit_codes
from engine.launch.exit_codes import Attempt
from engine.launch.pinned_dataset import with_pinned_dataset
from engine.launch.pinned_packages import with_pinned_packages
from engine.launch.pinned_tasks import with_pinned_tasks
from engine.launch.preflight import BadSpec, with_pinned_model
from engine.launch.run_files import FileFolder, with_pinned_files
from engine.loop.checkpoint import Checkpoints
from engine.loop.loop import Loop
from engine.loop.quarantine import ALERTS, Quarantine
from engine.loop.run_control import RunControl
from engine.reporting.event_writer import EventWriter
from engine.reporting.security_events import SecurityEvents, log_folder
from engine.reporting.shipper import BACKOFF_S, Ingest, ServiceDown, ServiceRefuses, Shipper
from engine.reporting.spool import Spool, SpoolError
from engine.spec.environment import Environment
from engine.spec.event import Event, Finished
from engine.spec.foreign_environments import Gem, Imported, OpenEnv, Package, VerifiersTaskset
from engine.spec.impossible import AS_STORED
from engine.spec.judge_requirements import endpoints_in
from engine.spec.launch import Launch
from engine.spec.mixture import parts_of
from engine.spec.problems import Problem
from engine.spec.run import RunSpec
from engine.training.recordings import recordings_folder

EVENT: TypeAdapter[Event] = TypeAdapter(Event)
log = logging.getLogger("engine.job")

LAST_WORDS_S = 5.0
"""How long a failed attempt waits for its last log to arrive.  It stays in the spool in any case."""


def launch_from_file(path: Path) -> Launch:
    """The launch that the service wrote down, whose spec it took when the run was submitted.

    Raises BadSpec; never shows the file's content, which holds a token.
    """
    try:
        launch = Launch.model_validate_json(path.read_bytes(), context=AS_STORED)
    except OSError as error:
        raise BadSpec([f"{path}: cannot be read: {error.strerror}"]) from error
    except ValidationError as error:
        places = ", ".join(".".join(map(str, problem["loc"])) for problem in error.errors(include_input=False))
        raise BadSpec([f"{path}: not a launch file of this version (see {places or 'its JSON'})"]) from None
    if not all(_may_run(part.environment, launch) for part in parts_of(launch.spec.environment)):
        raise BadSpec([f"{path}: the service's engine runs nobody's environment; use: python -m engine train"])
    if refusals := [*launch.allowed.refusals(launch.spec), *_keys_for_any_address(launch.spec)]:
        raise BadSpec([f"{path}: {problem}" for problem in refusals])
    run_dir = Path(launch.run_dir)
    spec = with_pinned_model(
        launch.spec, run_dir, named_in=path, anywhere=False, catalog=launch.catalog, judge=launch.judge
    )
    spec = with_pinned_dataset(spec, named_in=path, anywhere=False, catalog=launch.dataset)
    spec = with_pinned_tasks(spec, named_in=path, catalog=launch.tasks)
    spec = with_pinned_packages(spec, named_in=path, catalog=launch.packages)
    spec = with_pinned_files(spec, run_dir, FileFolder(recordings_folder(), anywhere=False))
    return launch.model_copy(update={"spec": spec})


def _may_run(environment: Environment, launch: Launch) -> bool:
    """What stands in no catalog, and at no address that was allowed, is not played."""
    match environment:
        case OpenEnv(url=url):
            return url.rstrip("/") in launch.allowed.openenv
        case Package() | Gem() | VerifiersTaskset():
            return environment.catalog is not None
        case _:
            return not isinstance(environment, Imported)


def _keys_for_any_address(spec: RunSpec) -> Iterator[Problem]:
    """Variables of judges that hold a key alone, which only the command line's user may send where she likes."""
    for name in RunSpec.model_fields:
        for field, asked in endpoints_in(getattr(spec, name), name):
            variable = asked.api_key_variable
            held = "" if variable is None else os.environ.get(variable, "").strip()
            if held and not has_addresses(held):
                message = "the engine's environment holds a key there without the address that it belongs to"
                remedy = f"let whoever runs the service write it as {asked.endpoint}=KEY"
                yield Problem(f"{field}.api_key_variable", variable, message, remedy)


def run_job(launch: Launch) -> int:
    """The exit code (``outcome``)."""
    run_dir = Path(launch.run_dir)
    ingest = Ingest(launch.ingest_url, launch.token, launch.attempt)
    try:
        spool = _opened_spool(run_dir / "spool", ingest)
    except (SpoolError, ServiceRefuses, OSError) as error:
        log.error("%s", error)
        return exit_codes.ATTEMPT_FAILED
    control = RunControl()
    events = EventWriter(spool, launch.attempt, listeners=[lambda _: shipper.wake()])
    workers = RayWorkers(
        launch.spec,
        name=f"run-{launch.run_id}-{launch.attempt}",
        connection=cluster_ray(f"run-{launch.run_id}-{launch.attempt}"),
        report=lambda level, message: events.log(level, "workers", message),
        security_log=log_folder(run_dir),
    )
    quarantine = Quarantine(run_dir / ALERTS)
    loop = Loop(
        launch.spec,
        workers,
        events,
        Checkpoints(run_dir / "checkpoints", keep=launch.spec.schedule.keep_checkpoints),
        control,
        quarantine,
        SecurityEvents(log_folder(run_dir), events, quarantine.alerted),
    )
    shipper = Shipper(
        spool,
        ingest,
        heartbeat=lambda: loop.progress.heartbeat,
        on_change=lambda: _steer(control, shipper),
        on_review_decisions=quarantine.decided,
    )
    shipper.start()
    if (ended := _ended_before(spool)) is not None:
        return _shipped_to_the_end(shipper, ended)
    attempt = Attempt(loop, events)
    code = attempt.run({signal.SIGTERM: lambda: control.end("told to end (SIGTERM)")})
    if attempt.reason:
        log.error("%s", attempt.reason)
    if code == exit_codes.ATTEMPT_FAILED:
        shipper.flush(LAST_WORDS_S)
        return code
    return _shipped_to_the_end(shipper, code)


def _opened_spool(folder: Path, ingest: Ingest) -> Spool:
    """Goes on with the run's numbers, also where an earlier attempt's disk is not at hand."""
    spool = Spool(folder)
    if ingest.attempt > 1 and spool.last_seq == 0:
        while True:
            try:
                if (next_seq := ingest.next_seq()) > 1:
                    spool.continue_at(next_seq)
                break
            except ServiceDown as error:
                log.warning("which number comes next only the service knows, so this waits: %s", error)
                time.sleep(BACKOFF_S[1])
    return spool


def _steer(control: RunControl, shipper: Shipper) -> None:
    if shipper.ended is not None:
        control.end(str(shipper.ended))
    else:
        control.want(shipper.desired)


def _ended_before(spool: Spool) -> int | None:
    """The exit code of an attempt that said ``finished`` and was killed before that arrived."""
    newest = spool.read(spool.last_seq, max_events=1, max_bytes=1)
    if not newest:
        return None
    event = EVENT.validate_json(newest[0])
    if not isinstance(event, Finished):
        return None
    return exit_codes.RUN_FAILED if event.outcome == "failed" else exit_codes.ENDED


def _shipped_to_the_end(shipper: Shipper, code: int) -> int:
    """Wait for the service as long as it takes: SIGTERM ends the waiting, and the events stay in the spool."""
    while not shipper.flush(30.0):
        if shipper.ended is not None:
            log.error("the last events are not taken: %s", shipper.ended)
            return exit_codes.ATTEMPT_FAILED
        log.warning("the run is over; its last events wait for the service")
    shipper.stop()
    return code
