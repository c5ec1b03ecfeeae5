"""The policy's weights on their way from whoever trains them to whoever samples from them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from torch import Tensor


class WeightSource(Protocol):
    """Where a generator gets weights from.

    It travels from the learner to the generator as an object reference and is never resolved on the way.  Whether it
    carries the tensors or says where they can be fetched is its own business.
    """

    def tensors(self) -> Iterable[tuple[str, "Tensor"]]:
        """All weights by their Hugging Face names, one by one; of an adapter, by those of peft."""
        ...


class StateDict(dict[str, "Tensor"]):
    """A ``WeightSource`` that carries the tensors."""

    def tensors(self) -> Iterable[tuple[str, "Tensor"]]:
        return self.items()


@dataclass(frozen=True)
class LoraAdapter:
    """A ``WeightSource`` that carries A and B of each adapted module alone; ``config`` is that which peft writes."""

    config: Mapping[str, Any]
    factors: Mapping[str, "Tensor"]

    def tensors(self) -> Iterable[tuple[str, "Tensor"]]:
        return self.factors.items()
