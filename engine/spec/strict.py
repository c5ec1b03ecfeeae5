"""The one base class of everything that is published: unknown fields are errors; and how much is too much.

A number without an upper bound is a hang, an allocation that fails or a row that the database refuses, long after the
spec was taken.  The bounds leave room for whatever a run can really do.
"""

from pydantic import BaseModel, ConfigDict

MOST_STEPS = 10**7
"""It bounds steps of any kind, because a step is a row of every curve."""
MOST_THINGS = 10**6
"""Demonstrations, rollouts, buffered trajectories: what is kept in memory."""
MOST_TASKS = 2**31 - 1
LONGEST_SCHEDULE = 10**15
"""Updates over which something rises or falls: so many that it stays what it is."""
LARGEST_NUMBER = 10**6
"""It bounds rewards and weights: beyond it 32-bit floats lose what they are added to."""
OUT_OF_REACH = 1e30
"""It bounds clips and bounds of ratios, which may be meant never to apply; still a 32-bit float."""


class Strict(BaseModel):
    """Rejects unknown fields, is frozen, and keeps the docstring under a field as its description."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True, allow_inf_nan=False)
