"""Whether all weights of a folder are numbers: NaN and infinities come from damaged files and from runs that diverged.

The files are read once from their beginnings to their ends, 1 MiB at a time, and every bit of the weights is looked
at: a second or less for each GiB, or as long as the disk takes to read it.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from engine.models.folder import BYTES_OF_DTYPE, ModelFolder, TensorHeader

REMEDY = "download the file again, or use a model whose training did not diverge"
PIECE_BYTES = 2**20
EXPONENTS = {"F64": 0x7FF << 52, "F32": 0xFF << 23, "F16": 0x1F << 10, "BF16": 0xFF << 7}
"""The bits that are all set in NaN and in the infinities, and in nothing else."""


@dataclass(frozen=True, slots=True)
class WeightsRead:
    problem: str | None
    """Which weights are none; None where all that were read are fine."""
    bytes_done: int
    """How many bytes of the weights, in the order in which they are read, were looked at by now."""
    bytes: int


def read_weights(folder: ModelFolder, *, after_bytes: int = 0, seconds: float = float("inf")) -> WeightsRead:
    """Look at the weights behind the first ``after_bytes``, as whole tensors, until the time is over."""
    until = time.monotonic() + seconds
    done, bad = 0, list[str]()
    tensors = sorted(folder.tensors.items(), key=lambda item: (item[1].file.name, item[1].begins))
    total = sum(_size(tensor) for _, tensor in tensors)
    for name, tensor in tensors:
        done += _size(tensor)
        if done <= after_bytes:
            continue
        if (found := _nonfinite(tensor)) is not None:
            bad.append(f"{tensor.file.name}: {name} holds {found}")
        if time.monotonic() > until:
            break
    return WeightsRead(_in_words(bad), done, total)


def nonfinite_problem(folder: ModelFolder) -> str | None:
    """Say which weights are no numbers.  Asked again, this process reads only files that have changed meanwhile."""
    files = sorted({tensor.file for tensor in folder.tensors.values()})
    states = [(file, file.stat()) for file in files]
    key = tuple((file, state.st_size, state.st_mtime_ns) for file, state in states)
    if key not in _known:
        _known[key] = read_weights(folder).problem
    return _known[key]


_known: dict[tuple[tuple[Path, int, int], ...], str | None] = {}


def _size(tensor: TensorHeader) -> int:
    return tensor.elements * BYTES_OF_DTYPE[tensor.dtype]


def _nonfinite(tensor: TensorHeader) -> str | None:
    """``NaN`` or ``Inf``, whichever the tensor holds first."""
    mask = EXPONENTS[tensor.dtype]
    for bits in _pieces(tensor):
        exponents = bits & bits.dtype.type(mask)
        if exponents.max(initial=0) == mask:
            first = bits[exponents == mask][0]
            return "NaN" if int(first) & ((1 << mask.bit_length()) - 1 - mask) else "Inf"
    return None


def _pieces(tensor: TensorHeader) -> Iterator["np.ndarray[tuple[int], np.dtype[np.unsignedinteger]]"]:
    width, left = BYTES_OF_DTYPE[tensor.dtype], _size(tensor)
    with tensor.file.open("rb", buffering=0) as opened:
        opened.seek(tensor.begins)
        while left > 0:
            piece = opened.read(min(PIECE_BYTES, left))
            whole = len(piece) - len(piece) % width
            if not whole:
                raise OSError(5, "it has become shorter", str(tensor.file))
            opened.seek(whole - len(piece), 1)
            left -= whole
            yield np.frombuffer(piece[:whole], f"<u{width}")


def _in_words(bad: list[str]) -> str | None:
    if not bad:
        return None
    others = "" if len(bad) == 1 else f", and {len(bad) - 1} other weights hold NaN or Inf too"
    return bad[0] + others
