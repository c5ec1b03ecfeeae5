"""``python -m engine serve-environments``: which environments, to whom, and how many."""

import argparse
import ipaddress
import os
from pathlib import Path

import uvicorn

from engine.environments.imported import UnusableEnvironment
from engine.environments.registry import environment_for
from engine.launch.pinned_dataset import with_pinned_dataset
from engine.launch.preflight import BadSpec, spec_from_file
from engine.serving.app import BODY_BYTES, application
from engine.serving.episodes import Episodes, Limits, Served, pool_of
from engine.spec.mixture import Mixture
from engine.spec.problems import Problem

TOKEN_VARIABLE = "PALESTRA_ENVIRONMENTS_TOKEN"
SHORTEST_TOKEN = 16


def serve(options: argparse.Namespace) -> int:
    """Serve until it is stopped.  Raises BadSpec."""
    token = _token(options.host)
    limits = Limits(options.most, options.idle)
    served = [_served(file, limits) for file in options.file]
    names = [environment.name for environment in served]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise BadSpec([str(Problem("name", name, "two files have this name", "rename one")) for name in twice])
    print(f"serving {', '.join(names)} at http://{options.host}:{options.port}", flush=True)
    uvicorn.run(
        application(Episodes(served, limits), token), host=options.host, port=options.port, log_level="warning",
        ws_max_size=BODY_BYTES, server_header=False,
    )  # fmt: skip
    return 0


def _token(host: str) -> str | None:
    """What callers must send; None on loopback where none is set."""
    token = os.environ.get(TOKEN_VARIABLE) or None
    if token is None and not _is_loopback(host):
        problem = "nothing listens beyond loopback without a token"
        raise BadSpec([str(Problem("--host", host, problem, f"set {TOKEN_VARIABLE}, or use 127.0.0.1"))])
    if token is not None and len(token) < SHORTEST_TOKEN:
        remedy = f"use at least {SHORTEST_TOKEN} characters"
        raise BadSpec([str(Problem(TOKEN_VARIABLE, "(hidden)", "it can be guessed", remedy))])
    return token


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _served(file: Path, limits: Limits) -> Served:
    """The environment of a run's file, under the run's name.  Raises BadSpec."""
    spec = with_pinned_dataset(spec_from_file(file), named_in=file, anywhere=True)
    if isinstance(spec.environment, Mixture):
        message = "an instance is of one environment, and this one has parts"
        problem = Problem("environment.id", spec.environment.id, message, "give a file for each of its parts")
        raise BadSpec([f"{file}: {problem}"])
    try:
        environment = environment_for(spec.environment, spec.dataset)
    except UnusableEnvironment as unusable:
        raise BadSpec([f"{file}: {unusable.problem}"]) from unusable
    return Served(spec.name, spec.environment, environment, pool_of(spec.environment, limits))


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m engine serve-environments", description="Environments for other trainers: GEM and OpenEnv."
    )
    parser.add_argument("file", type=Path, nargs="+", help="runs' TOML files; the name of each is its env_id")
    parser.add_argument("--host", default="127.0.0.1", help=f"beyond loopback ${TOKEN_VARIABLE} must be set")
    parser.add_argument("--port", type=int, default=8760)
    parser.add_argument("--most", type=int, default=64, metavar="N", help="instances at once (default: 64)")
    parser.add_argument("--idle", type=float, default=900, metavar="S", help="seconds until an unused one is closed")
    parser.set_defaults(run=serve)
    return parser
