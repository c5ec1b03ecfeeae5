"""``python -m engine tasks``: terminal tasks are checked, made and converted here."""

import argparse
import asyncio
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from pydantic import ValidationError

from engine.environments.terminal.checking import TaskReport, Trial, checked
from engine.environments.terminal.task_folder import TerminalTask
from engine.environments.terminal.task_needs import lacking
from engine.environments.terminal.task_set import TaskSet, TasksRefused, read_tasks
from engine.launch.preflight import BadSpec
from engine.spec.environment import Terminal
from engine.spec.problems import Problem, problems_in
from sandboxes.interface import SandboxUnavailable

FAULTY = 1
"""The exit code where a task cannot be trusted."""


def check(options: argparse.Namespace) -> int:
    """Exit code 0 only if every task passes with its solution, fails without, and does so every time."""
    settings = _settings(options)
    found = _read(options.folder)
    tasks = _chosen(found.tasks, options.task)
    if problems := lacking(tasks, settings.sandbox, public_network=settings.public_network):
        raise BadSpec([str(problem) for problem in problems])
    print(f"{len(tasks)} tasks, {found.digest}", flush=True)
    progress = _Progress(tasks, options.repeat)
    try:
        reports = asyncio.run(
            checked(settings, tasks, repeat=options.repeat, jobs=options.jobs, on_trial=progress.show)
        )
    except* SandboxUnavailable as unavailable:
        raise BadSpec([str(unavailable.exceptions[0])]) from unavailable
    print(table(reports))
    if options.json is not None:
        document = {"digest": found.digest, "tasks": [report.as_document() for report in reports]}
        options.json.write_text(json.dumps(document, indent=1) + "\n")
    return 0 if all(report.status == "ok" for report in reports) else FAULTY


def table(reports: Sequence[TaskReport]) -> str:
    """Every task with its rewards, then what is wrong with those that cannot be trusted, and how many there are."""
    width = max(len(report.task) for report in reports)
    lines = [f"{'task':{width}}  {'oracle':>8}  {'nop':>8}  {'seconds':>8}  status"]
    for report in reports:
        seconds = sum(trial.seconds for trial in report.trials)
        oracle, nop = _shown(report.rewards("oracle")), _shown(report.rewards("nop"))
        lines.append(f"{report.task:{width}}  {oracle:>8}  {nop:>8}  {seconds:8.1f}  {report.status}")
    for report in reports:
        if report.status != "ok":
            lines += [f"{report.task}: {note}" for note in report.as_document()["notes"]]
    passed = sum(all(reward is not None and reward >= 1 for reward in r.rewards("oracle")) for r in _solved(reports))
    idle = sum(any(reward is not None and reward >= 1 for reward in report.rewards("nop")) for report in reports)
    lines.append(f"oracle {passed}/{len(reports)}, nop {idle}/{len(reports)}")
    return "\n".join(lines)


def _solved(reports: Sequence[TaskReport]) -> list[TaskReport]:
    return [report for report in reports if report.has_solution]


def _shown(rewards: Sequence[float | None]) -> str:
    """One reward where all are equal, else the least and the greatest."""
    known = sorted({reward for reward in rewards if reward is not None})
    if not known:
        return "-" if not rewards else "error"
    text = f"{known[0]:g}" if len(known) == 1 else f"{known[0]:g}..{known[-1]:g}"
    return f"{text}!" if None in rewards else text


class _Progress:
    """A line for every trial on standard error."""

    def __init__(self, tasks: Sequence[TerminalTask], repeat: int) -> None:
        self._due = repeat * sum(1 + task.has_solution for task in tasks)
        self._over = 0

    def show(self, trial: Trial) -> None:
        self._over += 1
        reward = "error" if trial.reward is None else f"{trial.reward:g}"
        print(f"{self._over}/{self._due} {trial.task} {trial.kind}: {reward}", file=sys.stderr, flush=True)


def _settings(options: argparse.Namespace) -> Terminal:
    given = {
        "backend": options.backend,
        "image": options.image,
        "memory_mib": options.memory_mib,
        "disk_mib": options.disk_mib,
    }
    sandbox = Terminal(tasks=".").sandbox.model_dump() | {name: value for name, value in given.items() if value}
    try:
        return Terminal.model_validate(
            {"tasks": str(options.folder), "public_network": options.public_network, "sandbox": sandbox}
        )
    except ValidationError as error:
        raise BadSpec([str(problem) for problem in problems_in(error, Terminal)]) from error


def _read(folder: Path) -> TaskSet:
    try:
        return read_tasks(folder)
    except TasksRefused as refusal:
        raise BadSpec(str(refusal).splitlines()) from refusal


def _chosen(tasks: Sequence[TerminalTask], names: Sequence[str]) -> list[TerminalTask]:
    known = {task.name: task for task in tasks}
    if unknown := [name for name in names if name not in known]:
        remedy = f"use one of: {', '.join(sorted(known)[:20])}"
        raise BadSpec([str(Problem("--task", name, "there is no such task", remedy)) for name in unknown])
    return [known[name] for name in names] if names else list(tasks)


def make(options: argparse.Namespace) -> int:
    """Write the project's own tasks."""
    from engine.environments.terminal.own.making import FolderTaken, write_tasks

    try:
        names = write_tasks(options.folder, seed=options.seed)
    except FolderTaken as taken:
        raise BadSpec([str(taken)]) from taken
    print(f"{len(names)} tasks: {options.folder}")
    return 0


def convert(options: argparse.Namespace) -> int:
    """Write the tasks of rows of a SWE-bench form."""
    from engine.environments.terminal.swe_rows import RowsRefused, write_rows

    try:
        names = write_rows(options.rows, options.folder)
    except RowsRefused as refusal:
        raise BadSpec([str(problem) for problem in refusal.problems]) from refusal
    print(f"{len(names)} tasks: {options.folder}")
    return 0


def build(options: argparse.Namespace) -> int:
    """Build the images that tasks need, those that are not registered yet."""
    from engine.launch.task_images import built

    found = _read(options.folder)
    for task in found.tasks:
        if task.needs_image:
            print(f"{task.name}: {built(task)}", flush=True)
    return 0


def trials(options: argparse.Namespace) -> int:
    """Try the tasks of a version of the catalog, as a worker's job file says."""
    from engine.launch.task_trials import run_check

    return run_check(options.file)


def parser() -> argparse.ArgumentParser:
    """The parser of the command ``tasks`` and what stands below it."""
    whole = argparse.ArgumentParser(prog="python -m engine tasks", description="Terminal tasks.")
    tasks = whole.add_subparsers(required=True)
    checking = tasks.add_parser("check", help="play each task with its solution and with nothing")
    checking.add_argument("folder", type=Path, help="each subfolder with a task.toml is a task")
    checking.add_argument("--task", action="append", default=[], metavar="NAME", help="this one only; may be repeated")
    checking.add_argument("--repeat", type=_count, default=1, metavar="N", help="tries of each, to find flaky tests")
    checking.add_argument("--jobs", type=_count, default=2, metavar="J", help="sandboxes at once (default: 2)")
    checking.add_argument("--json", type=Path, metavar="FILE", help="write the report here")
    checking.add_argument("--backend", choices=["namespaces", "docker"], help="default: namespaces")
    checking.add_argument("--image", help="of Docker's sandboxes: an image of the registry")
    checking.add_argument("--memory-mib", type=_count, help="of each sandbox")
    checking.add_argument("--disk-mib", type=_count, help="of each sandbox's writable folders")
    checking.add_argument(
        "--public-network", choices=["refuse", "none"], default="refuse", help="of tasks that ask for all of it"
    )
    checking.set_defaults(run=check)
    making = tasks.add_parser("make", help="write the forty tasks of the project")
    making.add_argument("folder", type=Path, help="where to; it must not exist")
    making.add_argument("--seed", type=int, default=0)
    making.set_defaults(run=make)
    converting = tasks.add_parser("convert", help="write rows of a SWE-bench form as tasks")
    converting.add_argument("rows", type=Path, help="a JSONL file")
    converting.add_argument("folder", type=Path, help="where to; it must not exist")
    converting.set_defaults(run=convert)
    building = tasks.add_parser("build", help="build the images that tasks need, for sandboxes of Docker")
    building.add_argument("folder", type=Path)
    building.set_defaults(run=build)
    trying = tasks.add_parser("trials", help="the check of a version that the service asked for")
    trying.add_argument("file", type=Path, help="its job file")
    trying.set_defaults(run=trials)
    return whole


def _count(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: give a whole number, at least 1")
    return int(text)
