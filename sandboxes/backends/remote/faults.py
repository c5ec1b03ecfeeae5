"""Exceptions of the facade as problem+json (RFC 9457), and back: a caller far away meets exactly the same ones."""

import os
from typing import Any

from pydantic import BaseModel, ConfigDict

from sandboxes.interface import SandboxFrozen, SandboxLost, SandboxUnavailable, SnapshotUnavailable
from sandboxes.tree import TreeRefused

MEDIA_TYPE = "application/problem+json"
PREFIX = "urn:palestra:sandbox:"
SIMPLE: dict[str, tuple[int, type[Exception]]] = {
    "lost": (410, SandboxLost),
    "frozen": (423, SandboxFrozen),
    "no-snapshot": (409, SnapshotUnavailable),
    "unavailable": (503, SandboxUnavailable),
    "tree-refused": (409, TreeRefused),
    "bad-value": (422, ValueError),
}
"""Exceptions that are their message, with the status that they have in HTTP."""
OS_ERROR = "os-error"
TITLES = {
    "lost": "The sandbox is gone",
    "frozen": "The sandbox is frozen",
    "no-snapshot": "The moment could not be kept",
    "unavailable": "No sandbox can be made",
    "tree-refused": "Files could not be copied",
    "bad-value": "A value cannot be used",
    OS_ERROR: "The file could not be read or written",
}


class Fault(BaseModel):
    """One thing that is wrong with what was sent."""

    model_config = ConfigDict(extra="ignore")

    field: str
    value: Any
    message: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.field} = {self.value!r}: {self.message}; {self.remedy}"


class Problem(BaseModel):
    """The body of every answer that is no success."""

    model_config = ConfigDict(extra="ignore")

    type: str
    title: str
    status: int
    detail: str
    problems: list[Fault] = []
    errno: int | None = None
    path: str | None = None


def problem_of(error: Exception) -> Problem | None:
    """Return the problem, None for what is no exception of the facade, but a fault of ours."""
    if isinstance(error, OSError) and error.errno is not None:
        return Problem(
            type=PREFIX + OS_ERROR, title=TITLES[OS_ERROR], status=409,
            detail=str(error), errno=error.errno, path=error.filename,
        )  # fmt: skip
    for kind, (status, known) in SIMPLE.items():
        if type(error) is known:
            return Problem(type=PREFIX + kind, title=TITLES[kind], status=status, detail=str(error))
    return None


def exception_of(problem: Problem) -> Exception:
    """Return what the caller of a remote sandbox gets.

    A refusal of the service itself, e.g. a quota, loses the caller the sandbox.
    """
    kind = problem.type.removeprefix(PREFIX)
    if kind == OS_ERROR and problem.errno is not None:
        return OSError(problem.errno, os.strerror(problem.errno), problem.path)
    if kind in SIMPLE:
        return SIMPLE[kind][1](problem.detail)
    sentence = "; ".join((problem.detail, *map(str, problem.problems)))
    return (
        ValueError(sentence)
        if problem.status in (413, 422)
        else SandboxLost(f"the service says {problem.status}: {sentence}")
    )
