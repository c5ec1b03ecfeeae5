"""The policy's weights on their way from whoever trains them to whoever samples from them."""

from collections.abc import Iterable
from typing import Protocol

from torch import Tensor


class WeightSource(Protocol):
    """Where a generator gets weights from.

    It travels from the learner to the generator as an object reference and is never resolved on the way.  Whether it
    carries the tensors or says where they can be fetched is its own business.
    """

    def tensors(self) -> Iterable[tuple[str, Tensor]]:
        """All weights by their Hugging Face names, one by one."""
        ...


class StateDict(dict[str, Tensor]):
    """A ``WeightSource`` that carries the tensors."""

    def tensors(self) -> Iterable[tuple[str, Tensor]]:
        return self.items()
