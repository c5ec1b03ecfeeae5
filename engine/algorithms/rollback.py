"""Where in an expert's trajectory the policy takes over.  Plain numbers: no torch.

IPA (ALE, section 3.2.4.4).  A *prefix* of f means that the expert's first f of K chunks are prefilled and the
policy samples the rest: 0 is a fresh start.  Restoring the environment there is the rollout's work.
"""

from math import comb
from random import Random
from typing import Literal


def next_prefix(prefix: int, *, success_rate: float, threshold: float = 0.5) -> int:
    """Sequential rollback: one chunk nearer to the head once the policy masters what is left, else stay.

    It starts at K - 1, with only the last chunk to be found.  The paper gives no threshold.
    """
    return max(0, prefix - 1) if success_rate >= threshold else prefix


def anchor_prefixes(
    chunks: int, anchors: int, *, how: Literal["uniform", "random"] = "uniform", seed: int
) -> list[int]:
    """Parallelised initialisation: prefixes, rising, to start several rollouts from each.

    Uniform ones divide 0 .. K - 1 evenly, both ends among them where there are two or more, and one alone stands
    in the middle: at 0 it would be no more than a fresh start.  Random ones are drawn without replacement.  With
    fewer chunks than anchors every prefix is one.
    """
    if anchors >= chunks:
        return list(range(chunks))
    if how == "random":
        return sorted(Random(seed).sample(range(chunks), anchors))
    if anchors == 1:
        return [chunks // 2]
    return [round(i * (chunks - 1) / (anchors - 1)) for i in range(anchors)]


def is_crucial(
    *, successes_with: int, rollouts_with: int, successes_without: int, rollouts_without: int, level: float = 0.05
) -> bool:
    """Return whether prefilling chunk f makes success significantly likelier than prefilling up to f - 1 only.

    Fisher's exact test, one-sided, at ``level``; the paper says "significantly" and names no test.  (Its
    definition has the two prefixes the other way round, against its own explanation, which we follow.)
    """
    rollouts, successes = rollouts_with + rollouts_without, successes_with + successes_without
    as_extreme = range(successes_with, min(successes, rollouts_with) + 1)
    ways = sum(comb(rollouts_with, k) * comb(rollouts_without, successes - k) for k in as_extreme)
    return ways / comb(rollouts, successes) < level
