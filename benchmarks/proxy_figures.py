"""What is measured of a proxy, ours or another's."""

import asyncio
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from benchmarks.proxy_agents import Calls


@dataclass(frozen=True)
class Added:
    """What a proxy added to the calls of one round."""

    p50_ms: float
    p95_ms: float
    calls_per_s: float

    @classmethod
    def of(cls, added_s: NDArray[np.float64], seconds: float) -> Self:
        """``added_s``: of each call; ``seconds``: of all calls together."""
        added_ms = added_s.ravel() * 1000
        p50_ms, p95_ms = (float(np.quantile(added_ms, part)) for part in (0.5, 0.95))
        return cls(p50_ms, p95_ms, added_ms.size / seconds)


async def in_agents(agents: ProcessPoolExecutor, what: Any, calls: Calls) -> Any:
    return await asyncio.get_running_loop().run_in_executor(agents, what, calls)
