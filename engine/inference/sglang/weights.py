"""New weights on their way to the servers, and what a restarted server gets.

``FolderExchange`` writes safetensors that every server reads; ``TensorExchange`` sends them within the requests.  Both
keep the newest weights, because a server that comes back has the oldest.  At most two versions are on the disk at once:
the one that servers have and the one that they are given.
"""

import asyncio
import base64
import pickle
import shutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Protocol

import torch
from safetensors.torch import save_file
from torch import Tensor

from engine.inference.sglang.client import SglangClient
from engine.models.weights import WeightSource

SHARD_BYTES = 2 * 2**30
PART_BYTES = 128 * 2**20
"""The length of one request; a third more as base64."""
RESERVE_BYTES = 256 * 2**20
"""The part of the disk that stays free."""


class NoRoomForWeights(RuntimeError):
    """The exchange folder's disk cannot hold another version."""


class Exchange(Protocol):
    """What brings weights to a server.  ``version`` is that of the newest ones, None before the first."""

    version: int | None

    async def take(self, source: WeightSource, version: int) -> None:
        """From now on these are the newest; what the source raises is raised here, and the older ones stay."""
        ...

    async def hold(self, client: SglangClient) -> None:
        """When this returns the server samples nothing of ours, and can be given weights."""
        ...

    async def give(self, client: SglangClient) -> None:
        """Bring the newest to one server that is held.  Raises ServerGone and ServerRefused, as all of these do."""
        ...

    async def go_on(self, client: SglangClient) -> None:
        """Undo ``hold``."""
        ...

    def close(self) -> None: ...


class WholeWeights:
    """What exchanges of whole weights have in common: a server that is paused keeps its requests, and has no batch."""

    async def hold(self, client: SglangClient) -> None:
        await client.pause()

    async def go_on(self, client: SglangClient) -> None:
        await client.proceed()


class FolderExchange(WholeWeights):
    """Weights in ``folder``/v<version>, in ``dtype``.  ``folder`` is the generator's own: it is made, and removed."""

    def __init__(self, folder: Path, dtype: torch.dtype) -> None:
        self.version: int | None = None
        self._root, self._dtype = folder, dtype
        self._newest: Path | None = None
        folder.mkdir(parents=True, exist_ok=True)

    async def take(self, source: WeightSource, version: int) -> None:
        """Raises NoRoomForWeights before anything is written."""
        written = await asyncio.to_thread(self._write, source, version)
        if self._newest is not None and self._newest != written:
            shutil.rmtree(self._newest)
        self._newest, self.version = written, version

    async def give(self, client: SglangClient) -> None:
        assert self._newest is not None  # nothing is given before something was taken
        assert self.version is not None
        await client.load_folder(str(self._newest), self.version)

    def close(self) -> None:
        shutil.rmtree(self._root, ignore_errors=True)

    def _write(self, source: WeightSource, version: int) -> Path:
        tensors = dict(source.tensors())
        self._check_room(sum(_bytes_as(tensor, self._dtype) for tensor in tensors.values()))
        folder = self._root / f"v{version}"
        partial = self._root / f"v{version}.partial"
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        try:
            self._save(tensors, partial)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
        shutil.rmtree(folder, ignore_errors=True)
        return partial.rename(folder)

    def _save(self, tensors: Mapping[str, Tensor], folder: Path) -> None:
        for number, shard in enumerate(parts_of(tensors.items(), SHARD_BYTES, self._dtype)):
            save_file(shard, folder / f"model-{number:05d}.safetensors")

    def _check_room(self, needed: int) -> None:
        free = shutil.disk_usage(self._root).free
        if needed + RESERVE_BYTES > free:
            raise NoRoomForWeights(
                f"resources.sglang.exchange_folder = {str(self._root)!r}: a version of the weights takes "
                f"{needed / 2**30:.2f} GiB and {free / 2**30:.2f} GiB are free; name a folder on another disk, or use "
                'resources.sglang.weights = "tensor"'
            )


class TensorExchange(WholeWeights):
    """Weights within requests, for each of a server's ``ranks`` alike.  The newest stay in memory."""

    def __init__(self, dtype: torch.dtype, *, ranks: int) -> None:
        self.version: int | None = None
        self._dtype, self._ranks = dtype, ranks
        self._tensors: dict[str, Tensor] = {}

    async def take(self, source: WeightSource, version: int) -> None:
        self._tensors = await asyncio.to_thread(lambda: dict(source.tensors()))
        self.version = version

    async def give(self, client: SglangClient) -> None:
        assert self.version is not None  # nothing is given before something was taken
        async with client.weight_update():
            for part in parts_of(self._tensors.items(), PART_BYTES, self._dtype):
                serialized = await asyncio.to_thread(serialized_tensors, part)
                await client.load_tensors(serialized, self._ranks, self.version)

    def close(self) -> None:
        self._tensors = {}


def serialized_tensors(tensors: Mapping[str, Tensor], *, as_mapping: bool = False) -> str:
    """Pairs of name and tensor with all their bytes, as the servers' unpickler takes them, in base64; or a mapping.

    Torch's way between processes would name memory that both see; this needs no common machine.
    """
    whole = [(name, tensor.detach().clone()) for name, tensor in tensors.items()]  # a view brings its whole storage
    return base64.b64encode(pickle.dumps(dict(whole) if as_mapping else whole)).decode()


def parts_of(tensors: Iterable[tuple[str, Tensor]], most_bytes: int, dtype: torch.dtype) -> Iterator[dict[str, Tensor]]:
    """In the order in which they come, each part as large as ``most_bytes`` allows; a larger tensor stands alone."""
    part: dict[str, Tensor] = {}
    size = 0
    for name, tensor in tensors:
        bytes_of_it = _bytes_as(tensor, dtype)
        if part and size + bytes_of_it > most_bytes:
            yield part
            part, size = {}, 0
        cast = tensor.to(dtype) if tensor.is_floating_point() else tensor
        part[name] = cast.detach().cpu().contiguous()
        size += bytes_of_it
    if part:
        yield part


def _bytes_as(tensor: Tensor, dtype: torch.dtype) -> int:
    return tensor.numel() * (dtype.itemsize if tensor.is_floating_point() else tensor.element_size())
