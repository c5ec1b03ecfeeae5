"""How often a process of a run looks for garbage."""

import subprocess
import sys

from engine.cluster.garbage import YOUNG_OBJECTS

LOOKS = """
import gc
from engine.cluster.garbage import collect_rarely
kept = [[] for _ in range(5)]
collect_rarely()
assert gc.get_freeze_count() > 0
assert gc.get_threshold()[0] == int({young})
cycle = []
cycle.append(cycle)
alive = id(cycle)
del cycle
assert gc.collect() > 0
"""


def test_what_stays_is_not_looked_at_again_and_cycles_still_end() -> None:
    subprocess.run([sys.executable, "-c", LOOKS.format(young=YOUNG_OBJECTS)], check=True, timeout=60)
