"""Which episodes to play: each named, numbered and seeded before anything runs."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from engine.algorithms import saar
from engine.rollout.seeds import derived_seed
from engine.spec.rollout_group import Prefill
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
    purify: bool = False
    """Whether SAAR works on this rollout."""
    lessons: tuple[str, ...] = ()
    """What it is shown besides its task."""
    prefill: Prefill | None = None
    """Absent: a fresh start."""
    logprob_temperature: float = 1.0
    """At which the log-probs of what is sampled are taken; an evaluation's are at 1."""

    @property
    def id(self) -> str:
        return f"{self.purpose}-{self.step}-{self.group}-{self.index}"

    def turn_seed(self, turn: int) -> int:
        return derived_seed(self.seed, turn)

    def correction_seed(self, turn: int, attempt: int) -> int:
        """Of the ``attempt``-th correction (from 1) of a failed call: no turn's seed depends on how many there were."""
        return derived_seed(self.seed, turn, "correction", attempt)

    def try_number(self, number: int) -> "EpisodeRequest":
        """0 is this one; the others are played in its place: the same start, other draws."""
        return replace(self, seed=derived_seed(self.seed, "again", number)) if number else self


def group_requests(spec: RunSpec, step: int, group: int, task: int) -> list[EpisodeRequest]:
    """All rollouts of one group: training task ``task`` from its start, ``group_size`` times.

    Of a recipe with purification, the share rho is to be purified; each rollout's seed decides whether it is.
    """
    schedule = spec.schedule
    return [
        _request(spec, "train", step, group, index, task, schedule.temperature) for index in range(schedule.group_size)
    ]


def evaluation_requests(spec: RunSpec, step: int, tasks: int) -> list[EpisodeRequest]:
    """The first ``tasks`` held-out tasks, each once greedily and once by sampling at temperature 1.

    Where the recipe asks for it, once more by sampling, with every failed call purified.
    """
    purification = spec.recipe.purification
    how: list[tuple[Purpose, float]] = [("eval-greedy", 0.0), ("eval-sampled", 1.0)]
    if purification is not None and purification.in_evaluation:
        how.append(("eval-purified", 1.0))
    return [_request(spec, purpose, step, task, 0, task, heat) for purpose, heat in how for task in range(tasks)]


def shares(requests: Sequence[EpisodeRequest], workers: int) -> list[list[EpisodeRequest]]:
    """The same work for each of ``workers``, to within one episode, dealt out so that each gets of every kind."""
    return [list(requests[worker::workers]) for worker in range(workers)]


def _request(
    spec: RunSpec, purpose: Purpose, step: int, group: int, index: int, task: int, temperature: float
) -> EpisodeRequest:
    seed = derived_seed(spec.seed, purpose, step, group, index)
    return EpisodeRequest(
        purpose=purpose,
        step=step,
        group=group,
        index=index,
        split="train" if purpose == "train" else "heldout",
        task=task,
        temperature=temperature,
        seed=seed,
        purify=purpose == "eval-purified" or (purpose == "train" and _is_purified(spec, seed)),
        logprob_temperature=spec.schedule.logprob_temperature if purpose == "train" else 1.0,
    )


def _is_purified(spec: RunSpec, seed: int) -> bool:
    purification = spec.recipe.purification
    return purification is not None and saar.purifies(seed, rho=purification.share)
