"""How often a process of a run looks for garbage in cycles, of which documents and samples make none."""

import gc

YOUNG_OBJECTS = 10_000
"""So many new objects are looked through together.  Python's own number, 700, costs a step of small rollouts 2 %."""


def collect_rarely() -> None:
    """To be called once everything that stays is made: a full collection need not look at it again."""
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS)
