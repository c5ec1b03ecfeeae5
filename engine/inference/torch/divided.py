"""A torch generator whose sessions are divided among several decoders (``resources.decoders``), each a process.

    generate ──► placed (engine/inference/routing.py) ──► decoder 0: a torch generator of its own, with its slots
                                                    └───► decoder 1: ...

All decoders have equally many slots, so their passes have one shape, and what a session samples is the same to the last
bit in whichever of them it is.  Weights reach them through one file, which each maps into its memory.

A decoder's death costs time and nothing else.  Another one begins in its place with the present weights; what a session
had there is known here, as its turns, and they are read again, as forced tokens in the passes in which they were
sampled, before its next one.  A turn that was under way begins again with the same draws.  Beyond ``MOST_RESTARTS`` the
generator is lost, and says so.
"""

import asyncio
import shutil
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from safetensors.torch import save_file
from torch import Tensor

from engine.durable import DamagedFile
from engine.failures import AttemptFailed
from engine.inference.interface import GenerationAborted, Level
from engine.inference.routing import SPREAD, Router
from engine.inference.torch.decoder_messages import Method
from engine.inference.torch.decoder_process import DecoderEnded, DecoderProcess
from engine.models.weights import WeightSource
from engine.spec.generation import Generated, GenerateRequest, OnToken, UnknownSession
from engine.spec.usage import ServerReading

__all__ = ["MOST_RESTARTS", "DecodersLost", "DividedGenerator"]

MOST_RESTARTS = 8
"""How often decoders are started again, all of them together."""
TOTALS = ("sampled_tokens", "steps", "prefills", "busy_seconds")
Ended = Callable[[DecoderProcess], None]
Start = Callable[[int, Ended], DecoderProcess]
"""Makes a process for the decoder of this number."""


class DecodersLost(AttemptFailed):
    """Decoders die again and again, or one cannot begin: there is nobody to sample with."""


@dataclass(frozen=True, slots=True)
class _Read:
    """A part of a session: tokens that were given, and those that followed."""

    new_ids: tuple[int, ...]
    token_ids: tuple[int, ...]


@dataclass(slots=True)
class _Session:
    name: str
    prompt: tuple[int, ...]
    turns: list[_Read] = field(default_factory=list)
    in_turn: bool = False
    process: DecoderProcess | None = None
    """Whose cache holds the turns."""

    @property
    def tokens(self) -> int:
        return sum(len(turn.new_ids) + len(turn.token_ids) for turn in self.turns)

    def rewind(self, tokens: int) -> None:
        """Keep the first ``tokens``."""
        kept: list[_Read] = []
        for turn in self.turns:
            cut = _Read(turn.new_ids[:tokens], turn.token_ids[: max(tokens - len(turn.new_ids), 0)])
            if cut.new_ids:
                kept.append(cut)
            tokens = max(tokens - len(turn.new_ids) - len(turn.token_ids), 0)
        self.turns = kept


class _Place:
    """Where decoder ``number`` stands, whichever process it is at the moment."""

    def __init__(self, process: DecoderProcess) -> None:
        self.process = process
        self.ready = asyncio.Event()
        """Whether the process has the present weights, or nobody will."""
        self.restarts = 0
        self.reason = ""
        """Why the last process ended."""
        self.before = dict.fromkeys(TOTALS, 0.0)
        """The totals of those that have ended."""

    def total(self, name: str) -> float:
        return self.before[name] + self.process.stats.get(name, 0.0)

    def restart(self, process: DecoderProcess) -> None:
        """Another process takes the place of one that has ended."""
        for name in TOTALS:
            self.before[name] += self.process.stats.get(name, 0.0)
        self.process.close()
        self.process, self.restarts = process, self.restarts + 1

    def health(self) -> Literal["starting", "up", "down"]:
        if self.ready.is_set():
            return "up"
        return "down" if self.restarts else "starting"


class NoRoomForDecoders(RuntimeError):
    """The disk of temporary files cannot hold the weights."""


class DividedGenerator:
    """A ``Generator`` (engine/inference/interface.py) over ``decoders`` processes, which begin at once."""

    def __init__(self, start: Start, *, decoders: int, slots: int) -> None:
        """``slots`` are those of each."""
        self._start = start
        self._began_at = time.time()
        self._scratch = Path(tempfile.mkdtemp(prefix="palestra-decoders-"))
        self._places = [_Place(start(number, self._ended)) for number in range(decoders)]
        # Half of a decoder's slots are not worth leaving empty for a prompt that another one has read.
        self._router = Router(spread=max(1, min(SPREAD, slots // 2)))
        self._sessions: dict[str, _Session] = {}
        self._load = dict.fromkeys(range(decoders), 0)
        """Sessions of each decoder."""
        self._exchanging = asyncio.Lock()
        """Held while decoders are told what all of them must know."""
        self._weights: tuple[Path, int] | None = None
        """The file of the present weights, and their version; None: those that the model begins with."""
        self._exchanges = 0
        self._suspended = False
        self._bringing: dict[int, asyncio.Task[None]] = {}
        """What brings up each decoder that is not up, or has, by its number."""
        self._reports: list[tuple[Level, str]] = []
        self._lost: DecodersLost | None = None
        self._closed = False

    # ---- for episodes ----

    async def generate(self, request: GenerateRequest) -> Generated:
        """As ``TorchGenerator.generate``; raises DecodersLost too."""
        return await self._generate(request, None)

    async def stream(self, request: GenerateRequest, on_token: OnToken) -> Generated:
        """``generate``, and ``on_token`` with each token.  A turn that begins again tells none of them twice."""
        return await self._generate(request, on_token)

    async def _generate(self, request: GenerateRequest, on_token: OnToken | None) -> Generated:
        session = self._sessions.get(request.session)
        if session is None and request.continues:
            raise UnknownSession(f"session {request.session!r} is unknown: its turn goes on from nothing")
        session = session or self._begun(request)
        if session.in_turn:
            raise ValueError(f"session {request.session!r} already has a turn pending")
        session.in_turn = True
        try:
            generated = await self._turn(session, request, on_token)
        except BaseException as error:
            refused = isinstance(error, ValueError) and session.turns
            if not refused and self._sessions.get(session.name) is session:
                await self.release(session.name)
            raise
        finally:
            session.in_turn = False
        if generated.token_ids:
            session.turns.append(_Read(request.new_ids, generated.token_ids))
        return generated

    async def rewind(self, session: str, tokens: int) -> None:
        """As ``TorchGenerator.rewind``."""
        known = self._sessions.get(session)
        if known is None:
            raise UnknownSession(f"session {session!r} is unknown: it cannot be rewound")
        if known.in_turn:
            raise ValueError(f"session {session!r} has a turn pending: it cannot be rewound")
        if not 0 <= tokens <= known.tokens:
            raise ValueError(f"session {session!r} has {known.tokens} tokens: {tokens} of them cannot be kept")
        if known.process is not None:
            with suppress(DecoderEnded):  # what is kept is read again before the next turn
                await known.process.ask("rewind", session, tokens)
        known.rewind(tokens)

    async def release(self, session: str) -> None:
        """As ``TorchGenerator.release``."""
        known = self._sessions.pop(session, None)
        if known is not None:
            decoder = self._router.place(session, known.prompt, self._load)
            self._load[decoder] -= 1
            self._router.forget(session)
            self._places[decoder].process.release(session)

    # ---- for the loop ----

    async def suspend(self) -> None:
        async with self._exchanging:
            await self._all_up()
            self._suspended = True
            await self._tell_all("suspend")

    async def load_weights(self, source: WeightSource, version: int) -> None:
        """As ``TorchGenerator.load_weights``."""
        async with self._exchanging:
            await self._all_up()
            self._exchanges += 1
            file = self._scratch / f"{self._exchanges}.safetensors"
            await asyncio.to_thread(_write, source, file)
            before, self._weights = self._weights, (file, version)
            try:
                await self._tell_all("load_weights", str(file), version)
            except BaseException:
                self._weights = before
                raise
            if before is not None:
                before[0].unlink()

    async def resume(self) -> None:
        async with self._exchanging:
            self._suspended = False
            await self._tell_all("resume")

    async def abort_all(self) -> None:
        async with self._exchanging:
            await self._tell_all("abort_all")
            for session in list(self._sessions):
                await self.release(session)

    def stats(self) -> dict[str, float]:
        """Totals of all decoders since the start, as of their last answers, and the present load."""
        totals = {name: sum(place.total(name) for place in self._places) for name in TOTALS}
        rates = [
            place.total("sampled_tokens") / busy for place in self._places if (busy := place.total("busy_seconds"))
        ]
        return {
            **totals,
            "tokens_per_s": sum(rates),
            "sessions": float(len(self._sessions)),
            "waiting": sum(place.process.stats.get("waiting", 0.0) for place in self._places),
            "suspended": float(self._suspended),
            "version": float(0 if self._weights is None else self._weights[1]),
            "decoders": float(len(self._places)),
            "restarts": float(sum(place.restarts for place in self._places)),
        }

    async def servers(self) -> list[ServerReading]:
        """How each decoder fares, in the order of their numbers."""
        return [self._reading(number, place) for number, place in enumerate(self._places)]

    def reports(self) -> list[tuple[Level, str]]:
        """What happened to the decoders since the last call, for the run's log."""
        reports, self._reports = self._reports, []
        return reports

    def close(self) -> None:
        """Abort everything and end the decoders."""
        self._closed = True
        for bringing in self._bringing.values():
            if not bringing.get_loop().is_closed():
                bringing.cancel()
        for place in self._places:
            place.process.close()
        shutil.rmtree(self._scratch, ignore_errors=True)

    # ---- a session and its decoder ----

    def _begun(self, request: GenerateRequest) -> _Session:
        session = self._sessions[request.session] = _Session(request.session, request.new_ids)
        self._load[self._router.place(session.name, session.prompt, self._load)] += 1
        return session

    async def _turn(self, session: _Session, request: GenerateRequest, on_token: OnToken | None) -> Generated:
        listener = _Once(on_token)
        while True:
            process = await self._up(self._router.place(session.name, session.prompt, self._load))
            if self._sessions.get(session.name) is not session:
                raise GenerationAborted(f"session {session.name!r} was ended")
            try:
                goes_on = request if session.process is process else await self._read_again(session, request, process)
                listener.begin()
                return await process.generate(goes_on, None if on_token is None else listener)
            except DecoderEnded as end:
                if self._closed:
                    raise GenerationAborted("the generator is closed") from end

    async def _read_again(
        self, session: _Session, request: GenerateRequest, process: DecoderProcess
    ) -> GenerateRequest:
        """Let a process that knows nothing of the session read it; the request, as it goes on there."""
        unread: tuple[int, ...] = ()
        request = replace(request, continues=False)
        for turn in session.turns:
            unread += turn.new_ids
            if turn.token_ids:
                await process.generate(replace(request, new_ids=unread, forced_ids=turn.token_ids), None)
                unread = ()
        session.process = process
        return replace(request, new_ids=unread + request.new_ids) if unread else request

    # ---- the decoders ----

    async def _up(self, number: int) -> DecoderProcess:
        """This decoder, once it has the present weights.  Raises DecodersLost and GenerationAborted."""
        place = self._places[number]
        if not place.ready.is_set():
            if number not in self._bringing or self._bringing[number].done():
                self._bring_up(number)
            await place.ready.wait()
        if self._closed:
            raise GenerationAborted("the generator is closed")
        if self._lost is not None:
            raise self._lost
        return place.process

    async def _all_up(self) -> None:
        await asyncio.gather(*(self._up(number) for number in range(len(self._places))))

    async def _tell_all(self, method: Method, *arguments: object) -> None:
        """Those that are up, at once; one that is not, or dies meanwhile, is told before it is."""
        asked = [place.process.ask(method, *arguments) for place in self._places if place.ready.is_set()]
        for failure in await asyncio.gather(*asked, return_exceptions=True):
            if isinstance(failure, BaseException) and not isinstance(failure, DecoderEnded):
                raise failure

    def _bring_up(self, number: int) -> None:
        self._bringing[number] = asyncio.create_task(self._brought_up(self._places[number]))

    async def _brought_up(self, place: _Place) -> None:
        """Start processes until one is up, or too many have been started."""
        try:
            while self._lost is None and not await self._is_up(place):
                if sum(other.restarts for other in self._places) == MOST_RESTARTS:
                    self._lose(f"{place.reason}, and {MOST_RESTARTS} of them have been started again")
                    return
                place.restart(self._start(place.process.number, self._ended))
        except OSError as error:
            self._lose(f"decoder {place.process.number} cannot be started: {error}", error)
        finally:
            place.ready.set()

    async def _is_up(self, place: _Place) -> bool:
        """Whether its process lives, and then has all that the others have been told."""
        try:
            if not place.process.is_connected:
                await place.process.connected()
            await self._given_the_present(place.process)
        except DecoderEnded as end:
            place.reason = str(end)
            self._reports.append(("warning", f"{end}; its rollouts are played again in the one that takes its place"))
            return False
        except Exception as error:
            self._lose(f"decoder {place.process.number} cannot begin: {type(error).__name__}: {error}", error)
        return True

    async def _given_the_present(self, process: DecoderProcess) -> None:
        """It may change meanwhile: when this returns the process knows what is so now."""
        weights, suspended = None, False
        while (weights, suspended) != (self._weights, self._suspended):
            if weights != self._weights and self._weights is not None:
                weights = self._weights
                try:
                    await process.ask("load_weights", str(weights[0]), weights[1])
                except DamagedFile:  # those after them may have taken its place
                    if weights == self._weights:
                        raise
            else:
                suspended = self._suspended
                await process.ask("suspend" if suspended else "resume")
        process.refuse_gone()

    def _ended(self, process: DecoderProcess) -> None:
        """A process that is being brought up is found out by whoever does."""
        place = self._places[process.number]
        if place.process is process and place.ready.is_set() and self._lost is None:
            place.ready.clear()
            self._bring_up(process.number)

    def _lose(self, reason: str, error: Exception | None = None) -> None:
        self._lost = DecodersLost(reason)
        self._lost.__cause__ = error

    def _reading(self, number: int, place: _Place) -> ServerReading:
        process = place.process
        return ServerReading(
            number=number,
            url=f"decoder {number}",
            health="given-up" if self._lost is not None else place.health(),
            reason="" if place.ready.is_set() else place.reason,
            running=process.in_hand,
            queued=int(process.stats.get("waiting", 0)),
            in_hand=process.in_hand,
            sampled_tokens=int(place.total("sampled_tokens")),
            prompt_tokens=0,
            cached_tokens=0,
            restarts=place.restarts,
            version=0 if self._weights is None else self._weights[1],
            began_at=self._began_at,
            pid=process.pid,
        )


class _Once:
    """Tells each token of a turn once, however often the turn begins."""

    def __init__(self, on_token: OnToken | None) -> None:
        self._on_token, self._passed_on, self._number = on_token, 0, 0

    def begin(self) -> None:
        self._number = 0

    def __call__(self, token: int, logprob: float) -> None:
        self._number += 1
        if self._number > self._passed_on and self._on_token is not None:
            self._passed_on = self._number
            self._on_token(token, logprob)


def _write(source: WeightSource, file: Path) -> None:
    """Tensors that share their memory are written one by one."""
    tensors: dict[str, Tensor] = {}
    places: set[int] = set()
    for name, tensor in source.tensors():
        held = tensor.detach().cpu().contiguous()
        tensors[name] = held.clone() if held.data_ptr() in places else held
        places.add(held.data_ptr())
    needed, free = sum(tensor.nbytes for tensor in tensors.values()), shutil.disk_usage(file.parent).free
    if needed > free:
        raise NoRoomForDecoders(
            f"resources.decoders: weights go to decoders through a file of {needed / 2**20:.1f} MiB in {file.parent}, "
            f"where {free / 2**20:.1f} MiB are free; set TMPDIR to a folder on another disk, or use decoders = 1"
        )
    save_file(tensors, file)
