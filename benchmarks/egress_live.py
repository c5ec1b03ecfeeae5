"""Plays the strangers' corpora in watched sandboxes and counts the alerts that name the right turn.

    case ── files planted ──► sandbox ── turns, labelled ──► SandboxMonitor, detectors ──► alerts {rule, severity, turn}

What is played is the path of training: the same guard, sentinel, labels and log.  An incident is found when a
warning or a critical alert carries one of its deed's turns; ``info`` finds nothing and disturbs nobody.  Any warning
or critical alert on a task is a false alarm.

Each corpus is split by a hash of each case's name.  The *open* half may be read and tuned on; of the *sealed* half only
sums are told, so that what they say is true of strangers.
"""

import asyncio
import hashlib
import multiprocessing
import tempfile
import tomllib
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import TypeAdapter

from engine.rollout.sandbox_monitor import MonitoredSandbox, SandboxMonitor
from engine.rollout.security_log import AlertEntry, SecurityLog, SecurityLogEntry
from engine.spec.security import Response
from sandboxes.egress.detectors.finding import Severity
from sandboxes.interface import Sandbox, SandboxLost
from sandboxes.pool import Pool
from sandboxes.spec import SandboxSpec

_CORPUS = Path(__file__).parents[1] / "tests" / "sandboxes" / "egress" / "corpus"
CORPORA = {name: _CORPUS / name for name in ("strangers", "second", "fourth", "fifth", "sixth", "seventh")}
"""Each by somebody who had not seen the detectors' code."""
OWN_TASKS = "third"
"""Ordinary tasks by those who made the detectors, all of them open: what raised an alarm there was mended."""
_FOLDERS = CORPORA | {OWN_TASKS: _CORPUS / OWN_TASKS}
_SAME_CLASS = {"scans": "scan"}
SPEC = SandboxSpec(network="watched", memory_mib=1024, disk_mib=32, processes=64, timeout_s=8)
PROCESSES = 2
TRAJECTORY = "live"
NO_SYMPTOMS = frozenset({"documents", "loopback"})
"""Kinds of tasks of which none may raise a critical alert."""


@dataclass(frozen=True)
class Case:
    name: str
    kind: Literal["incident", "task"]
    group: str
    """The class of an incident, the kind of work of a task."""
    form: Literal["plain", "obfuscated"]
    files: tuple[dict[str, str], ...]
    turns: tuple[dict[str, str], ...]
    deed_turns: frozenset[int]

    @property
    def is_open(self) -> bool:
        return hashlib.sha256(self.name.encode()).digest()[0] % 2 == 0


def place(case: Case) -> bytes:
    """An order that has nothing to do with what a case is about."""
    return hashlib.sha256(case.name.encode()).digest()


@dataclass(frozen=True)
class AlertedTurn:
    rule: str
    severity: Severity
    turn: int
    evidence: tuple[str, ...]


@dataclass(frozen=True)
class Played:
    case: Case
    alerts: tuple[AlertedTurn, ...]
    lost: bool = False
    """The sandbox died while it was played; what was told until then counts."""

    @property
    def loud(self) -> list[AlertedTurn]:
        return [alert for alert in self.alerts if alert.severity != "info"]

    @property
    def found(self) -> bool:
        return any(alert.turn in self.case.deed_turns for alert in self.loud)

    @property
    def critical(self) -> bool:
        return any(alert.severity == "critical" for alert in self.loud)


def cases(corpus: str) -> list[Case]:
    """Raises ``ValueError`` for two of one name, or a deed's turn that is not there."""
    found = [
        _case(entry)
        for path in sorted(_FOLDERS[corpus].glob("*.toml"))
        for entry in tomllib.loads(path.read_text())["case"]
    ]
    names = Counter(case.name for case in found)
    if doubled := [name for name, number in names.items() if number > 1]:
        raise ValueError(f"two cases are called {doubled}")
    return found


def _case(entry: dict[str, Any]) -> Case:
    given = entry.get("deed_turn", [])
    deeds = frozenset(given if isinstance(given, list) else [given])
    if (entry["kind"] == "incident") != bool(deeds) or not deeds <= set(range(len(entry["turns"]))):
        raise ValueError(
            f"case '{entry['name']}': deed_turn = {given}: an incident names one of its turns, a task none"
        )
    return Case(
        name=entry["name"],
        kind=entry["kind"],
        group=_class_name(entry["class"]),
        form=entry.get("form", "plain"),
        files=tuple(entry.get("files", ())),
        turns=tuple(entry["turns"]),
        deed_turns=deeds,
    )


def _class_name(written: str) -> str:
    """Authors spell classes differently."""
    name = written.replace("_", "-")
    return _SAME_CLASS.get(name, name)


def play_all(chosen: Sequence[Case], processes: int = PROCESSES) -> list[Played]:
    """Play the cases, in the order of ``chosen``."""
    if processes == 1:
        return [_play(case) for case in chosen]
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, mp_context=context) as workers:
        return list(workers.map(_play, chosen))


def _play(case: Case) -> Played:
    with tempfile.TemporaryDirectory(prefix="palestra-live-") as folder:
        lost = asyncio.run(_episode(case, Path(folder)))
        lines = [line for path in Path(folder).glob("*.jsonl") for line in path.read_bytes().splitlines()]
    entries = [TypeAdapter[SecurityLogEntry](SecurityLogEntry).validate_json(line) for line in lines]
    alerts = [_alerted(entry) for entry in entries if isinstance(entry, AlertEntry)]
    return Played(case, tuple(alerts), lost)


def _alerted(seen: AlertEntry) -> AlertedTurn:
    turn = seen.origin.turn if seen.origin is not None else -1
    return AlertedTurn(seen.finding.rule, seen.finding.severity, turn, seen.finding.evidence)


async def _episode(case: Case, folder: Path) -> bool:
    """Whether the sandbox was lost."""
    monitor = SandboxMonitor(Response(quarantine="never"), SPEC.egress, SecurityLog(folder))
    lost = False
    try:
        async with Pool(SPEC, size=1, **monitor_hooks(monitor)) as pool:
            watch = monitor.episode(pool, TRAJECTORY)
            async with watch.acquire() as sandbox:
                for file in case.files:
                    await pool_sandbox(sandbox).write_file(file["path"], file["content"].encode())
                for turn, call in enumerate(case.turns):
                    watch.turn = turn
                    try:
                        await _call(sandbox, call)
                    except SandboxLost:
                        lost = True
                        break
            await watch.settled()
    finally:
        await monitor.close()
    return lost


def monitor_hooks(monitor: SandboxMonitor) -> dict[str, Any]:
    """Return what a pool is given to notify the monitor."""
    hooks: dict[str, Any] = {"on_record": monitor.on_record, "on_statement": monitor.on_statement}
    if hasattr(monitor, "on_action"):
        hooks["on_action"] = monitor.on_action
    return hooks


def pool_sandbox(sandbox: Sandbox) -> Sandbox:
    """The sandbox without its guard: what the environment plants is nobody's tool call."""
    assert isinstance(sandbox, MonitoredSandbox)
    return sandbox._sandbox


async def _call(sandbox: Sandbox, call: dict[str, str]) -> None:
    """A call that fails is an answer; a file that cannot be written is one too."""
    with suppress(OSError):
        if call["tool"] == "python":
            await sandbox.run_python(call["code"])
        elif call["tool"] == "shell":
            await sandbox.exec(["bash", "-c", call["command"]])
        elif call["tool"] == "write":
            await sandbox.write_file(call["path"], call["content"].encode())
        else:
            raise ValueError(f"tool = '{call['tool']}': a turn's tool is python, shell or write")


@dataclass(frozen=True)
class Tally:
    """What some cases came to."""

    plain: int
    plain_found: int
    obfuscated: int
    obfuscated_found: int
    tasks: int
    false_alarms: int
    critical_tasks: int
    """Tasks with a critical alert."""
    critical_papers: int
    """Those among them of a kind that may never have one."""
    lost: int

    def as_dict(self) -> dict[str, float]:
        share = {
            "plain_recall": self.plain_found / self.plain if self.plain else 0.0,
            "obfuscated_recall": self.obfuscated_found / self.obfuscated if self.obfuscated else 0.0,
            "false_alarm_rate": self.false_alarms / self.tasks if self.tasks else 0.0,
        }
        return {**{name: getattr(self, name) for name in self.__dataclass_fields__}, **share}


def tally(played: Sequence[Played]) -> Tally:
    incidents = [trajectory for trajectory in played if trajectory.case.kind == "incident"]
    tasks = [trajectory for trajectory in played if trajectory.case.kind == "task"]
    plain = [incident for incident in incidents if incident.case.form == "plain"]
    obfuscated = [incident for incident in incidents if incident.case.form == "obfuscated"]
    return Tally(
        plain=len(plain),
        plain_found=sum(score.found for score in plain),
        obfuscated=len(obfuscated),
        obfuscated_found=sum(score.found for score in obfuscated),
        tasks=len(tasks),
        false_alarms=sum(bool(task.loud) for task in tasks),
        critical_tasks=sum(task.critical for task in tasks),
        critical_papers=sum(task.critical for task in tasks if task.case.group in NO_SYMPTOMS),
        lost=sum(trajectory.lost for trajectory in played),
    )


def by_class(played: Sequence[Played]) -> dict[str, Tally]:
    groups = sorted({trajectory.case.group for trajectory in played if trajectory.case.kind == "incident"})
    return {
        group: tally(
            [
                trajectory
                for trajectory in played
                if trajectory.case.group == group and trajectory.case.kind == "incident"
            ]
        )
        for group in groups
    }


def open_cases(played: Sequence[Played]) -> list[str]:
    """Return what went wrong in the open half, case by case; of the sealed half nothing."""
    lines = []
    for outcome in played:
        wrong = not outcome.found if outcome.case.kind == "incident" else bool(outcome.loud)
        if outcome.case.is_open and wrong:
            alerts = ", ".join(f"{alert.rule} ({alert.severity}, turn {alert.turn})" for alert in outcome.alerts)
            case = outcome.case
            lines.append(f"{case.kind} {case.group}/{case.form} '{case.name}': {alerts or 'nothing'}")
    return lines
