"""Models that are loaded when they are first asked for, and leave their memory when nobody asks any more."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field

from engine.cluster.generators import generator_for
from engine.inference.interface import Generator
from engine.inference.torch.memory import memory_of
from engine.launch.model_choice import ModelChoice, chosen_model, lacking_for_model, spec_of_model
from engine.launch.preflight import BadSpec
from engine.models.architecture import Architecture
from engine.models.folder import opened_folder
from engine.models.memory import readable_bytes
from engine.models.origin import model_origin
from engine.models.tokenizer import tokenizer_for
from engine.rollout.agents.asked import RequestRefused
from engine.serving.models.renderer_process import RendererProcess
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
    renderer: RendererProcess
    context_tokens: int
    memory_bytes: int
    users: int = 0
    used_at: float = field(default_factory=time.monotonic)
    is_broken: bool = False
    """Its generator has failed, and answers nobody any more."""

    def leave(self) -> None:
        """One user less."""
        self.users -= 1
        self.used_at = time.monotonic()


class Shelf:
    """Belongs to one event loop."""

    def __init__(self, room: Room) -> None:
        self._room = room
        self._loaded: dict[str, LoadedModel] = {}
        self._unfit: dict[str, tuple[ServedModel, float]] = {}
        """Models whose own files keep them from being loaded, and when that was found."""
        self._changing = asyncio.Lock()
        """Held while a model is loaded or unloaded: two at once would not fit where each does."""

    @property
    def names(self) -> list[str]:
        """The models that are loaded."""
        return sorted(self._loaded)

    @asynccontextmanager
    async def using(self, entry: ServedModel) -> AsyncIterator[LoadedModel]:
        """The model, which stays loaded until the end of the block.  Raises RequestRefused where it cannot be had.

        A load that has begun goes on without the caller that is cancelled: the next one finds the model.
        """
        loaded = self._found(entry)
        if loaded is None:
            loaded = await self._fetched(entry)
        else:
            loaded.users += 1
        try:
            yield loaded
        finally:
            loaded.leave()

    async def sweep(self) -> None:
        """Unload what was not used for long, or has failed."""
        async with self._changing:
            for loaded in self._idle():
                if loaded.is_broken or time.monotonic() - loaded.used_at > self._room.idle_s:
                    await self._unload(loaded)

    async def close(self) -> None:
        """Unload everything; calls that are under way end with what the generator raises."""
        async with self._changing:
            for loaded in list(self._loaded.values()):
                await self._unload(loaded)

    def _found(self, entry: ServedModel) -> LoadedModel | None:
        loaded = self._loaded.get(entry.name)
        return loaded if loaded is not None and loaded.entry == entry and not loaded.is_broken else None

    async def _fetched(self, entry: ServedModel) -> LoadedModel:
        """The model, with one user more."""
        await self._changing.acquire()
        fetching = asyncio.create_task(self._fetch(entry))
        fetching.add_done_callback(lambda _: self._changing.release())
        try:
            return await asyncio.shield(fetching)  # nothing ends the thread that loads
        except asyncio.CancelledError:
            fetching.add_done_callback(_leave)
            raise

    async def _fetch(self, entry: ServedModel) -> LoadedModel:
        if (loaded := self._found(entry)) is None:
            self._refuse_unfit(entry)
            with self._refusing(entry):
                if (former := self._loaded.get(entry.name)) is not None:
                    await self._make_way(former)
                spec = await asyncio.to_thread(_spec_of, entry, self._room)
                needed = await asyncio.to_thread(_memory, spec)
                await self._make_room(entry, needed)
                loaded = await _load(entry, spec, needed)
            self._loaded[entry.name] = loaded
            log.info("model %s is loaded: %s", entry.name, readable_bytes(needed))
        # Counted before the lock is given on: whoever has it next may take the place of what nobody uses.
        loaded.users += 1
        return loaded

    async def check(self, entry: ServedModel) -> None:
        """Find out whether a model could be loaded, and what it takes.  Raises BadSpec, and what reading it raises."""
        spec = await asyncio.to_thread(_spec_of, entry, self._room)
        needed, most = await asyncio.to_thread(_memory, spec), self._room.memory_bytes
        if needed > most:
            sizes = f"it takes {readable_bytes(needed)}, and all models together have {readable_bytes(most)}"
            raise BadSpec([f"models.{entry.name}: {sizes}; give --memory-gib more"])

    def _refuse_unfit(self, entry: ServedModel) -> None:
        """Looking at a folder takes a second, and it is seldom mended within a few."""
        unfit, found_at = self._unfit.get(entry.name, (None, 0.0))
        if unfit == entry and time.monotonic() - found_at < WAIT_S:
            raise _not_loaded()

    async def _make_way(self, former: LoadedModel) -> None:
        """Another model has its name now, or it has failed."""
        if former.users:
            raise RequestRefused(
                "unavailable", "the model of this name has changed or failed, and calls to it are under way",
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

    @contextmanager
    def _refusing(self, entry: ServedModel) -> Iterator[None]:
        """What keeps the model from being loaded stands in the log.  Raises RequestRefused, which tells callers
        less."""
        try:
            yield
        except RequestRefused:
            raise
        except BadSpec as refused:
            log.warning("model %s cannot be served: %s", entry.name, "; ".join(refused.lines))
            self._unfit[entry.name] = entry, time.monotonic()
            raise _not_loaded() from refused
        except Exception as error:
            log.exception("model %s cannot be loaded", entry.name)
            raise _not_loaded() from error

    def _idle(self) -> Iterator[LoadedModel]:
        """Those that nobody uses by then: at first what has failed, at the end what was used last."""
        in_order = sorted(self._loaded.values(), key=lambda loaded: (not loaded.is_broken, loaded.used_at))
        return (loaded for loaded in in_order if not loaded.users)

    async def _unload(self, loaded: LoadedModel) -> None:
        del self._loaded[loaded.entry.name]
        loaded.renderer.close()
        await asyncio.to_thread(loaded.generator.close)
        log.info("model %s is unloaded", loaded.entry.name)


def _not_loaded() -> RequestRefused:
    return RequestRefused("unavailable", "the model cannot be loaded: the server's log says why", retry_s=WAIT_S)


def _leave(fetching: asyncio.Task[LoadedModel]) -> None:
    """Nobody has waited for it."""
    if not fetching.cancelled() and fetching.exception() is None:
        fetching.result().leave()


def _spec_of(entry: ServedModel, room: Room) -> RunSpec:
    """Raises BadSpec."""
    choice = ModelChoice(entry.folder, entry.run, entry.step, entry.context_tokens, entry.catalog)
    chosen = chosen_model(choice)
    played = chosen.before or RunSpec(name="serve")
    spec = spec_of_model(chosen, played, name="serve", slots=room.slots, threads=room.threads)
    if problems := lacking_for_model(spec, with_tools=False):
        raise BadSpec([str(problem) for problem in problems])
    return spec


async def _load(entry: ServedModel, spec: RunSpec, memory_bytes: int) -> LoadedModel:
    """The generator is made last: what fails after it would leave it to nobody."""
    renderer = RendererProcess(spec)
    await renderer.begin()
    try:
        generator = await asyncio.to_thread(generator_for, spec.model, spec.resources, seed=spec.seed)
    except BaseException:
        renderer.close()
        raise
    return LoadedModel(entry, generator, renderer, model_origin(spec.model).context_tokens, memory_bytes)


def _memory(spec: RunSpec) -> int:
    """What sampling takes on this machine, in bytes."""
    origin = model_origin(spec.model)
    if isinstance(model := origin.model, BuiltinModel):
        architecture = Architecture.of_builtin(model, len(tokenizer_for(model.vocabulary)))
        return memory_of(architecture, context_tokens=origin.context_tokens, slots=spec.resources.kv_slots).total
    assert origin.weights is not None  # a pretrained model has a folder
    architecture = Architecture.of_config(opened_folder(origin.weights).config)
    slots = spec.resources.kv_slots
    return memory_of(architecture, context_tokens=origin.context_tokens, slots=slots, dtype=model.dtype).total
