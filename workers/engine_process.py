"""A verb of the engine in a process of its own, which may die of what it reads: bounded, and without our secrets."""

import os
import resource
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import partial

from django.conf import settings

from workers.engine_environment import ENGINE, passed_on


class EngineFailed(Exception):
    """The process took too long or ended without an answer; the message says which, as a verb's end."""


def output_of(arguments: Sequence[str], *, seconds: float, most_bytes: int) -> bytes:
    """What ``python -m ARGUMENTS`` prints.  Raises EngineFailed where it takes too long or prints nothing."""
    process = subprocess.Popen(
        [sys.executable, "-m", *arguments], cwd=settings.ROOT,
        env=passed_on(ENGINE) | {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, preexec_fn=partial(_limit, seconds, most_bytes),
        start_new_session=True,
    )  # fmt: skip
    try:
        output, errors = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        raise EngineFailed(f"took more than {seconds} s") from None
    finally:
        _kill(process)
    if not output:
        last = errors.decode("utf-8", "replace").strip().splitlines()[-1:] or [f"it ended with {process.returncode}"]
        raise EngineFailed(f"failed: {last[0][:300]}")
    return output


def _kill(process: "subprocess.Popen[bytes]") -> None:
    """It and whatever it has started."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _limit(seconds: float, most_bytes: int) -> None:
    """Processor time and address space."""
    resource.setrlimit(resource.RLIMIT_CPU, (int(seconds) + 1, int(seconds) + 1))
    resource.setrlimit(resource.RLIMIT_AS, (most_bytes, most_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
