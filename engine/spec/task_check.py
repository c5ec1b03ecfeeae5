"""What checking a set of terminal tasks means, and what a check reports while it goes on.

A worker writes a ``TaskCheckJob``; the engine appends a ``TASK_LINE`` to the job's log whenever a trial is over.
"""

from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from engine.spec.check_log import LONGEST_NOTE, DoneLine, RefusedLine, UnavailableLine
from engine.spec.environment import TERMINAL_SANDBOX
from engine.spec.strict import Strict
from engine.spec.task_files import TaskDigest, TaskName
from sandboxes.spec import SandboxSpec

Kind = Literal["oracle", "nop"]
KINDS: tuple[Kind, ...] = ("oracle", "nop")
Status = Literal["ok", "oracle-fails", "nop-passes", "flaky", "verifier-fails", "no-solution"]


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


class TaskCheckJob(Strict):
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


TaskLine = Annotated[TrialLine | RefusedLine | UnavailableLine | DoneLine, Field(discriminator="line")]
TASK_LINE: TypeAdapter[TrialLine | RefusedLine | UnavailableLine | DoneLine] = TypeAdapter(TaskLine)


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
