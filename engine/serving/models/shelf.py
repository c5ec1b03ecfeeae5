"""Models that are loaded when they are first asked for, and leave their memory when nobody asks any more."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from engine.cluster.generators import generator_for
from engine.inference.interface import Generator
from engine.inference.torch.factory import architecture_of_folder
from engine.inference.torch.memory import memory_of
from engine.launch.model_choice import ModelChoice, chosen_model, lacking_for_model, renderers_of, spec_of_model
from engine.launch.preflight import BadSpec
from engine.models.architecture import Architecture
from engine.models.memory import readable_bytes
from engine.models.origin import model_origin
from engine.models.tokenizer import tokenizer_for
from engine.rollout.agents.asked import RequestRefused
from engine.rollout.renderers.contract import Renderer
from engine.spec.model import BuiltinModel
from engine.spec.run import RunSpec
from engine.spec.serving import ServedModel

WAIT_S = 10
"""After so many seconds a caller may ask again for a model that has no room now."""
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Room:
    """What all models together may take."""

    memory_bytes: int
    slots: int = 8
    """Turns that one model samples at once."""
    threads: int = 1
    idle_s: float = 600.0
    """After so long without a call a model is unloaded."""


@dataclass(slots=True)
class LoadedModel:
    entry: ServedModel
    generator: Generator
    renderer: Renderer
    context_tokens: int
    memory_bytes: int
    users: int = 0
    used_at: float = field(default_factory=time.monotonic)


class Shelf:
    """Belongs to one event loop."""

    def __init__(self, room: Room) -> None:
        self._room = room
        self._loaded: dict[str, LoadedModel] = {}
        self._changing = asyncio.Lock()
        """Held while a model is loaded or unloaded: two at once would not fit where each does."""

    @property
    def names(self) -> list[str]:
        """The models that are loaded."""
        return sorted(self._loaded)

    @asynccontextmanager
    async def using(self, entry: ServedModel) -> AsyncIterator[LoadedModel]:
        """The model, which stays loaded until the end of the block.  Raises RequestRefused where it cannot be had."""
        loaded = self._loaded.get(entry.name)
        if loaded is None or loaded.entry != entry:
            async with self._changing:
                loaded = await self._there(entry)
                loaded.users += 1
        else:
            loaded.users += 1
        try:
            yield loaded
        finally:
            loaded.users -= 1
            loaded.used_at = time.monotonic()

    async def sweep(self) -> None:
        """Unload what was not used for long."""
        async with self._changing:
            for loaded in self._idle():
                if time.monotonic() - loaded.used_at > self._room.idle_s:
                    await self._unload(loaded)

    async def close(self) -> None:
        """Unload everything; calls that are under way end with what the generator raises."""
        async with self._changing:
            for loaded in list(self._loaded.values()):
                await self._unload(loaded)

    async def _there(self, entry: ServedModel) -> LoadedModel:
        loaded = self._loaded.get(entry.name)
        if loaded is not None and loaded.entry == entry:
            return loaded
        if loaded is not None:
            await self._make_way(loaded)
        try:
            spec = await asyncio.to_thread(_spec_of, entry, self._room)
        except BadSpec as refused:
            log.warning("model %s cannot be served: %s", entry.name, "; ".join(refused.lines))
            raise RequestRefused(
                "unavailable", "the model cannot be loaded: the server's log says why", retry_s=WAIT_S
            ) from refused
        needed = _memory(spec)
        await self._make_room(entry, needed)
        generator = await asyncio.to_thread(lambda: generator_for(spec.model, spec.resources, seed=spec.seed))
        renderer = await asyncio.to_thread(lambda: renderers_of(spec)("auto"))
        loaded = LoadedModel(entry, generator, renderer, model_origin(spec.model).context_tokens, needed)
        self._loaded[entry.name] = loaded
        log.info("model %s is loaded: %s", entry.name, readable_bytes(needed))
        return loaded

    async def _make_way(self, former: LoadedModel) -> None:
        """Another model has its name now."""
        if former.users:
            raise RequestRefused(
                "unavailable", "the model of this name has changed, and calls to the former one are under way",
                retry_s=WAIT_S,
            )  # fmt: skip
        await self._unload(former)

    async def _make_room(self, entry: ServedModel, needed: int) -> None:
        most = self._room.memory_bytes
        if needed > most:
            raise RequestRefused(
                "unavailable", f"the model takes {readable_bytes(needed)}, and all that are served have "
                f"{readable_bytes(most)}", retry_s=WAIT_S,
            )  # fmt: skip
        for idle in self._idle():
            if sum(loaded.memory_bytes for loaded in self._loaded.values()) + needed <= most:
                return
            await self._unload(idle)
        taken = sum(loaded.memory_bytes for loaded in self._loaded.values())
        if taken + needed > most:
            raise RequestRefused(
                "unavailable", f"the model takes {readable_bytes(needed)}, and other models in use have "
                f"{readable_bytes(taken)} of {readable_bytes(most)}", retry_s=WAIT_S,
            )  # fmt: skip

    def _idle(self) -> list[LoadedModel]:
        """Those that nobody uses now, the one that was used last at the end."""
        return sorted((loaded for loaded in self._loaded.values() if not loaded.users), key=lambda it: it.used_at)

    async def _unload(self, loaded: LoadedModel) -> None:
        del self._loaded[loaded.entry.name]
        await asyncio.to_thread(loaded.generator.close)
        log.info("model %s is unloaded", loaded.entry.name)


def _spec_of(entry: ServedModel, room: Room) -> RunSpec:
    """Raises BadSpec."""
    choice = ModelChoice(entry.folder, entry.run, entry.step, entry.context_tokens, entry.catalog)
    chosen = chosen_model(choice)
    played = chosen.before or RunSpec(name="serve")
    spec = spec_of_model(chosen, played, name="serve", slots=room.slots, threads=room.threads)
    if problems := lacking_for_model(spec):
        raise BadSpec([str(problem) for problem in problems])
    return spec


def _memory(spec: RunSpec) -> int:
    """What sampling takes on this machine, in bytes."""
    origin = model_origin(spec.model)
    if isinstance(model := origin.model, BuiltinModel):
        architecture = Architecture.of_builtin(model, len(tokenizer_for(model.vocabulary)))
        return memory_of(architecture, context_tokens=origin.context_tokens, slots=spec.resources.kv_slots).total
    assert origin.weights is not None  # a pretrained model has a folder
    architecture = architecture_of_folder(origin.weights)
    slots = spec.resources.kv_slots
    return memory_of(architecture, context_tokens=origin.context_tokens, slots=slots, dtype=model.dtype).total
