"""``python -m engine``, which sends itself a signal at the moment when the event of a phase's begin is on disk.

A test that watches from outside comes too late on a busy machine; this process cannot miss its moment.

    python -m tests.engine.dying SIGKILL collect 3 1 train run.toml --in-process
"""

import json
import os
import runpy
import signal
import sys
from collections.abc import Sequence
from typing import Any

from engine.reporting.spool import Spool


def dying(number: signal.Signals, phase: str, step: int, *, time: int = 1) -> Sequence[str]:
    """This program, as arguments of ``python -m``: gets the signal as the run enters ``phase`` of ``step``.

    A phase that is entered several times in a step is meant the ``time``-th time, from 1.
    """
    return "tests.engine.dying", number.name, phase, str(step), str(time)


def begin_of(phase: str, step: int) -> dict[str, Any]:
    """What the event says; the one of a phase's end has its ``seconds``."""
    return {"kind": "phase", "phase": phase, "step": step, "seconds": None}


def send_when_written(wanted: dict[str, Any], number: signal.Signals, *, time: int) -> None:
    append, seen = Spool.append, 0

    def appended(spool: Spool, lines: Sequence[bytes], *, first_seq: int) -> int:
        nonlocal seen
        last_seq = append(spool, lines, first_seq=first_seq)
        before = seen
        seen += sum(wanted.items() <= json.loads(line).items() for line in lines)
        if before < time <= seen:
            os.kill(os.getpid(), number)
        return last_seq

    Spool.append = appended


if __name__ == "__main__":
    name, phase, step, time, *sys.argv[1:] = sys.argv[1:]
    send_when_written(begin_of(phase, int(step)), signal.Signals[name], time=int(time))
    runpy.run_module("engine", run_name="__main__", alter_sys=True)
