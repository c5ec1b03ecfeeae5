"""Which episodes to play: each named, numbered and seeded before anything runs."""

from collections.abc import Sequence
from dataclasses import dataclass

from engine.rollout.seeds import derived_seed
from engine.spec.run import RunSpec
from engine.spec.trajectory import Purpose, Split


@dataclass(frozen=True, slots=True)
class EpisodeRequest:
    """One episode.  Equal requests under equal weights give equal tokens, whoever plays them and when."""

    purpose: Purpose
    step: int
    group: int
    index: int
    split: Split
    task: int
    """The task's number in its split."""
    temperature: float
    """0 means greedy."""
    seed: int

    @property
    def id(self) -> str:
        return f"{self.purpose}-{self.step}-{self.group}-{self.index}"

    def turn_seed(self, turn: int) -> int:
        return derived_seed(self.seed, turn)


def train_requests(spec: RunSpec, step: int) -> list[EpisodeRequest]:
    """The rollouts of training step ``step`` (from 1), group by group.  Training tasks are taken in turn."""
    schedule = spec.schedule
    first = (step - 1) * schedule.prompts_per_step
    return [
        _request(spec, "train", step, group, index, (first + group) % spec.dataset.train_tasks, schedule.temperature)
        for group in range(schedule.prompts_per_step)
        for index in range(schedule.group_size)
    ]


def evaluation_requests(spec: RunSpec, step: int, tasks: int) -> list[EpisodeRequest]:
    """The first ``tasks`` held-out tasks, each once greedily and once by sampling at temperature 1."""
    return [_request(spec, "eval-greedy", step, task, 0, task, 0.0) for task in range(tasks)] + [
        _request(spec, "eval-sampled", step, task, 0, task, 1.0) for task in range(tasks)
    ]


def shares(requests: Sequence[EpisodeRequest], workers: int) -> list[list[EpisodeRequest]]:
    """The same work for each of ``workers``, to within one episode, dealt out so that each gets of every kind."""
    return [list(requests[worker::workers]) for worker in range(workers)]


def _request(
    spec: RunSpec, purpose: Purpose, step: int, group: int, index: int, task: int, temperature: float
) -> EpisodeRequest:
    return EpisodeRequest(
        purpose=purpose,
        step=step,
        group=group,
        index=index,
        split="train" if purpose == "train" else "heldout",
        task=task,
        temperature=temperature,
        seed=derived_seed(spec.seed, purpose, step, group, index),
    )
