"""How numbers of one kind lie: what every benchmark gives instead of a mean."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Distribution:
    median: float
    p10: float
    p90: float
    min: float
    max: float
    n: int

    @classmethod
    def of(cls, values: Sequence[float]) -> "Distribution":
        """Quantiles are interpolated between neighbours.  Raises ValueError when there are no values."""
        if not values:
            raise ValueError("a distribution needs at least one value")
        middle, low, high = np.quantile(values, (0.5, 0.1, 0.9)).tolist()
        return cls(middle, low, high, min(values), max(values), len(values))

    def __str__(self) -> str:
        return f"{_short(self.median)} ({_short(self.min)} to {_short(self.max)})"


def _short(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.2f}"
