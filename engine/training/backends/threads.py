"""A rank's threads: they share each operation of the network, or its micro-batches (``resources.threads_share``).

An operation of a small network is over before a second thread has begun with its half.  Micro-batches are work for
seconds, and nothing of one waits for another: each thread computes its own with one thread per operation, keeps their
gradient to itself, and gradients are added up in the order of the threads.  So the sum does not depend on which of them
is faster.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

from engine.spec.resources import Resources
from engine.training.microbatch import MicroBatch

__all__ = ["Threads"]

T = TypeVar("T")


class Threads:
    """Torch keeps how many there are partly per thread and partly per process, where a generator may have set its own:
    ``use`` says it again."""

    def __init__(self, resources: Resources) -> None:
        shares = resources.threads_share == "micro-batches"
        self.sharing = resources.threads if shares else 1
        """How many share the micro-batches."""
        self._of_operations = 1 if shares else resources.threads
        self._pool: ThreadPoolExecutor | None = None

    def use(self) -> None:
        torch.set_num_threads(self._of_operations)

    def each(self, batches: Sequence[MicroBatch], compute: Callable[[list[int]], T]) -> list[T]:
        """What ``compute`` answers of the numbers of each thread's micro-batches, in the order of the threads.

        Raises what the first of them raised, once all of them are done.
        """
        dealt = dealt_out([computed_tokens(batch) for batch in batches], self.sharing)
        if len(dealt) == 1:
            return [compute(dealt[0])]
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self.sharing, thread_name_prefix="trainer", initializer=self.use)
        begun = [self._pool.submit(compute, numbers) for numbers in dealt]
        failures = [failure for computing in begun if (failure := computing.exception()) is not None]
        if failures:
            raise failures[0]
        return [computing.result() for computing in begun]


def computed_tokens(batch: MicroBatch) -> int:
    """Tokens that the network computes for it, padding included."""
    return batch.token_ids_BT.numel() if batch.trees is None else batch.trees.token_ids_RL.numel()


def dealt_out(costs: Sequence[int], shares: int) -> list[list[int]]:
    """The numbers of the costs in shares of about equal sums, each in rising order; one share at least, none in vain.

    The largest first, each to whom has least so far.
    """
    dealt: list[list[int]] = [[] for _ in range(min(shares, max(len(costs), 1)))]
    sums = [0] * len(dealt)
    for number in sorted(range(len(costs)), key=lambda number: -costs[number]):
        least = sums.index(min(sums))
        dealt[least].append(number)
        sums[least] += costs[number]
    return [sorted(numbers) for numbers in dealt]
