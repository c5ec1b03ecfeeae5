"""What checking a set of terminal tasks means, and what a check reports while it goes on.

A worker writes a ``CheckJob``; the engine appends a line of ``CHECK_LINE`` to the job's log whenever a trial is over.
"""

from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from engine.spec.environment import TERMINAL_SANDBOX
from engine.spec.problems import Problem
from engine.spec.strict import Strict
from engine.spec.task_files import TaskDigest, TaskName
from sandboxes.spec import SandboxSpec

Kind = Literal["oracle", "nop"]
KINDS: tuple[Kind, ...] = ("oracle", "nop")
Status = Literal["ok", "oracle-fails", "nop-passes", "flaky", "verifier-fails", "no-solution"]
CHECK_LOG = "trials.jsonl"
"""The log of a check, beside its job file."""
LONGEST_NOTE = 1000
MOST_PROBLEMS = 1000


class TaskCheck(Strict):
    """How the tasks of a version are tried before it may be published."""

    repeat: int = Field(default=3, ge=1, le=20)
    """Tries of each task with its solution, and with nothing done; more find tests that are flaky."""
    at_once: int = Field(default=2, ge=1, le=16)
    """Sandboxes at the same time."""
    public_network: Literal["refuse", "none"] = "refuse"
    """Tasks that ask for a network without bounds: refused, or tried without any."""
    sandbox: SandboxSpec = TERMINAL_SANDBOX
    """What the sandboxes of the trials may use.  A task that asks for more is refused."""


class Try(Strict):
    """One try of one task."""

    task: TaskName
    kind: Kind
    repetition: int = Field(ge=0, lt=20)


class CheckJob(Strict):
    """``<folder>/check.json``."""

    tasks: str
    """The folder of the version."""
    digest: TaskDigest
    """What the folder must be."""
    check: TaskCheck
    done: list[Try]
    """What an earlier job of the same check has tried."""


class TrialLine(Try):
    """A try that is over."""

    line: Literal["trial"] = "trial"
    reward: float | None = Field(ge=0, le=1)
    """None where the tests came to none."""
    seconds: float = Field(ge=0, le=10**7)
    note: str = Field(max_length=LONGEST_NOTE)
    """What went wrong: in the tests, in the solution, in what was handed in."""


class FoundProblem(Strict):
    """A problem as ``engine.spec.problems.Problem`` describes it, with its value as text."""

    field: str
    value: str
    message: str
    remedy: str

    @classmethod
    def of(cls, problem: Problem) -> "FoundProblem":
        return cls(
            field=storable(problem.field, 500), value=storable(str(problem.value), 200),
            message=storable(problem.message, LONGEST_NOTE), remedy=storable(problem.remedy, LONGEST_NOTE),
        )  # fmt: skip


class RefusedLine(Strict):
    """The tasks ask for what these sandboxes do not give; nothing more is tried."""

    line: Literal["refused"] = "refused"
    problems: list[FoundProblem] = Field(min_length=1, max_length=MOST_PROBLEMS)


class UnavailableLine(Strict):
    """No sandbox can be made at present: the check waits, and goes on with what is left."""

    line: Literal["unavailable"] = "unavailable"
    reason: str = Field(max_length=LONGEST_NOTE)


class DoneLine(Strict):
    """Everything was tried."""

    line: Literal["done"] = "done"


CheckLine = Annotated[TrialLine | RefusedLine | UnavailableLine | DoneLine, Field(discriminator="line")]
CHECK_LINE: TypeAdapter[TrialLine | RefusedLine | UnavailableLine | DoneLine] = TypeAdapter(CheckLine)


class TasksReport(Strict):
    """What the process that reads tasks prints: all faults, or what it has stored."""

    problems: list[FoundProblem] = Field(default=[], max_length=MOST_PROBLEMS)
    faults: int = Field(default=0, ge=0)
    """How many there are, also those that are not listed."""


def storable(text: str, most: int) -> str:
    """The text as a database takes it: without U+0000 and lone surrogates, and no longer than ``most``."""
    return text.replace("\0", "�").encode("utf-8", "replace").decode()[:most]


def status_of(*, has_solution: bool, oracle: Sequence[float | None], nop: Sequence[float | None]) -> Status:
    """What the rewards of all trials of a task say of it; None is a trial whose tests came to no reward."""
    if not has_solution:
        return "no-solution"
    if None in oracle or None in nop:
        return "verifier-fails"
    if len(set(oracle)) > 1 or len(set(nop)) > 1:
        return "flaky"
    if any(reward is not None and reward < 1 for reward in oracle):
        return "oracle-fails"
    return "nop-passes" if any(reward is not None and reward >= 1 for reward in nop) else "ok"
