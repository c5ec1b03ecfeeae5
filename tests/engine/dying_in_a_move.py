"""``python -m engine`` on Ray, one of whose actors is killed while generators are lent or come back.

    python -m tests.engine.dying_in_a_move generator-1 vacate train run.toml

kills ``generator-1`` as soon as the first ``vacate`` of a generator has been answered, before anything else is done.
"""

import os
import runpy
import signal
import sys
from collections.abc import Iterable, Sequence

from engine.cluster.generator_group import GeneratorGroup, Method
from tests.engine.losing_node import noting_pids


def dying_in_a_move(victim: str, method: Method) -> Sequence[str]:
    """This program, as arguments of ``python -m``."""
    return "tests.engine.dying_in_a_move", victim, method


def main(victim: str, method: str) -> None:
    pids: dict[str, int] = {}
    noting_pids(pids)
    ask, killed = GeneratorGroup._ask, False

    async def asked(group: GeneratorGroup, numbers: Iterable[int], wanted: Method) -> int:
        nonlocal killed
        turns = await ask(group, numbers, wanted)
        if wanted == method and not killed:
            killed = True
            os.kill(pids[victim], signal.SIGKILL)
        return turns

    GeneratorGroup._ask = asked  # type: ignore[method-assign]
    runpy.run_module("engine", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    victim, method, *sys.argv[1:] = sys.argv[1:]
    main(victim, method)
