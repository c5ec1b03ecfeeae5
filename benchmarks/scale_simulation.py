"""A training run as a discrete-event simulation: rollouts on shared GPUs, tools in sandboxes, a buffer, a trainer.

    slot of the buffer ─► sandbox made ─► [generator actor ─► decoding ─► tool] x turns ─► ready ─► step ─► new weights

* Decoding: what is decoded at once on a GPU shares it; a step of all of them takes ``step_s + row_s x rows`` seconds.
  So many rows fit, the rest waits in turn.  New weights stop it for as long as they take.
* Processor work (sandboxes, the generator's actor, the log's writer) is first come, first served on so many servers.
* A trajectory of a group is ready when all of the group are.
* The buffer holds ``(async_ratio + 1) x batch`` trajectories: in play, ready, or in training.  One that began under
  version v is trained on by the step of version v + async_ratio or before; steps wait for those that are due, and
  leave no more behind than later steps can still take in time (docs/staleness.md).
  Ratio 0 is therefore the synchronous loop.

What trajectories do comes from laws (``Workload``) or from what those of a run did (scale_traces.py).
Nothing here knows a number of its own: constants come from scale_constants.py, or from that run.
"""

import heapq
import random
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from typing import Literal, Protocol

from engine.cluster.multiplexing import Demand, Multiplexer, Multiplexing

Layout = Literal["colocated", "apart", "multiplexed"]


class Episodes(Protocol):
    """Where trajectories come from."""

    def drawn(self, random_numbers: random.Random) -> "Episode":
        """The next one."""
        ...

    def trained_tokens(self, episode: "Episode") -> float: ...


@dataclass(frozen=True)
class Workload:
    """What a trajectory does: turns by a geometric law, tokens by a log-normal, tools by a truncated Pareto."""

    turns_mean: float
    turns_max: int
    tokens_median: float
    tokens_sigma: float
    observation_tokens: float
    prompt_tokens: float
    tool_tail: float
    tool_s: tuple[float, float]
    """Shortest and longest."""

    def drawn(self, random_numbers: random.Random) -> "Episode":
        turns = 1
        while turns < self.turns_max and random_numbers.random() > 1 / self.turns_mean:
            turns += 1
        low, high = self.tool_s
        tokens = [self.tokens_median * random_numbers.lognormvariate(0, self.tokens_sigma) for _ in range(turns)]
        waits = [min(high, low * random_numbers.paretovariate(self.tool_tail)) for _ in range(turns)] if high else []
        return Episode(tokens, waits or [0.0] * turns)

    def trained_tokens(self, episode: "Episode") -> float:
        return self.prompt_tokens + sum(episode.tokens) + len(episode.tokens) * self.observation_tokens


@dataclass
class Episode:
    tokens: list[float]
    """To be decoded in each turn."""
    waits_s: list[float]
    """How long the tool of each turn takes without needing a processor."""
    turn: int = 0
    version: int = 0
    """The version of the weights when it began."""
    group: "list[Episode] | None" = None
    """All that are compared with each other, itself among them; None: nobody else."""
    finished: bool = False


@dataclass(frozen=True)
class Machine:
    """Devices and processors, and what things cost on them, in seconds."""

    gpus: int
    cores: int
    rows_per_gpu: int
    """The rows of the KV cache."""
    step_s: float
    row_s: float
    train_token_gpu_s: float
    """GPU seconds to train on a token: log-probs, loss, gradient and update."""
    weights_s: float
    """From the trainer to every generator, decoding stopped."""
    move_s: float
    """For GPUs to change sides, in multiplexing."""
    sandbox_cpu_s: float
    exec_cpu_s: float
    call_cpu_s: float
    """The seconds of the generator's actor, for the calls of a turn."""
    event_cpu_s: float
    """The seconds of the driver, to write a trajectory into the run's log."""


@dataclass(frozen=True)
class Plan:
    layout: Layout
    async_ratio: int
    batch: int
    trainer_gpus: int = 0
    """The GPUs that train of ``apart`` and ``multiplexed``; ``colocated`` uses all of them for one thing at a time."""
    hold_s: float | None = None
    """Between two moves of ``multiplexed``; None: five times what a move takes."""


@dataclass(frozen=True)
class SimulatedRun:
    plan: Plan
    steps_per_hour: float
    trajectories_per_s: float
    gpu_idle_share: float
    """The share of all GPU seconds: neither decoding, nor training, nor taking weights."""
    in_flight_mean: float
    in_flight_max: int
    """Trajectories in play at once, each with a sandbox."""
    staleness_mean: float
    staleness_max: int
    trainer_waits_share: float
    use: dict[str, float]
    """By what does the work: the share of what it could do that it did."""
    moves: int

    @property
    def bottleneck(self) -> str:
        """What works most, if above ``FULL`` of its capacity; else nothing does, and steps wait for the slowest."""
        name = max(self.use, key=lambda name: self.use[name])
        return name if self.use[name] > FULL else "stragglers"


FULL = 0.85


class Servers:
    """Processors of one kind: first come, first served.  Arrivals are in the order of time."""

    def __init__(self, number: int) -> None:
        self._free_at = [0.0] * number
        self.number = number
        self.busy_s = 0.0

    def done_at(self, now_s: float, work_s: float) -> float:
        started = max(now_s, heapq.heappop(self._free_at))
        heapq.heappush(self._free_at, started + work_s)
        self.busy_s += work_s
        return started + work_s


class Decoder:
    """GPUs that decode: all rows go on at one pace, which their number sets.

    ``_pace`` counts the tokens that each row has got since the beginning, so a row is done when it has passed its mark.
    """

    def __init__(self, machine: Machine, gpus: int) -> None:
        self._machine = machine
        self.gpus = gpus
        self.stopped = False
        self._now_s = self._pace = 0.0
        self._rows: list[tuple[float, int, Episode]] = []
        self._waiting: deque[tuple[float, int, Episode]] = deque()
        self._numbers = count()
        self.busy_gpu_s = self.tokens = self.capacity_tokens = 0.0

    def add(self, episode: Episode, tokens: float) -> None:
        self._waiting.append((tokens, next(self._numbers), episode))
        self.admit()

    def admit(self) -> None:
        while self._waiting and len(self._rows) < self._machine.rows_per_gpu * self.gpus:
            tokens, number, episode = self._waiting.popleft()
            heapq.heappush(self._rows, (self._pace + tokens, number, episode))

    def advance(self, now_s: float) -> None:
        passed_s, self._now_s = now_s - self._now_s, now_s
        full = self._machine.rows_per_gpu
        self.capacity_tokens += passed_s * self.gpus * full / (self._machine.step_s + self._machine.row_s * full)
        if self._rows and self.gpus and not self.stopped:
            self._pace += passed_s / self._token_s
            self.tokens += len(self._rows) * passed_s / self._token_s
            self.busy_gpu_s += passed_s * min(len(self._rows), self.gpus)

    def next_s(self) -> float:
        """When the next row is done if nothing else happens."""
        if not self._rows or not self.gpus or self.stopped:
            return float("inf")
        return self._now_s + max(0.0, self._rows[0][0] - self._pace) * self._token_s

    def pop(self) -> Episode:
        """The row that is done, at the moment of ``next_s``."""
        mark, _, episode = heapq.heappop(self._rows)
        self._pace = max(self._pace, mark)
        self.admit()
        return episode

    @property
    def _token_s(self) -> float:
        return self._machine.step_s + self._machine.row_s * max(1.0, len(self._rows) / self.gpus)


@dataclass
class Totals:
    """What has been counted since the warm-up ended."""

    since_s: float = 0.0
    trained: int = 0
    train_gpu_s: float = 0.0
    weights_gpu_s: float = 0.0
    training_s: float = 0.0
    in_flight_s: float = 0.0
    in_flight_max: int = 0
    staleness: list[int] = field(default_factory=list)
    moves: int = 0


class Simulation:
    def __init__(self, machine: Machine, workload: Episodes, plan: Plan, *, seed: int = 0) -> None:
        self._machine, self._workload, self._plan = machine, workload, plan
        self._random = random.Random(seed)
        self._now_s = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()
        self._multiplexer = _multiplexer(machine, plan)
        apart = plan.trainer_gpus if plan.layout == "apart" else 0
        self._decoder = Decoder(machine, machine.gpus - apart)
        self._cores, self._actor, self._driver = Servers(machine.cores), Servers(1), Servers(1)
        self._version = self._begun = self._steps = self._in_flight = 0
        self._ready: list[Episode] = []
        self._playing: Counter[int] = Counter()
        """By version of its beginning: how many are in play."""
        self._ready_of: Counter[int] = Counter()
        """The same of those that are ready."""
        self._training = False
        self._totals = Totals()

    def run(self, steps: int, *, warm_up: int) -> SimulatedRun:
        """The first ``warm_up`` steps are played and not counted."""
        self._begin_episodes()
        while self._steps < warm_up + steps:
            self._go_to_next_event()
            if self._steps == warm_up and self._totals.since_s == 0.0 and warm_up:
                self._forget()
        return self._outcome(steps)

    def _go_to_next_event(self) -> None:
        decoded_s = self._decoder.next_s()
        event_s = self._events[0][0] if self._events else float("inf")
        if decoded_s == event_s == float("inf"):
            raise RuntimeError(f"nothing can happen any more at step {self._steps} of {self._plan}")
        at_s = min(decoded_s, event_s)
        self._totals.in_flight_s += (at_s - self._now_s) * self._in_flight
        self._now_s = at_s
        self._decoder.advance(at_s)
        if decoded_s <= event_s:
            self._decoded(self._decoder.pop())
        else:
            heapq.heappop(self._events)[2]()

    def _later(self, at_s: float, what: Callable[[], None]) -> None:
        heapq.heappush(self._events, (at_s, next(self._numbers), what))

    def _begin_episodes(self) -> None:
        room = (self._version + self._plan.async_ratio + 1) * self._plan.batch
        while self._begun < room:
            self._begun += 1
            episode = self._workload.drawn(self._random)
            episode.version = self._version
            self._playing[self._version] += 1
            self._in_flight += 1
            made_s = self._cores.done_at(self._now_s, self._machine.sandbox_cpu_s)
            self._later(made_s, lambda episode=episode: self._turn(episode))  # type: ignore[misc]
        self._totals.in_flight_max = max(self._totals.in_flight_max, self._in_flight)

    def _turn(self, episode: Episode) -> None:
        asked_s = self._actor.done_at(self._now_s, self._machine.call_cpu_s)
        self._later(asked_s, lambda: self._decoder.add(episode, episode.tokens[episode.turn]))

    def _decoded(self, episode: Episode) -> None:
        waited_s = self._now_s + episode.waits_s[episode.turn]
        self._later(waited_s, lambda: self._tool_answered(episode))

    def _tool_answered(self, episode: Episode) -> None:
        done_s = self._cores.done_at(self._now_s, self._machine.exec_cpu_s)
        episode.turn += 1
        is_over = episode.turn == len(episode.tokens)
        self._later(done_s, lambda: self._finished(episode) if is_over else self._turn(episode))

    def _finished(self, episode: Episode) -> None:
        self._driver.done_at(self._now_s, self._machine.event_cpu_s)
        self._in_flight -= 1
        episode.finished = True
        group = episode.group or [episode]
        if not all(other.finished for other in group):
            return
        for member in group:
            self._playing[member.version] -= 1
            self._ready_of[member.version] += 1
        self._ready += group
        self._look()

    def _look(self) -> None:
        """Whether GPUs move, and whether a step may begin."""
        self._divide_gpus()
        has_gpus = self._multiplexer is None or self._multiplexer.trainer_gpus > 0
        if not self._training and has_gpus and len(self._ready) >= self._plan.batch and self._may_train():
            self._train()

    def _may_train(self) -> bool:
        """Whether what is left after a step can be trained on in time: at most k batches within its next k steps."""
        oldest = self._version - self._plan.async_ratio
        ready = playing = 0
        for steps in range(self._plan.async_ratio):
            ready += self._ready_of[oldest + steps]
            playing += self._playing[oldest + steps]
            if max(0, ready - self._plan.batch) + playing > steps * self._plan.batch:
                return False
        return True

    def _divide_gpus(self) -> None:
        if self._multiplexer is None:
            return
        demand = Demand(self._now_s, len(self._ready), self._in_flight, self._training, self._may_train())
        if self._multiplexer.decide(demand) is not None:
            self._totals.moves += 1
            self._decoder.gpus = self._multiplexer.rollout_gpus
            self._decoder.admit()
        again_s = self._multiplexer.next_look_s(demand)
        if again_s is not None and again_s > self._now_s:
            self._later(again_s, self._look)

    def _train(self) -> None:
        self._ready.sort(key=lambda episode: episode.version)
        taken, self._ready = self._ready[: self._plan.batch], self._ready[self._plan.batch :]
        self._ready_of -= Counter(episode.version for episode in taken)
        ages = [self._version - episode.version for episode in taken]
        if max(ages) > self._plan.async_ratio:
            raise RuntimeError(f"a trajectory is {max(ages)} versions old, above {self._plan.async_ratio}")
        self._training = True
        moving_s = self._machine.move_s if self._multiplexer else 0.0
        tokens = sum(self._workload.trained_tokens(episode) for episode in taken)
        working_s = tokens * self._machine.train_token_gpu_s / self._trainer_gpus
        if self._plan.layout == "colocated":
            self._decoder.stopped = True
        self._later(self._now_s + moving_s + working_s, lambda: self._exchange_weights(ages, moving_s, working_s))

    @property
    def _trainer_gpus(self) -> int:
        return self._machine.gpus if self._plan.layout == "colocated" else self._plan.trainer_gpus

    def _exchange_weights(self, ages: list[int], moving_s: float, working_s: float) -> None:
        """What the step did is counted when it is done, so that a warm-up forgets whole steps."""
        self._totals.staleness += ages
        self._totals.train_gpu_s += working_s * self._trainer_gpus
        self._totals.training_s += moving_s + working_s
        self._decoder.stopped = True
        self._totals.weights_gpu_s += self._machine.weights_s * self._machine.gpus
        self._later(self._now_s + self._machine.weights_s, self._stepped)

    def _stepped(self) -> None:
        self._decoder.stopped = False
        self._training = False
        self._version += 1
        self._steps += 1
        self._totals.trained += self._plan.batch
        self._begin_episodes()
        self._look()

    def _forget(self) -> None:
        self._totals = Totals(since_s=self._now_s)
        for servers in (self._cores, self._actor, self._driver):
            servers.busy_s = 0.0
        self._decoder.busy_gpu_s = self._decoder.tokens = self._decoder.capacity_tokens = 0.0

    def _outcome(self, steps: int) -> SimulatedRun:
        totals, passed_s = self._totals, self._now_s - self._totals.since_s
        gpu_s = passed_s * self._machine.gpus
        used_gpu_s = self._decoder.busy_gpu_s + totals.train_gpu_s + totals.weights_gpu_s
        use = {
            "decoding": self._decoder.tokens / self._decoder.capacity_tokens if self._decoder.capacity_tokens else 0.0,
            "trainer": totals.training_s / passed_s,
            "sandbox processors": self._cores.busy_s / (self._cores.number * passed_s),
            "generator's actor": self._actor.busy_s / passed_s,
            "event log": self._driver.busy_s / passed_s,
        }
        return SimulatedRun(
            plan=self._plan,
            steps_per_hour=steps * 3600 / passed_s,
            trajectories_per_s=totals.trained / passed_s,
            gpu_idle_share=max(0.0, 1 - used_gpu_s / gpu_s),
            in_flight_mean=totals.in_flight_s / passed_s,
            in_flight_max=totals.in_flight_max,
            staleness_mean=sum(totals.staleness) / len(totals.staleness),
            staleness_max=max(totals.staleness),
            trainer_waits_share=1 - totals.training_s / passed_s,
            use=use,
            moves=totals.moves,
        )


def _multiplexer(machine: Machine, plan: Plan) -> Multiplexer | None:
    if plan.layout != "multiplexed":
        return None
    hold_s = 5 * machine.move_s if plan.hold_s is None else plan.hold_s
    return Multiplexer(Multiplexing(machine.gpus, plan.trainer_gpus, plan.batch, hold_s=hold_s, patience_s=2 * hold_s))
