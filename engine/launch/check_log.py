"""The log of a check that a worker reads while it grows."""

import os
from pathlib import Path

from engine.spec.strict import Strict
from sandboxes.interface import SandboxUnavailable


class CheckLog:
    """Lines that are on the disk when they are written."""

    def __init__(self, file: Path) -> None:
        self._descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def __enter__(self) -> "CheckLog":
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)

    def write(self, line: Strict) -> None:
        os.write(self._descriptor, line.model_dump_json().encode() + b"\n")
        os.fsync(self._descriptor)


def first_of(group: BaseExceptionGroup[SandboxUnavailable]) -> BaseException:
    """One of them: all say the same."""
    inner: BaseException = group
    while isinstance(inner, BaseExceptionGroup):
        inner = inner.exceptions[0]
    return inner
