"""``python -m engine``, which sends itself a signal at the moment when the event of a phase's begin is on disk.

A test that watches from outside comes too late on a busy machine; this process cannot miss its moment.

    python -m tests.engine.dying SIGKILL collect 3 1 train run.toml --in-process

``follower-of-SIGKILL`` in place of the signal's name sends it to rank 1 of the trainer.
"""

import json
import os
import runpy
import signal
import sys
from collections.abc import Callable, Sequence
from typing import Any

import psutil

from engine.reporting.spool import Spool


def dying(number: signal.Signals, phase: str, step: int, *, time: int = 1) -> Sequence[str]:
    """This program, as arguments of ``python -m``: gets the signal as the run enters ``phase`` of ``step``.

    A phase that is entered several times in a step is meant the ``time``-th time, from 1.
    """
    return "tests.engine.dying", number.name, phase, str(step), str(time)


def begin_of(phase: str, step: int) -> dict[str, Any]:
    """What the event says; the one of a phase's end has its ``seconds``."""
    return {"kind": "phase", "phase": phase, "step": step, "seconds": None}


def losing_a_rank(phase: str, step: int) -> Sequence[str]:
    """This program: rank 1 of its trainer is killed then."""
    return "tests.engine.dying", "follower-of-SIGKILL", phase, str(step), "1"


def own_pid() -> int:
    return os.getpid()


def follower_pid() -> int:
    (pid,) = (child.pid for child in psutil.Process().children() if any("follow" in word for word in child.cmdline()))
    return int(pid)


def send_when_written(
    wanted: dict[str, Any], number: signal.Signals, *, time: int = 1, to: Callable[[], int] = own_pid
) -> None:
    when_written(wanted, lambda: os.kill(to(), number), time=time)


def when_written(wanted: dict[str, Any], act: Callable[[], None], *, time: int = 1) -> None:
    append, seen = Spool.append, 0

    def appended(spool: Spool, lines: Sequence[bytes], *, first_seq: int) -> int:
        nonlocal seen
        last_seq = append(spool, lines, first_seq=first_seq)
        before = seen
        seen += sum(wanted.items() <= json.loads(line).items() for line in lines)
        if before < time <= seen:
            act()
        return last_seq

    Spool.append = appended


if __name__ == "__main__":
    name, phase, step, time, *sys.argv[1:] = sys.argv[1:]
    to = follower_pid if name.startswith("follower-of-") else own_pid
    number = signal.Signals[name.removeprefix("follower-of-")]
    send_when_written(begin_of(phase, int(step)), number, time=int(time), to=to)
    runpy.run_module("engine", run_name="__main__", alter_sys=True)
