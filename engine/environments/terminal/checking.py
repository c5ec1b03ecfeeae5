"""Whether tasks can be trusted: the reference solution passes, doing nothing fails, and both do so every time.

Each trial has a sandbox of its own, and so have its tests, as in an episode; what differs is who works in it.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from engine.environments.contract import VerifierFailed
from engine.environments.terminal.evidence import given_hooks, hooks_in
from engine.environments.terminal.preparation import TaskUnusable, prepared
from engine.environments.terminal.task_folder import TerminalTask
from engine.environments.terminal.upload import uploaded
from engine.environments.terminal.verifier import handed_in, phase_spec, verified
from engine.spec.environment import Terminal
from engine.spec.task_check import KINDS, Kind, Status, status_of
from sandboxes.interface import Sandbox, SandboxLost
from sandboxes.opened import opened
from sandboxes.tree import TreeRefused

SOLVE_S = 600.0
"""For a solution whose task bounds the policy's time by nothing."""


@dataclass(frozen=True, slots=True)
class Trial:
    """One try of one task."""

    task: str
    kind: Kind
    reward: float | None
    """None where the tests came to none."""
    seconds: float
    note: str = ""
    """What went wrong: in the tests, in the solution, in what was handed in."""


@dataclass(frozen=True, slots=True)
class TaskReport:
    """All trials of one task, and what they say of it."""

    task: str
    digest: str
    has_solution: bool
    trials: list[Trial] = field(default_factory=list)

    def rewards(self, kind: Kind) -> list[float | None]:
        return [trial.reward for trial in self.trials if trial.kind == kind]

    @property
    def status(self) -> Status:
        return status_of(has_solution=self.has_solution, oracle=self.rewards("oracle"), nop=self.rewards("nop"))

    def as_document(self) -> dict[str, Any]:
        notes = sorted({trial.note for trial in self.trials if trial.note})
        return {
            "task": self.task,
            "digest": self.digest,
            "status": self.status,
            "oracle": self.rewards("oracle"),
            "nop": self.rewards("nop"),
            "seconds": round(sum(trial.seconds for trial in self.trials), 3),
            "notes": notes,
        }


class Due(NamedTuple):
    """A try that is still to be made."""

    task: TerminalTask
    kind: Kind
    repetition: int


async def checked(
    settings: Terminal,
    tasks: Sequence[TerminalTask],
    *,
    repeat: int = 1,
    jobs: int = 2,
    on_trial: Callable[[Trial], None] = lambda trial: None,
) -> list[TaskReport]:
    """Try every task ``repeat`` times with its solution and without, ``jobs`` at once.

    ``on_trial`` gets each trial when it is over.  Raises ``SandboxUnavailable`` where no sandbox can be made.
    """
    reports = {task.name: TaskReport(task.name, task.digest, task.has_solution) for task in tasks}

    def keep(due: Due, trial: Trial) -> None:
        reports[due.task.name].trials.append(trial)
        on_trial(trial)

    await made(settings, tries_of(tasks, repeat), jobs=jobs, on_trial=keep)
    return list(reports.values())


def tries_of(tasks: Iterable[TerminalTask], repeat: int) -> list[Due]:
    """All tries, task by task."""
    return [
        Due(task, kind, repetition)
        for task in tasks
        for kind in KINDS
        for repetition in range(repeat)
        if kind == "nop" or task.has_solution
    ]


async def made(settings: Terminal, tries: Iterable[Due], *, jobs: int, on_trial: Callable[[Due, Trial], None]) -> None:
    """Make the tries, ``jobs`` at once.  Raises a group with ``SandboxUnavailable`` where no sandbox can be made."""
    room = asyncio.Semaphore(jobs)

    async def one(due: Due) -> None:
        async with room:
            trial = await tried(settings, due.task, due.kind)
        on_trial(due, trial)

    async with asyncio.TaskGroup() as trials:
        for due in tries:
            trials.create_task(one(due))


async def tried(settings: Terminal, task: TerminalTask, kind: Kind) -> Trial:
    """One trial.  What a task or its tests do wrong is in it; a sandbox that cannot be made is raised."""
    loop = asyncio.get_running_loop()
    started_s, note = loop.time(), ""
    try:
        async with opened(phase_spec(task, settings.sandbox, of_tests=False)) as sandbox:
            await prepared(sandbox, task)
            given = await given_hooks(sandbox, task)
            note = await _solved(sandbox, task) if kind == "oracle" else ""
            files = await handed_in(task, sandbox)
        if hooks := hooks_in(files, given):
            counted = ", ".join(hook.subject for hook in hooks)[:300]
            return Trial(task.name, kind, 0.0, loop.time() - started_s, f"it counts as tampering: {counted}")
        verification = await verified(task, settings.sandbox, files)
    except TreeRefused as refusal:
        return Trial(task.name, kind, 0.0, loop.time() - started_s, note or f"nothing is handed in: {refusal}")
    except (VerifierFailed, TaskUnusable, SandboxLost) as failure:
        return Trial(task.name, kind, None, loop.time() - started_s, str(failure))
    reward = verification.reward.reward
    if kind == "oracle" and reward < 1 and not note:
        note = f"the tests print: {verification.output[-300:]}"
    return Trial(task.name, kind, reward, loop.time() - started_s, note)


async def _solved(sandbox: Sandbox, task: TerminalTask) -> str:
    """Run the reference solution; return what it complained about."""
    await uploaded(sandbox, task.solution(), "/solution")
    variables = {**task.file.environment.env, **task.file.solution.env}
    timeout_s = task.file.agent.timeout_sec or SOLVE_S
    result = await sandbox.exec(["/bin/sh", "-c", "exec /solution/solve.sh"], env=variables, timeout_s=timeout_s)
    if result.outcome == "ok":
        return ""
    return f"solve.sh ended with {result.outcome} (exit code {result.exit_code}): {result.stderr.strip()[-300:]}"
