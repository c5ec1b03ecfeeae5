"""Which curves the run page shows, in its order.  What is told and stands in none of them gets a chart of its own."""

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from webapp.runs.lanes import LANES
from webapp.runs.now import GLOSSARY
from webapp.runs.usage import ROLES

Unit = Literal["share", "number", "count"]
"""share: 0 to 1, shown in percent.  number: three places.  count: no places."""


@dataclass(frozen=True)
class Chart:
    id: str
    title: str
    curves: dict[str, str]
    """Metric key -> its name in the legend."""
    unit: Unit = "number"
    right: dict[str, str] = field(default_factory=dict)
    """Curves of another unit, on an axis at the right."""
    markers: bool = False
    """Few, meaningful points: show each."""
    x: str = "step"
    is_optional: bool = False
    """Shown only where one of its curves has values: the recipe has that part."""


CHARTS = (
    Chart("reward", "Reward and success", {"train/reward": "Reward", "train/success": "Success"}),
    Chart(
        "heldout",
        "Held-out success",
        {
            "eval/success_greedy": "Greedy",
            "eval/success_sampled": "Sampled",
            "eval/success_purified": "Sampled, with repairs",
            "eval/success_oracle": "The environment's own solution",
            "eval/success_nop": "Nothing done",
            "eval/success_script": "A script",
        },
        "share",
        markers=True,
    ),
    Chart(
        "tool-errors",
        "Tool-error rate",
        {"train/tool_error_rate": "Training", "eval/tool_error_rate": "Held-out"},
        "share",
    ),
    Chart(
        "levels",
        "Held-out by level, greedy",
        {f"eval/level_{n}_greedy": f"Level {n}" for n in (1, 2, 3, 4, 5)},
        "share",
        markers=True,
    ),
    Chart("entropy", "Entropy", {"train/entropy": "Entropy"}),
    Chart(
        "length",
        "Response length",
        {"train/response_tokens": "Tokens"},
        right={"train/turns": "Turns", "train/tool_calls": "Tool calls"},
    ),
    Chart("throughput", "Throughput", {"perf/tokens_per_s": "Tokens/s"}, "count"),
    Chart("loss", "Loss and gradient", {"train/loss": "Loss"}, right={"train/grad_norm": "Gradient norm"}),
    Chart(
        "ratio", "Policy ratio", {"train/clip_fraction": "Clipped"}, "share", right={"train/ratio_max": "Largest ratio"}
    ),
    Chart("staleness", "Staleness", {"train/staleness_mean": "Mean", "train/staleness_max": "Largest"}),
    Chart(
        "seconds",
        "Seconds per step",
        {"perf/step_seconds": "Step", "perf/collect_seconds": "Collect", "perf/update_seconds": "Update"},
    ),
    Chart(
        "cold-start",
        "Supervised loss",
        {"sft/loss": "Training", "sft/validation_loss": "Held out"},
        x="supervised step",
    ),
    Chart(
        "repairs",
        "Repaired tool calls",
        {"train/repairs_shallow": "Shallow", "train/repairs_deep": "Deep", "train/repairs_failed": "Failed"},
        "count",
        is_optional=True,
    ),
    Chart(
        "first-attempts",
        "Tool errors before and after repair",
        {"train/first_attempt_error_rate": "First attempts", "train/tool_error_rate": "After repair"},
        "share",
        is_optional=True,
    ),
    Chart(
        "masked",
        "Rollouts not trained on",
        {
            "train/masked/overlong": "Overlong",
            "train/masked/incomplete": "Incomplete",
            "train/masked/void-turn": "Void turn",
            "train/masked/repetitive": "Repetitive",
            "train/masked/unreadable": "Unreadable",
            "train/masked/low-variance-group": "Low variance",
            "train/masked/dynamic-sampling": "Dropped group",
            "train/resampled": "Replaced",
        },
        "count",
        is_optional=True,
    ),
    Chart(
        "sampling",
        "Dynamic sampling",
        {"train/groups_dropped": "Groups dropped", "train/sampling_rounds": "Rounds"},
        "count",
        is_optional=True,
    ),
    Chart(
        "starts",
        "Starts inside expert trajectories",
        {"train/prefix_share": "Share replayed", "train/success_fresh": "Success of fresh starts"},
        "share",
        {"train/prefilled_groups": "Groups", "train/replay_diverged": "Diverged"},
        is_optional=True,
    ),
    Chart(
        "self-imitation",
        "Self-imitation",
        {"sil/weight": "Weight", "sil/baseline": "Baseline reward"},
        right={"sil/buffer": "Kept", "sil/replayed": "Replayed", "sil/expired": "Expired"},
        is_optional=True,
    ),
    Chart(
        "critic",
        "Critic",
        {"critic/loss": "Loss"},
        right={"critic/explained_variance": "Explained variance"},
        is_optional=True,
    ),
    Chart(
        "preferences",
        "Preferences (DPO)",
        {"dpo/accuracy": "Accuracy", "dpo/margin": "Margin"},
        right={"dpo/pairs": "Pairs"},
        is_optional=True,
    ),
    Chart(
        "judge",
        "Judge",
        {"judge/good": "Turns judged good"},
        "share",
        {"judge/seconds": "Seconds", "judge/failed": "Failed"},
        is_optional=True,
    ),
    Chart(
        "quarantine",
        "Quarantined trajectories",
        {
            "train/quarantined": "Quarantined",
            "train/released": "Released, trained on",
            "train/quarantine_discarded": "Discarded undecided",
            "train/released_too_late": "Decided too late",
        },
        "count",
        is_optional=True,
    ),
    Chart("kl", "KL to the reference", {"train/kl_to_reference": "KL"}, is_optional=True),
    Chart(
        "agents",
        "How agents ended",
        {
            "agents/done": "Done",
            "agents/crashed": "Crashed",
            "agents/silent": "Never called",
            "agents/over-budget": "Over budget",
            "agents/killed": "Killed",
            "agents/frozen": "Frozen",
        },
        "count",
        is_optional=True,
    ),
)

TIMELINE = (
    Chart(
        "waits",
        "Who waited",
        {
            "buffer/trainer_waited_seconds": "Training, for rollouts",
            "buffer/generation_blocked_seconds": "Generation, to run ahead",
        },
        is_optional=True,
    ),
    Chart(
        "buffer",
        "Buffer",
        {"buffer/ready": "Groups ready", "buffer/running": "In play", "buffer/waiting": "Planned"},
        "count",
        {"buffer/discarded_stale": "Given up, too old"},
        is_optional=True,
    ),
    Chart(
        "redundancy",
        "Redundant rollouts",
        {"redundancy/unused_rollouts": "Played and not used"},
        "count",
        {"redundancy/unused_tokens": "Their tokens"},
        is_optional=True,
    ),
    Chart(
        "estimate",
        "Seconds left: the estimate, and what came",
        {"perf/eta_seconds": "Estimated", "came/left_seconds": "Came"},
        "count",
        is_optional=True,
    ),
    Chart(
        "processors",
        "Processors busy, by role",
        {f"perf/cpu_{role}": name for role, (name, _) in ROLES.items()},
        is_optional=True,
    ),
    Chart(
        "memory",
        "Memory by role, MiB",
        {f"perf/memory_mib_{role}": name for role, (name, _) in ROLES.items()},
        "count",
        is_optional=True,
    ),
    Chart(
        "servers",
        "SGLang servers",
        {"servers/running": "Requests running", "servers/queued": "Queued", "servers/up": "Servers up"},
        "count",
        {"servers/tokens_per_s": "Tokens/s"},
        is_optional=True,
    ),
    Chart(
        "judge-servers",
        "Servers of the judge",
        {
            "judge_servers/running": "Requests running",
            "judge_servers/queued": "Queued",
            "judge_servers/up": "Servers up",
        },
        "count",
        {"judge_servers/tokens_per_s": "Tokens/s"},
        is_optional=True,
    ),
    Chart(
        "gpus",
        "GPUs busy, by role",
        {f"perf/gpu_{role}": name for role, (name, _) in ROLES.items()},
        "share",
        is_optional=True,
    ),
)
"""Those of the tab that tells who works and who waits.  The page computes ``came/left_seconds`` (``estimate.js``)."""
AGES = "staleness/"
"""What the keys begin with that say which share of the trained rollouts was how many versions old."""


@dataclass(frozen=True)
class Figure:
    """One cell of the strip above the curves."""

    key: str
    title: str
    unit: Unit = "number"
    better: Literal["up", "down", ""] = "up"
    """Which direction of change is good news; empty: neither."""


FIGURES = (
    Figure("train/reward", "Reward"),
    Figure("eval/success_greedy", "Success, greedy", "share"),
    Figure("eval/success_sampled", "Success, sampled", "share"),
    Figure("train/tool_error_rate", "Tool errors", "share", "down"),
    Figure("train/entropy", "Entropy", better=""),
    Figure("perf/tokens_per_s", "Tokens/s", "count", ""),
    Figure("train/response_tokens", "Response tokens", better=""),
    Figure("train/staleness_mean", "Staleness", better="down"),
)

PHASES = ("sync-weights", "collect", "score", "judge", "credit", "update", "evaluate", "checkpoint")
"""The phases of a step that the time strip shows."""


def in_order(first: str = "") -> list[Chart]:
    """All charts, the one that is called ``first`` before the others."""
    return sorted(CHARTS, key=lambda chart: chart.id != first)


def _terms() -> dict[str, tuple[str, str]]:
    """What a reader may ask about: phases, lanes as ``lane-<name>`` and roles as ``role-<name>``."""
    lanes = {f"lane-{lane}": words for lane, words in LANES.items()}
    return GLOSSARY | lanes | {f"role-{role}": words for role, words in ROLES.items()}


def as_data() -> dict[str, Any]:
    """Return what the page's script reads."""
    return {
        "glossary": {term: {"name": name, "meaning": meaning} for term, (name, meaning) in _terms().items()},
        "charts": [asdict(chart) for chart in CHARTS + TIMELINE],
        "ages": AGES,
        "lane_names": {lane: name for lane, (name, _) in LANES.items()},
        "figures": [asdict(figure) for figure in FIGURES],
        "phases": PHASES,
    }
