"""In which numbers two measurements of a run differ, each said so that it can be read."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

Document = Mapping[str, Any]
"""``runs.Numbers`` as JSON."""

NEVER = "nothing"
SAME_TOKENS = 0.8
"""The tokens of the first rollouts, where processors add differently: a token hangs on the last bits only where a draw
falls right between two, and of some ten thousand tokens that were tried none did."""
RELATIVE, ABSOLUTE = 3e-3, 3e-5
"""How far metrics may then be apart: some thousand times what was measured between the kernels of one processor."""


def differences(name: str, recorded: Document, now: Document) -> list[str]:
    """Every number that is not what was recorded, to the last digit."""
    return [
        f"{name}, {place}: recorded {before}, now {after}"
        for place, before, after in _differing(_flat(recorded), _flat(now))
    ]


def far_differences(name: str, recorded: Document, now: Document) -> list[str]:
    """What cannot be explained by another order of adding: the same things are told, the supervised losses agree, and
    so do the first rollouts, and all metrics for as long as the rollouts do."""
    found = [f"{name}, {place}: told only once" for place in sorted(_flat(recorded).keys() ^ _flat(now).keys())]
    for group in _first_rollouts(recorded, now):
        before, after = (document["rollouts"][group]["tokens"] for document in (recorded, now))
        shared = (Counter(before) & Counter(after)).total()
        if shared < SAME_TOKENS * max(len(before), len(after)):
            found.append(f"{name}, {group}: only {shared} of {len(before)} rollouts have the recorded tokens")
    for place, before, after in _differing(_comparable(recorded, now), _comparable(now, recorded)):
        if not _is_near(before, after):
            found.append(f"{name}, {place}: recorded {before}, now {after}, and no processor differs so much")
    return found


def _flat(document: Document) -> dict[str, Any]:
    """What stands where, in words."""
    flat = {f"summary, {key}": value for key, value in document["summary"].items()}
    for metric, by_step in document["metrics"].items():
        flat |= {f"step {step}, {metric}": value for step, value in by_step.items()}
    for group, digests in document["rollouts"].items():
        flat |= {f"rollouts, {group}, {field}": value for field, value in digests.items()}
    return flat | {"the weights of the newest checkpoint": document["weights"]}


def _differing(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    for place in [*before, *(place for place in after if place not in before)]:
        pair = before.get(place, NEVER), after.get(place, NEVER)
        if pair[0] != pair[1]:
            yield place, *pair


def _first_rollouts(recorded: Document, now: Document) -> list[str]:
    """Those of the policy before its first update, in both."""
    shared = [group for group in recorded["rollouts"] if group in now["rollouts"]]
    return [group for group in shared if group.endswith((" of step 0", "train of step 1"))]


def _comparable(document: Document, other: Document) -> dict[str, float]:
    """The supervised losses; and all metrics up to the first step whose rollouts do not have the same tokens."""
    metrics = document["metrics"]
    comparable = {f"step {step}, sft/loss": value for step, value in metrics["sft/loss"].items()}
    last = _agreeing_until(document["rollouts"], other["rollouts"])
    for name, by_step in metrics.items():
        comparable |= {f"step {step}, {name}": value for step, value in by_step.items() if int(step) <= last}
    return comparable


def _agreeing_until(recorded: Document, now: Document) -> float:
    """The last step up to which all rollouts have the recorded tokens."""
    tokens = [{group: digests["tokens"] for group, digests in rollouts.items()} for rollouts in (recorded, now)]
    other = [int(group.rpartition(" ")[2]) for group, *_ in _differing(*tokens)]
    return min(other, default=math.inf) - 1


def _is_near(before: Any, after: Any) -> bool:
    return NEVER in (before, after) or math.isclose(before, after, rel_tol=RELATIVE, abs_tol=ABSOLUTE)
