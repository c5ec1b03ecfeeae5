"""Adapters (LoRA) on their way to servers: A and B alone, loaded beside the model's own weights, which never change.

    hold   end the requests that are under way; each answers with the tokens that it has
    give   load the newest under a name of its own, name it in all further requests, unload the one before
    then   turns are asked again behind their tokens, with the new adapter

A name is never used twice.  So every token of a request is of one version, whatever the server says of its own weights,
and nothing that was read with an older adapter is taken for a newer one: a server's prefix cache knows adapters apart.
Nobody else's requests are paused (docs/decisions/0052).
"""

import json
import uuid
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from engine.inference.sglang.client import Adapter, SglangClient
from engine.inference.sglang.weights import FolderExchange, TensorExchange, parts_of, serialized_tensors
from engine.models.adapted_weights import CONFIG, WEIGHTS
from engine.models.weights import LoraAdapter, WeightSource

ONE_PART = 2**62


class AdapterExchange(ABC):
    """What both ways of an adapter have in common."""

    version: int | None

    async def hold(self, client: SglangClient) -> None:
        await client.drain()

    async def give(self, client: SglangClient) -> None:
        assert self.version is not None  # nothing is given before something was taken
        before, name = client.adapter, f"palestra-{uuid.uuid4().hex}-v{self.version}"
        await self._load(client, name)
        client.adapter = Adapter(name, self.version)
        if before is not None:
            await client.unload_adapter(before.name)

    async def go_on(self, client: SglangClient) -> None:
        """Nothing keeps a server but that nobody asks it."""
        return

    @abstractmethod
    async def _load(self, client: SglangClient, name: str) -> None: ...


class AdapterFolderExchange(AdapterExchange, FolderExchange):
    """In ``folder``/v<version>, in the form of peft."""

    async def take(self, source: WeightSource, version: int) -> None:
        self._config = _adapter(source).config
        await super().take(source, version)

    async def _load(self, client: SglangClient, name: str) -> None:
        await client.load_adapter(name, str(self._newest))

    def _save(self, tensors: Mapping[str, Tensor], folder: Path) -> None:
        save_file(_together(tensors, self._dtype), folder / WEIGHTS, metadata={"format": "pt"})
        (folder / CONFIG).write_text(json.dumps(self._config, indent=1))


class AdapterTensorExchange(AdapterExchange, TensorExchange):
    """Within one request."""

    async def take(self, source: WeightSource, version: int) -> None:
        adapter = _adapter(source)
        await super().take(adapter, version)
        self._config: Mapping[str, Any] = adapter.config

    async def _load(self, client: SglangClient, name: str) -> None:
        serialized = serialized_tensors(_together(self._tensors, self._dtype), as_mapping=True)
        await client.load_adapter_tensors(name, self._config, serialized, self._ranks)


def _adapter(source: WeightSource) -> LoraAdapter:
    if not isinstance(source, LoraAdapter):
        raise TypeError(f'resources.sglang.lora = "adapter": {type(source).__name__} is no adapter')
    return source


def _together(tensors: Mapping[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
    [part] = parts_of(tensors.items(), ONE_PART, dtype)
    return part
