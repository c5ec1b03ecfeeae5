"""How many columns of the cache a pass must look at, so that looking at fewer changes no bit.

Columns beyond everybody's last position count for nothing: their weights are exactly 0.  Leaving them out is
sound arithmetic, and still not always equal bits, because a kernel may sum in another order when its operands have
another shape.  So it is tried, on the machine, with the shapes and in the thread of the real passes, before the first
of them: a width is *proven* where random queries, keys and values come out equal to the last bit.  Kernels choose
their order by shape and never by content.  Only float32 on a CPU is tried: in 16 bits, rounding would hide most of the
differences that the proof is to find, and a GPU's libraries choose among more kernels than that.
"""

from collections.abc import Set

import torch
from torch import Tensor

from engine.inference.torch.attention import attended, bias, looked_at
from engine.models.architecture import Architecture

COLUMN_MULTIPLE = 16
MOST_WIDTHS = 16
DRAWS = 2


class Widths:
    """The proven widths of one decoder's passes, by their shapes.  Belongs to the thread that computes them."""

    def __init__(self, architecture: Architecture, columns: int, scratch_position: int, *, proves: bool) -> None:
        """``proves`` is whether the decoder's device and dtype are those in which a proof holds."""
        self._architecture, self._columns, self._scratch_position = architecture, columns, scratch_position
        self._proves = proves
        self._proven: dict[tuple[int, int, bool], list[int]] = {}

    def of(self, positions_RC: Tensor, *, gathers: bool) -> int:
        """The fewest columns for a pass at these positions, of which padding counts for nothing."""
        if not self._proves:
            return self._columns
        shape = (*positions_RC.shape, gathers)
        if shape not in self._proven:
            self._proven[shape] = self._proven_of(*positions_RC.shape, gathers=gathers)
        positions = positions_RC.numpy()  # on a CPU, where this costs less than a few small operations
        last = int(positions.max(initial=0, where=positions != self._scratch_position))
        return next((width for width in self._proven[shape] if width > last), self._columns)

    def _proven_of(self, rows: int, tokens: int, *, gathers: bool) -> list[int]:
        step = -(-self._columns // (COLUMN_MULTIPLE * MOST_WIDTHS)) * COLUMN_MULTIPLE
        random = torch.Generator().manual_seed(0)
        equal = set(range(step, self._columns, step))
        for _ in range(DRAWS):
            equal &= self._equal_in(equal, rows, tokens, gathers=gathers, random=random)
        return sorted(equal)

    def _equal_in(
        self, widths: Set[int], rows: int, tokens: int, *, gathers: bool, random: torch.Generator
    ) -> Set[int]:
        """Those of these widths whose columns alone come out as all of them do, over the same random ones."""
        a = self._architecture
        q_NHE = torch.randn(rows * tokens, a.heads, a.head_dim, generator=random)
        keys_RKEW = torch.randn(rows, a.kv_heads, a.head_dim, self._columns, generator=random)
        values_RKWE = torch.randn(rows, a.kv_heads, self._columns, a.head_dim, generator=random)
        anywhere_RC = torch.randint(0, self._columns, (rows, tokens), generator=random)
        slots_R = torch.arange(rows) if gathers else None

        def output(columns: int, positions_RC: Tensor) -> Tensor:
            kept = bias(torch.arange(columns), positions_RC, a.heads // a.kv_heads)
            return attended(q_NHE, *looked_at(keys_RKEW, values_RKWE, slots_R, columns), kept)

        def equal(width: int) -> bool:
            positions_RC = anywhere_RC % width
            positions_RC[0, 0] = width - 1
            return torch.equal(output(width, positions_RC), output(self._columns, positions_RC))

        return {width for width in widths if equal(width)}
