"""One task of the project, before it is a folder."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, Literal

Check = Mapping[str, Any]
"""One of ``judge.py``'s: what must be true of the working folder, or of what a program in it does."""


@dataclass(frozen=True, slots=True)
class OwnTask:
    """``solution`` is what stands in ``solve.sh``; every shell and every Python that a sandbox has can run it."""

    name: str
    instruction: str
    solution: str
    checks: Sequence[Check]
    handed_in: Sequence[str]
    """What the tests get of the working folder, and nothing else of it."""
    files: Mapping[str, str | bytes] = field(default_factory=dict)
    """The working folder as the policy finds it."""
    executable: frozenset[str] = frozenset()
    difficulty: Literal["easy", "medium", "hard"] = "medium"


Maker = Callable[[Random], OwnTask]
"""Makes a task of the numbers that it draws; of equal numbers equal tasks."""


def text_is(path: str, content: str) -> Check:
    """The file holds this text; white space at its ends does not count."""
    return {"kind": "text", "path": path, "content": content}


def json_is(path: str, value: Any) -> Check:
    """The file is JSON of this value; numbers are equal within 1e-6."""
    return {"kind": "json", "path": path, "value": value}


def program_prints(
    argv: Sequence[str], stdout: str, *, stdin: str = "", files: Mapping[str, str] | None = None, exit_code: int = 0
) -> Check:
    """Run in a folder of its own with these files, a program prints this and ends with this exit code."""
    given = {"argv": list(argv), "stdin": stdin, "files": dict(files or {})}
    return {"kind": "program", **given, "stdout": stdout, "exit_code": exit_code}


def program_leaves(argv: Sequence[str], files: Mapping[str, str], left: Mapping[str, str | None]) -> Check:
    """Run in a folder with these files, it leaves those: by path the text, None for what must not be there."""
    return {"kind": "program", "argv": list(argv), "stdin": "", "files": dict(files), "left": dict(left)}


def rows_are(path: str, query: str, rows: Sequence[Sequence[Any]]) -> Check:
    """A query of an SQLite file gives these rows, in this order."""
    return {"kind": "rows", "path": path, "query": query, "rows": [list(row) for row in rows]}


def archive_holds(path: str, members: Mapping[str, str]) -> Check:
    """A tar file, packed or not, holds these texts and no other file."""
    return {"kind": "archive", "path": path, "members": dict(members)}


def server_answers(argv: Sequence[str], port: int, exchanges: Sequence[Mapping[str, Any]]) -> Check:
    """A server that is started so, and listens on the port of its loopback, answers in turn.

    An exchange has ``send`` and ``receive`` (lines of TCP), or ``method``, ``path``, ``body``, ``status`` and ``json``
    or ``text`` (HTTP).
    """
    return {"kind": "server", "argv": list(argv), "port": port, "exchanges": [dict(exchange) for exchange in exchanges]}


def is_executable(path: str, *, wanted: bool = True) -> Check:
    return {"kind": "executable", "path": path, "wanted": wanted}


def is_absent(path: str) -> Check:
    return {"kind": "absent", "path": path}
