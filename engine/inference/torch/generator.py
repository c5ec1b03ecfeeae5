"""Sampling for many episodes at once: continuous batching over a fixed number of KV slots.

An episode is a *session*.  It gets a slot with its first turn and keeps it, cache and all, until it
is released, so that its next turn reads the new tokens only.  Sessions beyond the slots wait in
order of arrival.

Who waits for whom: callers (asyncio) post commands and await a future; one *stepping thread* owns
the decoder and all sessions, takes the commands between two passes, and answers.  Nothing else
touches them, so there is no lock but that of the inbox.  With nothing to do the thread sleeps.

What a session samples depends on the weights and its own requests only, to the last bit: not on who
else is in the batch, in which slot, or when they come and go (engine/inference/torch/decoder.py).
"""

import asyncio
import math
import threading
import time
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from engine.inference.interface import GenerationAborted, NonFiniteLogits
from engine.inference.torch.decoder import Decoder
from engine.inference.torch.memory import Dtype
from engine.inference.torch.prompts import Prompt, Prompts
from engine.inference.torch.sampling import Draws, sample
from engine.inference.torch.session import Reply, Session, StoppedBy, Turn, give_all
from engine.models.architecture import Architecture
from engine.models.weights import WeightSource
from engine.spec.generation import Generated, GenerateRequest, OnToken, UnknownSession

T = TypeVar("T")

SHARED_FROM = 2_000_000
"""Parameters from which a pass is worth sharing between threads; below, waiting costs more than it saves."""
PREFILL_FROM = 48
"""More unread tokens than this are read in chunks.  Fewer are cheaper to read one per step, in a slot that
idles anyway: on the CPU a step costs about as much for one session as for all."""
PROMPT_FROM = 8
"""The same for a session's first turn, whose prompt is read for all that begin with it."""
FEW_SHARE = 1 / 4
"""A pass for fewer sessions than this share of the slots waits for others, where it may."""


class TorchGenerator:
    """A ``Generator`` (engine/inference/interface.py) on torch.

    Begins with ``initial`` as policy version 0.  Policies below SHARED_FROM parameters
    are sampled on one thread whatever ``threads`` says.  Torch keeps this number partly per process,
    so it is set whenever the stepping thread wakes up; a trainer in the same process sets its own.

    ``context_tokens`` must not be more than the architecture's ``longest_context``; what all of it takes is said
    beforehand by ``memory_of`` (engine/inference/torch/memory.py).  A pass for few sessions begins ``batch_delay_s``
    after the one before at the earliest, while others may come back.  Raises ValueError for weights of another shape.
    """

    def __init__(
        self,
        architecture: Architecture,
        *,
        context_tokens: int,
        slots: int,
        threads: int,
        initial: Mapping[str, Tensor],
        device: str = "cpu",
        dtype: Dtype = "float32",
        batch_delay_s: float = 0.0,
    ) -> None:
        if context_tokens > architecture.longest_context:
            raise ValueError(f"context_tokens = {context_tokens}: the model takes {architecture.longest_context}")
        self._vocab_size, self._context_tokens = architecture.vocab_size, context_tokens
        self._threads = threads if architecture.parameters >= SHARED_FROM else 1
        self._decoder = Decoder(architecture, context_tokens=context_tokens, slots=slots, device=device, dtype=dtype)
        self._decoder.load(initial)
        self._layout = self._decoder.layout
        self._prompts = Prompts(self._decoder)
        self._version = 0
        self._suspended = self._vacant = False
        self._sessions: dict[str, Session] = {}
        self._waiting: OrderedDict[str, Turn] = OrderedDict()
        self._free_slots = list(reversed(range(slots)))
        self._few, self._batch_delay_s, self._last_pass_at = slots * FEW_SHARE, batch_delay_s, -math.inf
        self._counters = dict.fromkeys(("sampled_tokens", "steps", "prefills", "busy_seconds"), 0.0)
        self._finished: list[tuple[Reply, Generated]] = []
        """Turns that ended in this pass; their callers learn it at its end, all at once."""
        self._failure: BaseException | None = None
        self._inbox: deque[tuple[Callable[[], None], Reply | None]] = deque()
        """Commands, each until it was run, and who waits for it."""
        self._wake = threading.Condition()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="generator", daemon=True)
        self._thread.start()

    # ---- for callers, on their event loop ----

    async def generate(self, request: GenerateRequest) -> Generated:
        """Sample one turn, or give the log-probs of a forced one.

        If ``new_ids`` leave no room for a token (for all that are forced), the answer is empty with
        ``stopped_by="context"`` and the session is as it was.  If the caller is cancelled, its session is released.
        Raises ValueError for a request that makes no sense, GenerationAborted when it is ended from outside,
        NonFiniteLogits where there is nothing to sample from.
        """
        return await self._generate(request, None)

    async def stream(self, request: GenerateRequest, on_token: OnToken) -> Generated:
        """``generate``, and ``on_token`` with each token as soon as it is sampled."""
        return await self._generate(request, on_token)

    async def _generate(self, request: GenerateRequest, on_token: OnToken | None) -> Generated:
        self._check(request)
        reply = Reply.of_running_loop(on_token)
        self._post(lambda: self._begin(Turn.begun(request, reply)), reply)
        try:
            generated: Generated = await reply.future
            return generated
        finally:
            if reply.future.cancelled():
                self._post(lambda: self._drop(request.session))

    async def rewind(self, session: str, tokens: int) -> None:
        """Forget all but the first ``tokens`` tokens of a session that has no turn pending, else ValueError.

        Rewound to the end of a turn, or to within what a turn sampled, it goes on exactly as a session whose turn
        ended there.
        """
        reply = Reply.of_running_loop()
        self._post(lambda: self._rewind(session, tokens, reply), reply)
        await reply.future

    async def release(self, session: str) -> None:
        """Give the slot back, at once; a turn that is pending raises GenerationAborted.  Unknown sessions are fine."""
        self._post(lambda: self._drop(session))

    async def suspend(self) -> None:
        """When this returns, the pass that was under way is over and no other begins before ``resume``."""
        await self._done(lambda: self._suspend(True))

    async def resume(self) -> None:
        """Pending turns go on with the draws that they would have used."""
        await self._done(lambda: self._suspend(False))

    async def vacate(self) -> int:
        """When this returns, all sessions are over, and pending turns are on their way with what they had sampled."""
        return await self._done(self._vacate)

    async def occupy(self) -> None:
        """Turns are taken again."""
        await self._done(self._occupy)

    async def move_waiting(self) -> int:
        """Those without a slot go elsewhere."""
        return await self._done(self._move_waiting)

    async def load_weights(self, source: WeightSource, version: int) -> None:
        """Sample from these weights from the next token on.  Sessions keep their cache, made by older weights.

        What the source raises is raised here, and the weights are the old ones.
        """
        state = await asyncio.to_thread(lambda: dict(source.tensors()))

        def load() -> None:
            self._decoder.load(state)
            self._prompts.forget()
            self._version = version

        await self._done(load)

    async def abort_all(self) -> None:
        """End every session; pending turns raise GenerationAborted."""
        await self._done(self._drop_everything)

    def close(self) -> None:
        """Abort everything and stop the thread."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        self._thread.join()

    def stats(self) -> dict[str, float]:
        """Totals since the start (tokens, passes, seconds in them) and the present load."""
        busy = self._counters["busy_seconds"]
        return {
            **self._counters,
            "tokens_per_s": self._counters["sampled_tokens"] / busy if busy else 0.0,
            "sessions": float(len(self._sessions)),
            "waiting": float(len(self._waiting)),
            "suspended": float(self._suspended),
            "version": float(self._version),
        }

    def _check(self, request: GenerateRequest) -> None:
        if request.max_new_tokens < 1 and not request.forced_ids:
            raise ValueError(f"max_new_tokens = {request.max_new_tokens}: must be at least 1")
        if not request.temperature >= 0:
            raise ValueError(f"temperature = {request.temperature}: must be 0 (greedy) or greater")
        if not request.logprob_temperature > 0:
            raise ValueError(f"logprob_temperature = {request.logprob_temperature}: must be greater than 0")
        if request.logprobs_truncated and request.logprob_temperature != request.temperature:
            raise ValueError(
                f"logprobs_truncated at logprob_temperature = {request.logprob_temperature}: what is kept is decided at"
                f" temperature = {request.temperature}; make them equal"
            )
        if request.seed < 0:
            raise ValueError(f"seed = {request.seed}: must not be negative")
        if not request.new_ids:
            raise ValueError("new_ids is empty: a turn begins with at least one token to read")
        for name, ids in (("new_ids", request.new_ids), ("forced_ids", request.forced_ids)):
            if not all(0 <= i < self._vocab_size for i in ids):
                raise ValueError(f"{name} hold a token outside the vocabulary of {self._vocab_size}")

    async def _done(self, command: Callable[[], T]) -> T:
        reply = Reply.of_running_loop()

        def run() -> None:
            try:
                value = command()
            except Exception as error:  # travels to the caller, who would wait for ever
                reply.fail(error)
            else:
                reply.give(value)

        self._post(run, reply)
        value: T = await reply.future
        return value

    def _post(self, command: Callable[[], None], reply: Reply | None = None) -> None:
        """Raises where the generator has ended, if somebody waits for the command; else there is nothing left to do."""
        with self._wake:
            if self._failure is None and not self._closing:
                self._inbox.append((command, reply))
                self._wake.notify()
            elif reply is not None:
                raise self._ended()

    def _ended(self) -> Exception:
        """Why no command is taken any more."""
        if self._failure is None:
            return GenerationAborted("the generator is closed")
        failed = RuntimeError("the generator has failed")
        failed.__cause__ = self._failure
        return failed

    # ---- the stepping thread ----

    def _run(self) -> None:
        try:
            while self._take_commands():
                self._pass()
        except BaseException as error:
            self._end(error)
            raise
        self._end()

    def _take_commands(self) -> bool:
        """Run what was posted; sleep while there is nothing to sample.  False when closing."""
        while True:
            with self._wake:
                while not (self._inbox or self._closing) and (wait_s := self._until_pass()) != 0:
                    self._wake.wait(wait_s)
                    torch.set_num_threads(self._threads)
            while self._inbox:
                command, _ = self._inbox[0]
                command()
                self._inbox.popleft()
            if self._closing:
                return False
            if self._until_pass() == 0:
                return True

    def _until_pass(self) -> float | None:
        """Seconds until the next pass, None while there is nothing to sample.

        Few sessions wait for those that have a slot and no turn, whose tools will bring them back.
        """
        pending = sum(session.turn is not None for session in self._sessions.values())
        if self._suspended or not pending:
            return None
        if not self._batch_delay_s or pending >= self._few or pending == len(self._sessions):
            return 0.0
        return max(0.0, self._last_pass_at + self._batch_delay_s - time.monotonic())

    def _suspend(self, suspended: bool) -> None:
        self._suspended = suspended

    def _vacate(self) -> int:
        self._vacant = True
        moved = self._move_waiting()
        pending = [turn for session in self._sessions.values() if (turn := session.turn) is not None]
        for turn in pending:
            turn.move(is_vacant=True)
        self._drop_everything()
        return moved + len(pending)

    def _occupy(self) -> None:
        self._vacant = False

    def _move_waiting(self) -> int:
        moved, self._waiting = self._waiting, OrderedDict()
        for turn in moved.values():
            turn.move(is_vacant=self._vacant)
        return len(moved)

    def _end(self, error: BaseException | None = None) -> None:
        """Whoever waits for a turn, or for a command that was not run to its end, learns it."""
        with self._wake:
            self._failure = error
            left, self._inbox = self._inbox, deque()
        self._drop_everything()
        for _, reply in left:
            if reply is not None:
                reply.fail(self._ended())

    def _begin(self, turn: Turn) -> None:
        name = turn.request.session
        session = self._sessions.get(name)
        if name in self._waiting or (session is not None and session.turn is not None):
            turn.reply.fail(ValueError(f"session {name!r} already has a turn pending"))
        elif session is not None:
            self._start(session, turn)
        elif turn.request.continues:
            turn.reply.fail(UnknownSession(f"session {name!r} is unknown: its turn goes on from nothing"))
        elif self._vacant:
            turn.move(is_vacant=True)
        elif self._free_slots:
            self._seat(turn)
        else:
            self._waiting[name] = turn

    def _seat(self, turn: Turn) -> None:
        name = turn.request.session
        self._sessions[name] = session = Session(name, self._free_slots.pop())
        self._start(session, turn)

    def _start(self, session: Session, turn: Turn) -> None:
        if not self._has_room(turn, len(session.ids)):
            turn.reply.give(turn.generated("context"))
            return
        session.begin(turn, prefill_from=PREFILL_FROM if session.cached else PROMPT_FROM)

    def _has_room(self, turn: Turn, after: int = 0) -> bool:
        return after + turn.room_needed() <= self._context_tokens

    def _rewind(self, name: str, tokens: int, reply: Reply) -> None:
        session = self._sessions.get(name)
        if session is None:
            reply.fail(UnknownSession(f"session {name!r} is unknown: it cannot be rewound"))
        elif session.turn is not None:
            reply.fail(ValueError(f"session {name!r} has a turn pending: it cannot be rewound"))
        elif not 0 <= tokens <= len(session.ids):
            reply.fail(ValueError(f"session {name!r} has {len(session.ids)} tokens: {tokens} of them cannot be kept"))
        else:
            session.rewind(tokens)
            reply.give(None)

    def _drop(self, name: str) -> None:
        waiting, session = self._waiting.pop(name, None), self._sessions.pop(name, None)
        for turn in (waiting, session.turn if session else None):
            if turn is not None:
                turn.reply.fail(GenerationAborted(f"session {name!r} was ended"))
        if session is not None:
            self._free_slots.append(session.slot)
            if self._waiting:
                self._seat(self._waiting.popitem(last=False)[1])

    def _drop_everything(self) -> None:
        for name in [*self._waiting, *self._sessions]:
            self._drop(name)

    def _pass(self) -> None:
        """Prompts for those that begin, one prefill if somebody has much to read, and one step for everybody else."""
        began = time.perf_counter()
        live = [session for session in self._sessions.values() if session.turn is not None]
        if beginning := [session for session in live if session.to_prefill and not session.cached]:
            self._begin_with_prompts(beginning)
        if reading := [session for session in live if session.to_prefill and session.cached][
            : self._layout.prefill_rows
        ]:
            self._prefill(reading)
        if stepping := [session for session in live if not session.to_prefill]:
            try:
                self._step(stepping)
            finally:
                give_all(self._finished)
                self._finished.clear()
        self._counters["busy_seconds"] += time.perf_counter() - began
        self._last_pass_at = time.monotonic()

    def _begin_with_prompts(self, beginning: list[Session]) -> None:
        """Those whose prompt is kept, or is among the first that are read now."""
        prompts = [tuple(session.ids[: session.to_prefill]) for session in beginning]
        if not all(prompt in self._prompts for prompt in prompts):
            self._counters["prefills"] += self._prompts.read(chain(prompts, self._waiting_prompts()))
        for session, prompt in zip(beginning, prompts, strict=True):
            if prompt in self._prompts:
                self._prompts.place(prompt, session.slot)
                session.read_chunk(len(prompt))

    def _waiting_prompts(self) -> Iterator[Prompt]:
        """What those without a slot will begin with: a reading costs the same for one prompt as for several."""
        for turn in self._waiting.values():
            if len(turn.request.new_ids) > PROMPT_FROM and self._has_room(turn):
                yield turn.request.new_ids[:-1]

    def _prefill(self, reading: list[Session]) -> None:
        slots = np.zeros(self._layout.prefill_rows, dtype=np.int64)
        tokens = np.zeros((self._layout.prefill_rows, self._layout.prefill_tokens), dtype=np.int64)
        positions = np.full((self._layout.prefill_rows, self._layout.prefill_tokens), self._decoder.scratch_position)
        for row, session in enumerate(reading):
            count = min(self._layout.prefill_tokens, session.to_prefill)
            slots[row], positions[row, :count] = session.slot, range(session.cached, session.cached + count)
            tokens[row, :count] = session.read_chunk(count)
        self._decoder.prefill(*map(self._tensor, (slots, tokens, positions)))
        self._counters["prefills"] += 1

    def _step(self, stepping: list[Session]) -> None:
        slots, tokens, positions = np.zeros((3, len(stepping)), dtype=np.int64)
        draws = Draws(self._layout.slots)
        for row, session in enumerate(stepping):
            slots[row], positions[row], (tokens[row],) = session.slot, session.cached, session.read(1)
            uniform, forced = session.pending.next_draw()
            draws.put(session.slot, session.pending.request, uniform=uniform, forced=forced)
        hidden_SD = self._decoder.step(slots, tokens, positions)
        sampling = [session for session in stepping if not session.unread]
        self._counters["steps"] += 1
        self._counters["sampled_tokens"] += sum(not session.pending.request.forced_ids for session in sampling)
        self._sample(sampling, hidden_SD, draws)

    def _sample(self, sampling: list[Session], hidden_SD: Tensor, draws: Draws) -> None:
        """The next token of each session, block by block: the logits of all slots may not stand in memory at once."""
        by_block: defaultdict[int, list[Session]] = defaultdict(list)
        for session in sampling:
            by_block[session.slot // self._layout.logit_rows].append(session)
        for block, sessions in by_block.items():
            # The last block reaches back into the one before: all have one shape.
            first = min(block * self._layout.logit_rows, self._layout.slots - self._layout.logit_rows)
            rows = slice(first, first + self._layout.logit_rows)
            token_B, logprob_B = sample(self._decoder.logits(hidden_SD[rows]), draws.block(rows, self._decoder.device))
            sampled, logprobs = token_B.tolist(), logprob_B.tolist()
            for session in sessions:
                self._append(session, sampled[session.slot - first], logprobs[session.slot - first])

    def _append(self, session: Session, token: int, logprob: float) -> None:
        turn = session.pending
        if math.isnan(logprob):
            turn.reply.fail(NonFiniteLogits(self._version))
            self._drop(session.name)
            return
        turn.token_ids.append(token)
        turn.logprobs.append(logprob)
        turn.policy_versions.append(self._version)
        turn.reply.tell(token, logprob)
        session.ids.append(token)
        if (end := turn.ended()) is not None:
            self._finish(session, end)
        elif len(session.ids) == self._context_tokens:
            self._finish(session, "context")

    def _finish(self, session: Session, stopped_by: StoppedBy) -> None:
        turn, session.turn = session.pending, None
        self._finished.append((turn.reply, turn.generated(stopped_by)))

    def _tensor(self, array: np.ndarray) -> Tensor:
        return torch.from_numpy(array).to(self._decoder.device)
