"""What the ranks of a sharded trainer do together: shard a network, add numbers up, write and read a checkpoint.

FSDP2 (``fully_shard``, the method of arXiv:2304.11277 per parameter) gives each rank an equal part of every parameter,
its gradient and its moments.  Gradients are summed over the ranks, not averaged: what a loss is divided by counts the
tokens of all ranks.

Every call is collective: all ranks make it, in the same order.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.state_dict_loader import load as load_sharded
from torch.distributed.checkpoint.state_dict_saver import save as save_sharded
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from engine.durable import read_back
from engine.training.backends.sharding import Rank

__all__ = ["ShardedRank", "read_shards", "refuse_missing_shards", "write_shards"]

LOOPBACK = "lo"
"""All ranks are on one machine, and nobody else's business."""


class ShardedRank:
    """Implements ``Rank``.  A process has one at a time; ``leave`` ends it.

    The ranks find each other through ``meeting``, a file in a folder that nobody else may read; they talk over the
    loopback interface.  A rank that waits for another for longer than ``timeout_s`` raises RuntimeError.
    """

    def __init__(self, number: int, size: int, *, device: torch.device, meeting: Path, timeout_s: float) -> None:
        self.number, self.size, self._device = number, size, device
        os.environ.update(GLOO_SOCKET_IFNAME=LOOPBACK, NCCL_SOCKET_IFNAME=LOOPBACK)
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo",
            store=dist.FileStore(str(meeting), size),  # type: ignore[attr-defined]
            rank=number,
            world_size=size,
            timeout=timedelta(seconds=timeout_s),
        )
        self._mesh = init_device_mesh(device.type, (size,))

    def leave(self) -> None:
        """Give up the process group; another one may follow."""
        dist.destroy_process_group()

    def shard(self, root: nn.Module, layers: Sequence[nn.Module], computed_in: torch.dtype | None) -> None:
        reduced_in = None if computed_in is None else torch.float32
        policy = MixedPrecisionPolicy(param_dtype=computed_in, reduce_dtype=reduced_in, cast_forward_inputs=False)
        for layer in layers:
            fully_shard(layer, mesh=self._mesh, mp_policy=policy)
        fully_shard(root, mesh=self._mesh)
        for module in (*layers, root):
            assert isinstance(module, FSDPModule)
            # A sum, and as a plain one: gloo has no scaled one.
            module.set_force_sum_reduction_for_comms(True)
            module.set_gradient_divide_factor(1.0)
            # Parameters that some rank's tokens did not reach, e.g. of an expert, take part with a gradient of 0.
            module.set_reduce_scatter_unused_params(True, recurse=False)

    def rest(self, root: nn.Module) -> None:
        assert isinstance(root, FSDPModule)
        root.reshard()

    def total(self, number: float) -> float:
        return self._reduced(torch.tensor(number, dtype=torch.float64), dist.ReduceOp.SUM)

    def most(self, number: int) -> int:
        return int(self._reduced(torch.tensor(number, dtype=torch.int64), dist.ReduceOp.MAX))

    def agreed(self, holds: bool) -> bool:
        return bool(self._reduced(torch.tensor(int(holds), dtype=torch.int64), dist.ReduceOp.MIN))

    def _reduced(self, number: Tensor, how: Any) -> float:
        """On the host, where gloo reduces it."""
        dist.all_reduce(number, how)
        return float(number.item())


def write_shards(folder: Path, tensors: Mapping[str, Tensor]) -> None:
    """Every rank writes its part of what it holds.  Raises OSError, on every rank if on one."""
    with as_os_error(folder):
        save_sharded(dict(tensors), storage_writer=FileSystemWriter(folder, sync_files=False))


def refuse_missing_shards(folder: Path) -> None:
    """Raise OSError where a rank has written its part somewhere else, e.g. on a disk that is not shared."""
    described = FileSystemReader(folder).read_metadata().storage_data or {}
    missing = sorted({part.relative_path for part in described.values()} - {path.name for path in folder.iterdir()})
    if missing:
        raise FileNotFoundError(f"{folder}: {', '.join(missing)} of another rank did not arrive here")


def read_shards(folder: Path, held: Callable[[str], Tensor], rank: Rank) -> dict[str, Tensor]:
    """Read what ``write_shards`` wrote there on however many ranks, each laid out as ``held`` has the one of its name.

    Raises DamagedFile.
    """
    with read_back(folder), as_os_error(folder):
        reader = FileSystemReader(folder)
        tensors = {name: torch.zeros_like(held(name)) for name in reader.read_metadata().state_dict_metadata}
        load_sharded(tensors, storage_reader=reader, no_dist=rank.size == 1)
    return tensors


@contextmanager
def as_os_error(folder: Path) -> Iterator[None]:
    """torch collects what went wrong on each rank in a class that is no Exception."""
    try:
        yield
    except CheckpointException as error:
        first = next(iter(error.failures.values()))[0]
        raise OSError(f"{folder}: {type(first).__name__}: {first}") from error
