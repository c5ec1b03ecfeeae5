"""The processes of a sharded trainer: one leads, the others follow.

    learner ─► Leader (rank 0) ── commands, a socket ──► rank 1 .. N-1     one method of each rank's backend
                     └───── collectives: gloo, NCCL ─────┘                 what these methods do together

The leader sends every rank its share of a call, does its own, and collects the answers.  Who starts the processes is
decided elsewhere (``engine/cluster``): a follower is ``follow(folder, number)``, in a process of its own.

A rank cannot be replaced, since its part of the weights dies with it: RankLost, and the attempt is over.  A follower
whose method raises tells why and ends, which ends the collective that the others wait in; one whose leader is gone ends
at once.  The socket, and the file by which the ranks meet, are in a folder that only this user may enter.
"""

import contextlib
import os
import pickle
import socket
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from multiprocessing.connection import Connection
from operator import attrgetter
from pathlib import Path
from queue import SimpleQueue
from shutil import rmtree
from typing import TYPE_CHECKING, Any, Protocol

import torch

from engine.failures import NonFiniteGradient, RankLost
from engine.spec.backends import RANKS
from engine.spec.model import Model
from engine.spec.resources import Resources
from engine.training.microbatch import Batch

if TYPE_CHECKING:
    from engine.training.backends.sharded_rank import ShardedRank

__all__ = ["Leader", "follow", "found"]

SOCKET, MEETING = "leader", "meeting"
REPORT_S = 5.0
"""How long the leader, whose own part of a call failed, waits for a follower that knows why."""
WAITING_S = 0.2
"""Between two looks at whether the processes that are waited for still live."""


@dataclass(frozen=True)
class _Begin:
    """What each rank is told of its run, before anything else."""

    model: Model
    resources: Resources
    seed: int
    timeout_s: float


@dataclass(frozen=True)
class _Call:
    method: str
    """A method of the rank's backend, or of its critic: ``step``, ``critic.step``."""
    arguments: Sequence[Any]
    named: dict[str, Any]


@dataclass(frozen=True)
class _Answer:
    value: Any = None
    diverged: str | None = None
    """The message of a NonFiniteGradient, which all ranks raise together."""
    failed: str | None = None
    """Why the follower ends."""
    followed: bool = False
    """Whether that may be because another rank is gone."""


class RankBackend(Protocol):
    """A rank's own part of the trainer.  What else it is asked for is decided by the backend that leads it."""

    def refuse_too_long(self, batch: Batch) -> None:
        """Raises ValueError where a sample does not fit into the context."""
        ...


class _Channel:
    """Python objects over a connection, by value: multiprocessing's own way would share tensors in memory."""

    def __init__(self, accepted: socket.socket) -> None:
        self._socket = accepted
        self._connection = Connection(os.dup(accepted.fileno()))
        self.poll = self._connection.poll

    def close(self) -> None:
        """Also while another thread waits for a message, which then gets EOFError."""
        with contextlib.suppress(OSError):  # the other end is gone already
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def send(self, message: Any) -> None:
        self._connection.send_bytes(pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL))

    def recv(self) -> Any:
        """Raises EOFError or OSError if the other end is gone."""
        return pickle.loads(self._connection.recv_bytes())


class Leader:
    """Rank 0 of ``resources.trainer_ranks``, in the learner's process, which has one at a time.

    ``start`` after the followers have been started on ``folder``.  ``close`` in any case: it ends the followers.
    Nobody waits for another rank for longer than ``timeout_s``.  The folder is below /tmp: a socket's path is short.
    """

    def __init__(self, model: Model, resources: Resources, *, seed: int, timeout_s: float) -> None:
        self._begin = _Begin(model, resources, seed, timeout_s)
        self.resources = resources
        self.size, self._timeout_s = resources.trainer_ranks, timeout_s
        self.folder = Path(tempfile.mkdtemp(prefix="palestra-ranks-", dir="/tmp"))
        self._listening = socket.socket(socket.AF_UNIX)
        self._listening.bind(str(self.folder / SOCKET))
        self._listening.listen(self.size)
        self._listening.settimeout(WAITING_S)
        self._followers: dict[int, _Channel] = {}
        self._rank: ShardedRank | None = None
        self._backend: RankBackend | None = None
        self._lost: str | None = None
        self._calling = threading.Lock()
        self._died: Callable[[], str | None] = lambda: None

    def watch(self, died: Callable[[], str | None]) -> None:
        """From now on ``died`` says which follower's process is gone, if one is."""
        self._died = died

    def start(self) -> RankBackend:
        """Return this rank's own part, once all ranks have theirs.

        Raises RankLost, and what a rank's class raises.
        """
        with self._calling:
            return self._started()

    def _started(self) -> RankBackend:
        deadline = time.monotonic() + self._timeout_s
        while len(self._followers) < self.size - 1:
            if (gone := self._lost or self._died()) is not None or time.monotonic() > deadline:
                missing = self.size - 1 - len(self._followers)
                raise RankLost(gone or f"{missing} of {self.size} ranks have not come forward in {self._timeout_s:g} s")
            self._admit_one()
        self._followers = dict(sorted(self._followers.items()))  # answers are in the order of the ranks
        for channel in self._followers.values():
            channel.send(self._begin)
        self._own_part(self._joined)
        self._answers()
        assert self._backend is not None
        return self._backend

    def call(self, method: str, shares: Sequence[Sequence[Any]], **named: Any) -> list[Any]:
        """Return the answers of all ranks, of which each gets its share of the arguments, and all the named ones.

        Raises NonFiniteGradient, after which everything goes on; RankLost, and what rank 0 raises, after which nothing
        does.
        """
        with self._calling:
            return self._called(method, shares, named)

    def _called(self, method: str, shares: Sequence[Sequence[Any]], named: dict[str, Any]) -> list[Any]:
        if self._lost is not None:
            raise RankLost(self._lost)
        for number, channel in self._followers.items():
            try:
                channel.send(_Call(method, shares[number], named))
            except OSError as error:
                raise self._loss(f"rank {number} is gone") from error
        try:
            own = self._own_part(lambda: attrgetter(method)(self._backend)(*shares[0], **named))
        except NonFiniteGradient:
            self._answers(diverged=True)
            raise
        return [own, *self._answers()]

    def close(self) -> None:
        """End the followers and what they are called for.  Twice is fine."""
        self._lost = self._lost or "the trainer was closed"
        for channel in self._followers.values():
            channel.close()
        self._listening.close()
        # A call under way ends now, with its followers; should it not, the group ends with this process.
        if self._calling.acquire(timeout=REPORT_S):
            if self._rank is not None:
                self._rank.leave()
                self._rank = None
            self._calling.release()
        rmtree(self.folder, ignore_errors=True)

    def _admit_one(self) -> None:
        try:
            accepted, _ = self._listening.accept()
        except TimeoutError:
            return
        accepted.setblocking(True)
        channel = _Channel(accepted)
        self._followers[channel.recv()] = channel

    def _joined(self) -> None:
        self._rank = _rank(0, self._begin, self.folder)
        self._backend = _backend(self._begin, self._rank)

    def _own_part(self, compute: Callable[[], Any]) -> Any:
        """What it answers; where it raises because a follower is gone, RankLost, which says why that is."""
        try:
            return compute()
        except NonFiniteGradient:
            raise
        except Exception as error:
            reason = self._reason()
            self._lost = reason or f"rank 0: {type(error).__name__}: {error}"
            if reason is not None and isinstance(error, RuntimeError | OSError):
                raise RankLost(reason) from error
            raise

    def _reason(self) -> str | None:
        """Why a follower has ended, if one has, or ends now: the first whose end is not that of another."""
        reported = sorted(self._reported(), key=lambda report: report[0])
        return reported[0][1] if reported else None

    def _reported(self) -> Iterator[tuple[bool, str]]:
        """Whether a follower's end may be that of another, and why it ended."""
        deadline = time.monotonic() + REPORT_S
        for number, channel in self._followers.items():
            try:
                if not channel.poll(max(0.0, deadline - time.monotonic())):
                    continue
                answer: _Answer = channel.recv()
            except (EOFError, OSError):
                yield False, f"rank {number} died"
                continue
            if answer.failed is not None:
                yield answer.followed, f"rank {number}: {answer.failed}"

    def _answers(self, *, diverged: bool = False) -> list[Any]:
        """In the order of the ranks.  Raises RankLost, also where not all of them diverge that should."""
        values = []
        for number, channel in self._followers.items():
            try:
                if not channel.poll(self._timeout_s):
                    raise self._loss(f"rank {number} has not answered for {self._timeout_s:g} s")
                answer: _Answer = channel.recv()
            except (EOFError, OSError) as error:
                raise self._loss(f"rank {number} died") from error
            if answer.failed is not None:
                raise self._loss(f"rank {number}: {answer.failed}")
            if (answer.diverged is not None) != diverged:
                raise self._loss(f"rank {number} and rank 0 do not agree on whether the gradient is finite")
            values.append(answer.value)
        return values

    def _loss(self, reason: str) -> RankLost:
        self._lost = reason
        return RankLost(reason)


def follow(folder: Path, number: int) -> None:
    """Do what the leader in ``folder`` says, as rank ``number``, until it is gone.  Never returns."""
    reached = socket.socket(socket.AF_UNIX)
    reached.connect(str(folder / SOCKET))
    channel = _Channel(reached)
    channel.send(number)
    commands: SimpleQueue[Any] = SimpleQueue()
    threading.Thread(target=_listen, args=(channel, commands, folder), daemon=True).start()
    begin: _Begin = commands.get()
    try:
        backend = _backend(begin, _rank(number, begin, folder))
        channel.send(_Answer())
        while True:
            channel.send(_done(backend, commands.get()))
    except Exception as error:
        channel.send(_Answer(failed=f"{type(error).__name__}: {error}", followed=isinstance(error, RuntimeError)))
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(1)  # the others' collectives end with this process, which no thread may hold back


def _listen(channel: _Channel, commands: SimpleQueue[Any], folder: Path) -> None:
    """Also while a command is carried out: a leader that is gone needs no answer, and its folder nobody."""
    try:
        while True:
            commands.put(channel.recv())
    except (EOFError, OSError):
        rmtree(folder, ignore_errors=True)
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        os._exit(1)


def _done(backend: RankBackend, call: _Call) -> _Answer:
    try:
        value = attrgetter(call.method)(backend)(*call.arguments, **call.named)
    except NonFiniteGradient as error:
        return _Answer(diverged=str(error))
    return _Answer(value)


def _rank(number: int, begin: _Begin, folder: Path) -> "ShardedRank":
    from engine.training.backends.sharded_rank import ShardedRank

    resources, device = begin.resources, torch.device(begin.resources.device)
    torch.set_num_threads(resources.threads)
    meeting, timeout_s = folder / MEETING, begin.timeout_s
    return ShardedRank(number, resources.trainer_ranks, device=device, meeting=meeting, timeout_s=timeout_s)


def _backend(begin: _Begin, rank: "ShardedRank") -> RankBackend:
    made: RankBackend = found(RANKS[begin.resources.trainer])(begin.model, begin.resources, seed=begin.seed, rank=rank)
    return made


def found(place: str) -> Any:
    """What stands at ``module:name``, imported now."""
    module, _, name = place.partition(":")
    return getattr(import_module(module), name)
