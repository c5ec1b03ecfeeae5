"""``python -m engine environment``: packages are begun and checked here."""

import argparse
import asyncio
import json
import re
from dataclasses import asdict
from importlib.resources import files
from pathlib import Path

from pydantic import ValidationError

from engine.environments.contract import EnvironmentProcessLost, VerifierFailed
from engine.environments.process.answers import MisfitAnswer
from engine.environments.process.checking import CheckReport, checked
from engine.environments.process.connection import RaisedInProcess
from engine.environments.process.libraries import program_for
from engine.environments.process.source import PackageRefused, package_at
from engine.launch.preflight import BadSpec
from engine.spec.foreign_environments import InPackage
from engine.spec.package_check import PackageCheck
from engine.spec.problems import Problem, problems_in
from sandboxes.interface import SandboxUnavailable

FAULTY = 1
"""The exit code where a package cannot be used."""
NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
TEMPLATE = {
    "pyproject.toml.txt": "pyproject.toml",
    "run.toml": "run.toml",
    "src/environment.py.txt": "src/MODULE.py",
}


def new(options: argparse.Namespace) -> int:
    """Write a package that works, to be changed into another one."""
    name, folder = options.name, options.folder or Path(options.name)
    if not NAME.fullmatch(name):
        raise BadSpec([str(Problem("NAME", name, "no name of a package", "use small letters, digits and hyphens"))])
    if folder.exists():
        raise BadSpec([str(Problem("--folder", str(folder), "it exists", "name one that does not"))])
    module = name.replace("-", "_")
    for written, wanted in TEMPLATE.items():
        text = files("engine.environments.process").joinpath("template", *written.split("/")).read_text("utf-8")
        path = folder / wanted.replace("MODULE", module)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.replace("NAME", name).replace("MODULE", module), "utf-8")
    print(f"package: {folder}\nnext: python -m engine environment check {folder}")
    return 0


def check(options: argparse.Namespace) -> int:
    """Exit code 0 only if a run can use the package."""
    described = _described(options)
    try:
        source, program = package_at(options.path), program_for(described)
        report = asyncio.run(checked(program))
    except PackageRefused as refused:
        raise BadSpec([str(problem) for problem in refused.problems]) from refused
    except (EnvironmentProcessLost, RaisedInProcess, MisfitAnswer, VerifierFailed) as failure:
        raise BadSpec([f"{options.path}: it does not start: {failure}"]) from failure
    except SandboxUnavailable as unavailable:
        raise BadSpec([str(unavailable)]) from unavailable
    if options.json is not None:
        document = {"name": source.name, "version": source.version, "digest": source.digest} | asdict(report)
        options.json.write_text(json.dumps(document, indent=1) + "\n")
    print(f"{source.name} {source.version}, {source.digest}\n{in_words(report)}")
    return FAULTY if report.faults else 0


def trial(options: argparse.Namespace) -> int:
    """Play a version of the catalog, as a worker's job file says."""
    from engine.launch.package_check import run_check

    return run_check(options.file)


def in_words(report: CheckReport) -> str:
    tasks = ", ".join(f"{number} {split}" for split, number in report.tasks.items())
    lines = [
        f"tasks: {tasks}; tools: {', '.join(report.tools) or 'none'}; {report.episodes} episodes played",
        f"started in {report.start_s:.2f} s; a call takes {report.call_s * 1000:.2f} ms; "
        f"{report.memory_bytes / 2**20:.0f} MiB",
        *(f"note: {note}" for note in report.notes),
        *(f"fault: {fault}" for fault in report.faults),
    ]
    return "\n".join([*lines, "a run cannot use it" if report.faults else "fine"])


def _described(options: argparse.Namespace) -> InPackage:
    """What a run would play."""
    names = ("entry", "taskset", "env_id", "options")
    given = {name: value for name in names if (value := getattr(options, name)) is not None}
    limits = {"process": {"memory_mib": options.memory_mib, "processes": options.processes}}
    try:
        return PackageCheck.model_validate(given | limits).environment(path=str(options.path), python=options.python)
    except ValidationError as error:
        raise BadSpec([str(problem) for problem in problems_in(error, PackageCheck)]) from error


def parser() -> argparse.ArgumentParser:
    """The parser of the command ``environment`` and what stands below it."""
    whole = argparse.ArgumentParser(prog="python -m engine environment", description="Environment packages.")
    commands = whole.add_subparsers(required=True)
    making = commands.add_parser("new", help="write a small package that works, and a run of it")
    making.add_argument("name", help="small letters, digits and hyphens")
    making.add_argument("--folder", type=Path, help="where to; it must not exist (default: the name)")
    making.set_defaults(run=new)
    checking = commands.add_parser("check", help="install a package, start its process, and play some of its tasks")
    checking.add_argument("path", type=Path, help="the package's folder, or its wheel")
    checking.add_argument("--entry", help="package.module:Name (default: its only entry point)")
    checking.add_argument("--taskset", help="module:Class of a taskset of verifiers v1, which the package has or needs")
    checking.add_argument("--env-id", dest="env_id", help="the name of an environment of GEM, which the package needs")
    checking.add_argument("--memory-mib", type=int, default=512, help="what its process may take (default: 512)")
    checking.add_argument("--processes", type=int, default=64, help="processes and threads at once (default: 64)")
    checking.add_argument("--options", help="what the environment is called with: a JSON object")
    checking.add_argument("--python", help="the interpreter that runs it (default: the system's)")
    checking.add_argument("--json", type=Path, metavar="FILE", help="write the report here")
    checking.set_defaults(run=check)
    trying = commands.add_parser("trial", help="the job of a worker that checks a version of the catalog")
    trying.add_argument("file", type=Path, help="the job file (engine/spec/package_check.py)")
    trying.set_defaults(run=trial)
    return whole
