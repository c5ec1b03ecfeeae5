"""Distributed checkpoints: each rank writes its part, and any layout reads it back.

Megatron describes every part by its place in the whole parameter; what is written are master weights (float32), moments
and the reference under these descriptions, in the form of ``torch.distributed.checkpoint``.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from megatron.core import dist_checkpointing
from megatron.core.dist_checkpointing.mapping import ShardedTensor, ShardedTensorFactory
from megatron.core.dist_checkpointing.optimizer import make_sharded_optimizer_tensor
from megatron.core.dist_checkpointing.strategies.torch import (
    MCoreSavePlanner,
    TorchDistSaveShardedStrategy,
    _replace_state_dict_keys_with_sharded_keys,
    mcore_to_pyt_state_dict,
)
from torch import Tensor
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.state_dict_saver import save as save_sharded

from engine.durable import read_back
from engine.training.backends.megatron.model import HiddenStates
from engine.training.backends.sharded_rank import as_os_error

__all__ = ["read", "write"]

Parts = Mapping[str, Mapping[str, Tensor]]
"""This rank's tensors, by what they are (``trained``, ``exp_avg``, ...) and by Megatron's names."""


def write(folder: Path, model: HiddenStates, parts: Parts, *, divided: bool) -> None:
    """Every rank writes its part.  ``divided``: of copies, only the rank that holds one writes it.  Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    with as_os_error(folder):
        dist_checkpointing.save(_described(model, parts, divided=divided), str(folder), _InThisProcess("torch_dist", 1))


def read(folder: Path, model: HiddenStates, parts: Parts, *, divided: bool) -> dict[str, dict[str, Tensor]]:
    """What ``write`` wrote in whatever layout, of the shapes and names of ``parts``.  Raises DamagedFile."""
    with read_back(folder), as_os_error(folder):
        loaded: dict[str, Any] = dist_checkpointing.load(_described(model, parts, divided=divided), str(folder))
    return {what: {name: loaded[f"{what}/{name}"] for name in of} for what, of in parts.items()}


def _described(model: HiddenStates, parts: Parts, *, divided: bool) -> dict[str, Any]:
    places: dict[str, Any] = model.sharded_state_dict()
    return {
        f"{what}/{name}": _placed(places[name], tensor, what, divided=divided)
        for what, of in parts.items()
        for name, tensor in of.items()
    }


def _placed(place: Any, tensor: Tensor, what: str, *, divided: bool) -> ShardedTensor | ShardedTensorFactory:
    described = make_sharded_optimizer_tensor(place, tensor.detach(), what)
    if divided and isinstance(described.replica_id, tuple):
        # The last of a copy's numbers is its data-parallel rank: who owns it writes it.
        return replace(described, replica_id=(*described.replica_id[:-1], 0))
    return described


class _InThisProcess(TorchDistSaveShardedStrategy):  # type: ignore[misc]
    """Megatron's form, written by the rank itself: Megatron's own writer starts processes, which a rank cannot have."""

    def save(self, sharded_state_dict: dict[str, Any], checkpoint_dir: str) -> None:
        named, _, _ = _replace_state_dict_keys_with_sharded_keys(sharded_state_dict, keep_only_main_replica=True)
        save_sharded(
            mcore_to_pyt_state_dict(named, False),
            storage_writer=FileSystemWriter(checkpoint_dir, sync_files=False),
            planner=MCoreSavePlanner(dedup_replicated_tensors=False, flatten_state_dict=False),
        )
