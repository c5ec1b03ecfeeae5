"""``python -m engine serve-models``: models and checkpoints behind OpenAI's and Anthropic's endpoints, for keys.

With a file (TOML, or JSON as the service writes it) it serves what stands there, and reads it again when it changes;
with ``--model`` or ``--run`` it serves that one to a key that it makes and prints.
"""

import argparse
import asyncio
import json
import logging
import os
import secrets
import signal
import socket
import tomllib
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from engine.child_process import end_with_parent
from engine.launch.preflight import BadSpec
from engine.loop.generator_requirements import free_memory
from engine.models.origin import home
from engine.rollout.agents.connection import DIALECTS
from engine.rollout.agents.server import ProxyServer
from engine.serving.models.callers import ServedDoor, digest_of
from engine.serving.models.shelf import Room, Shelf
from engine.serving.models.usage_log import UsageLog
from engine.spec.problems import Problem, problems_in
from engine.spec.serving import ServedFile, ServedKey, ServedModel

LOOK_EVERY_S = 0.5
SWEEP_EVERY_S = 5.0
GRACE_S = 10.0
"""How long calls may go on once the server is to end."""
MOST_CONNECTIONS = 512
USUAL_SHARE = 0.5
"""The share of the memory that is free at the start, which all models together may take unless told."""
log = logging.getLogger(__name__)


def serve_models(options: argparse.Namespace) -> int:
    """Serve until it is stopped.  Raises BadSpec."""
    if options.new_key:
        key = new_key()
        print(json.dumps({"key": key, "sha256": digest_of(key.encode())}))
        return 0
    file = _file(options)
    memory = int(options.memory_gib * 2**30) if options.memory_gib else int(free_memory() * USUAL_SHARE)
    if options.with_parent:
        end_with_parent(os.getppid())
    room = Room(memory, slots=options.slots, threads=options.threads, idle_s=options.idle)
    asyncio.run(_serve(options, file, room))
    return 0


def new_key() -> str:
    return f"pst-{secrets.token_hex(32)}"


def read_file(path: Path) -> ServedFile:
    """Raises BadSpec, which names field and line."""
    try:
        content = path.read_bytes()
        document: Any = json.loads(content) if path.suffix == ".json" else tomllib.loads(content.decode())
        return ServedFile.model_validate(document)
    except FileNotFoundError as missing:
        raise BadSpec([f"{path}: there is no such file; give the path of a file of models and keys"]) from missing
    except ValidationError as error:
        lines = [
            f"{path}: {'.'.join(map(str, fault['loc'])) or 'file'}: {fault['msg'].removeprefix('Value error, ')}"
            for fault in error.errors(include_url=False)
        ]
        raise BadSpec(lines) from error
    except (OSError, ValueError) as error:
        raise BadSpec([f"{path}: cannot be read: {error}"]) from error


def _file(options: argparse.Namespace) -> ServedFile:
    if options.file is not None:
        return read_file(options.file)
    if options.step is not None and options.which is None:
        raise BadSpec([str(Problem("--step", options.step, "a folder has no steps", "remove it, or give --run"))])
    key = new_key()
    name = options.name or _usual_name(options)
    try:
        model = ServedModel(
            name=name, folder=options.model, run=options.which, step=options.step, context_tokens=options.context
        )
    except ValidationError as error:
        raise BadSpec([str(_of_option(problem)) for problem in problems_in(error, ServedModel)]) from error
    print(f"model {name}, key {key}", flush=True)
    unlimited = {"requests_per_minute": 100_000, "parallel": 256}
    return ServedFile(
        models=[model], keys=[ServedKey(id="own", sha256=digest_of(key.encode()), model=name, **unlimited)]
    )


def _of_option(problem: Problem) -> Problem:
    """The problem of a field of ServedModel, as one of the option that it comes from."""
    if problem.field == "name":
        return replace(problem, field="--name", remedy="use letters, digits, . _ @ / -")
    return replace(problem, field={"context_tokens": "--context", "step": "--step"}[problem.field])


def _usual_name(options: argparse.Namespace) -> str:
    source = options.model.resolve().name if options.model is not None else Path(options.which).name
    return source if options.step is None else f"{source}@{options.step}"


async def _serve(options: argparse.Namespace, file: ServedFile, room: Room) -> None:
    shelf = Shelf(room)
    if options.file is None:
        await shelf.check(file.models[0])
    usage = UsageLog(options.usage or home() / "serving" / "usage")
    door = ServedDoor(file, shelf, usage)
    try:
        listener = socket.create_server((options.host, options.port), backlog=MOST_CONNECTIONS)
    except OSError as error:
        problem = Problem("--port", options.port, str(error.strerror), "use another port, or 0 for any that is free")
        raise BadSpec([str(problem)]) from error
    listener.setblocking(False)
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    address = f"http://{options.host}:{listener.getsockname()[1]}"
    server = ProxyServer(door, most_connections=MOST_CONNECTIONS)
    try:
        async with server.serving(listener):
            print(f"serving {', '.join(model.name for model in file.models) or 'nothing yet'} at {address}/v1: "
                  f"{', '.join(DIALECTS)}", flush=True)  # fmt: skip
            looking = asyncio.create_task(_look_after(door, shelf, file, options))
            await stopping.wait()
            looking.cancel()
            door.closing = True
            await server.finish(GRACE_S)
    finally:
        door.write_refusals()
        await shelf.close()
        usage.close()


async def _look_after(door: ServedDoor, shelf: Shelf, file: ServedFile, options: argparse.Namespace) -> None:
    """Read the file again when it has changed, say which of its models cannot be served, unload what is idle, and say
    that all is well."""
    seen = _stamp(options.file)
    new: asyncio.Queue[ServedModel] = asyncio.Queue()
    known = list[ServedModel]()

    def look_at(models: Sequence[ServedModel]) -> None:
        for model in models:
            if model not in known:
                new.put_nowait(model)
        known[:] = models

    async def check() -> None:
        model = await new.get()
        try:
            await shelf.check(model)
        except BadSpec as unfit:
            log.error("model %s cannot be served: %s", model.name, "; ".join(unfit.lines))

    async def look() -> None:
        nonlocal seen
        stamp = _stamp(options.file)
        if stamp != seen:
            seen = stamp
            try:
                changed = await asyncio.to_thread(read_file, options.file)
                door.serve(changed)
                look_at(changed.models)
            except BadSpec as refused:  # what was served before goes on: half a file must not end everybody's calls
                log.error("the file is not taken: %s", "; ".join(refused.lines))
        door.write_refusals()
        if options.alive is not None:
            options.alive.touch()

    # The shelf is swept beside: it waits for a model that is being loaded, and a revoked key must not.
    if options.file is not None:
        look_at(file.models)
    await asyncio.gather(
        _again_and_again(look, LOOK_EVERY_S), _again_and_again(shelf.sweep, SWEEP_EVERY_S), _again_and_again(check, 0)
    )


async def _again_and_again(work: Callable[[], Awaitable[None]], every_s: float) -> None:
    """Never returns: what fails once is done again."""
    while True:
        try:
            await work()
        except Exception:
            log.exception("looking after the models: %s failed", work.__name__)
        await asyncio.sleep(every_s)


def _stamp(file: Path | None) -> tuple[int, int, int] | None:
    if file is None:
        return None
    with suppress(FileNotFoundError):
        found = file.stat()
        return found.st_mtime_ns, found.st_size, found.st_ino
    return None


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m engine serve-models",
        description="Models and checkpoints behind OpenAI's and Anthropic's endpoints.",
    )
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("file", type=Path, nargs="?", help="models and keys, TOML or JSON (docs/serving.md)")
    what.add_argument("--model", type=Path, metavar="FOLDER", help="a model's folder")
    what.add_argument("--run", dest="which", help="a run: its folder, its id, or its name below the home")
    what.add_argument("--new-key", action="store_true", help="print a key, and the digest for a file")
    parser.add_argument("--step", type=int, help="of the run's checkpoint (default: its newest)")
    parser.add_argument("--name", help="of --model or --run, for callers (default: the folder's or the run's)")
    parser.add_argument("--context", type=int, help="of --model or --run: tokens of a call at most")
    parser.add_argument("--host", default="127.0.0.1", help="where it listens (default: 127.0.0.1)")
    parser.add_argument("--port", type=int, default=8780, help="0: any that is free (default: 8780)")
    parser.add_argument("--usage", type=Path, metavar="FOLDER", help="default: $PALESTRA_HOME/serving/usage")
    parser.add_argument("--memory-gib", type=float, metavar="N", help="of all models together (default: half the free)")
    parser.add_argument("--slots", type=int, default=8, help="turns that a model samples at once (default: 8)")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads of a model (default: 1)")
    parser.add_argument(
        "--idle", type=float, default=600, metavar="S", help="seconds until an unused model is unloaded"
    )
    parser.add_argument("--alive", type=Path, metavar="FILE", help="is touched as long as all is well")
    parser.add_argument("--with-parent", action="store_true", help="end at once when the parent process ends")
    parser.set_defaults(run=serve_models)
    return parser
