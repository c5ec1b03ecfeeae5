"""An evaluation as a table for people: what a run's summary and page show of it.

It holds numbers and the names of tools that exist, and no text that a policy wrote.
"""

from pydantic import Field

from engine.spec.strict import Strict


class Rate(Strict):
    success: float = Field(ge=0, le=1)
    low: float = Field(ge=0, le=1)
    """The lower end of the 95 % interval over tasks; ``high`` is the upper one."""
    high: float = Field(ge=0, le=1)
    episodes: int = Field(ge=1)


class Rates(Strict):
    """The rates of some tasks, tried greedily, by sampling, and by sampling with repairs; None: not tried so."""

    tasks: int = Field(ge=0)
    greedy: Rate | None = None
    sampled: Rate | None = None
    purified: Rate | None = None
    oracle: Rate | None = None
    """Played by the environment's own solution; ``nop``: by an empty answer, ``script``: by ``evaluation.script``."""
    nop: Rate | None = None
    script: Rate | None = None
    pass_at: dict[str, float] = {}
    """pass@k by k, for those k for which some task has enough tries."""


class Level(Rates):
    level: int


class PartRates(Rates):
    """The rates of the tasks of one part of the environment."""

    part: str


class ToolUse(Strict):
    """How the sampled tries used a tool, or all tries where no model played."""

    tool: str
    calls: int = Field(ge=1)
    failed: int = Field(ge=0)
    callers: Rate
    """The success of the tries that called it."""


class EvaluationReport(Rates):
    step: int = Field(ge=0)
    """Finished steps of the run that was measured."""
    samples: int = Field(ge=1)
    """Sampled tries of each task that were asked for."""
    levels: list[Level]
    levels_left_out: int = Field(default=0, ge=0)
    parts: list[PartRates] = []
    """The parts of an environment that has parts."""
    tools: list[ToolUse]
