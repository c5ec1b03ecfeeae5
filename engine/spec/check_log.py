"""What every check of a version of the catalog says while it goes on, and before it: of tasks, and of packages.

A worker writes the check's job file; the engine appends lines to the log beside it.  The last one says how it ended.
"""

from typing import Literal

from pydantic import Field

from engine.spec.problems import Problem
from engine.spec.strict import Strict

JOB_FILE = "check.json"
CHECK_LOG = "check.jsonl"
"""The log of a check, beside its job file."""
LONGEST_NOTE = 1000
MOST_PROBLEMS = 1000


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
    """They ask for what these sandboxes do not give, or are not what they should be; nothing more is tried."""

    line: Literal["refused"] = "refused"
    problems: list[FoundProblem] = Field(min_length=1, max_length=MOST_PROBLEMS)


class UnavailableLine(Strict):
    """No sandbox can be made at present: the check waits, and goes on with what is left."""

    line: Literal["unavailable"] = "unavailable"
    reason: str = Field(max_length=LONGEST_NOTE)


class DoneLine(Strict):
    """Everything was tried."""

    line: Literal["done"] = "done"


class ReadReport(Strict):
    """What the process that reads hostile files prints: all their faults.  Without any it has stored them."""

    problems: list[FoundProblem] = Field(default=[], max_length=MOST_PROBLEMS)
    faults: int = Field(default=0, ge=0)
    """How many there are, also those that are not listed."""


def storable(text: str, most: int) -> str:
    """The text as a database takes it: without U+0000 and lone surrogates, and no longer than ``most``."""
    return text.replace("\0", "�").encode("utf-8", "replace").decode()[:most]
