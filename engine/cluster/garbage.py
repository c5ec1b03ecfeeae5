"""How often a process of a run looks for garbage in cycles, of which documents and samples make none."""

import gc

YOUNG_OBJECTS = 50_000
"""So many new objects are looked through together: about as many as a step of 256 small rollouts leaves.  With 10,000
that took 20 to 100 ms of such a step, in which neither rollouts nor trainer went on."""


def collect_rarely() -> None:
    """To be called once everything that stays is made: a full collection need not look at it again."""
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS)
