"""Which episodes to play: each named, numbered and seeded before anything runs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from engine.algorithms import saar
from engine.seeds import derived_seed
from engine.spec.exploration import Purification
from engine.spec.generation import NO_TRUNCATION, Truncation
from engine.spec.message import AssistantMessage
from engine.spec.players import Player, turns_of_script
from engine.spec.rollout_group import GroupPlan, Prefill
from engine.spec.run import Evaluation
from engine.spec.schedule import Schedule
from engine.spec.trajectory import Purpose, Split

PURPOSE_OF: Mapping[Player, Purpose] = {"oracle": "eval-oracle", "nop": "eval-nop", "script": "eval-script"}
"""The purpose of the episodes of a player who is not the model."""


@dataclass(frozen=True, slots=True)
class EpisodeRequest:
    """One episode.  Equal requests under equal weights give equal tokens, whoever plays them and when."""

    purpose: Purpose
    prompt: int
    """It is that of ``Trajectory``, and so is ``member``."""
    member: int
    version: int
    """The policy version at which it was planned; the one to be evaluated."""
    split: Split
    task: int
    """The task's number in its split."""
    temperature: float
    """0 means greedy."""
    seed: int
    player: Player = "model"
    """Who speaks; ``script``: in the turns of ``script``."""
    script: tuple[AssistantMessage, ...] = ()
    purify: bool = False
    """Whether SAAR works on this rollout."""
    experience: tuple[str, ...] = ()
    """What it is shown besides its task."""
    prefill: Prefill | None = None
    """Absent: a fresh start."""
    logprob_temperature: float = 1.0
    """At which the log-probs of what is sampled are taken; an evaluation's are at 1."""
    truncation: Truncation = NO_TRUNCATION
    """The truncation of the distribution that is sampled from."""
    logprobs_truncated: bool = False
    """Whether log-probs are those of what the truncation keeps; an evaluation's never are."""

    @property
    def id(self) -> str:
        return f"{self.purpose}-{self.prompt}-{self.member}"

    @property
    def step(self) -> int:
        """The first step that could train on it; for evaluations the number of finished steps."""
        return self.version + 1 if self.purpose == "train" else self.version

    def turn_seed(self, turn: int) -> int:
        return derived_seed(self.seed, turn)

    def correction_seed(self, turn: int, attempt: int) -> int:
        """The seed of the ``attempt``-th correction (from 1) of a failed call: no turn's seed depends on how many there
        were."""
        return derived_seed(self.seed, turn, "correction", attempt)

    def try_number(self, number: int) -> "EpisodeRequest":
        """0 is this one; the others are played in its place: the same start, other draws."""
        return replace(self, seed=derived_seed(self.seed, "again", number)) if number else self


def group_requests(
    schedule: Schedule, purification: Purification | None, plan: GroupPlan, *, seed: int
) -> list[EpisodeRequest]:
    """All rollouts of one group: its training task from its start, ``group_size`` times and the redundant ones.

    Of a recipe with purification, the share rho is to be purified; each rollout's seed, which comes from the run's
    ``seed``, decides whether it is.
    """
    requests = []
    for member in range(schedule.group_size + schedule.redundant_members):
        own_seed = derived_seed(seed, "train", plan.seed_step, plan.number, member)
        requests.append(
            EpisodeRequest(
                purpose="train",
                prompt=plan.prompt,
                member=member,
                version=plan.version,
                split="train",
                task=plan.task,
                temperature=schedule.temperature,
                seed=own_seed,
                purify=_is_purified(purification, own_seed),
                logprob_temperature=schedule.logprob_temperature,
                truncation=schedule.truncation,
                logprobs_truncated=schedule.logprobs_truncated,
            )
        )
    return requests


def difficulty_requests(
    schedule: Schedule, tasks: Sequence[int], rollouts: int, *, version: int, seed: int
) -> list[EpisodeRequest]:
    """Each of the training ``tasks`` ``rollouts`` times, sampled as training samples.  A task's number is its prompt.

    Nothing is purified, replaced or shown experience: what is measured is the policy alone.
    """
    return [
        EpisodeRequest(
            purpose="difficulty",
            prompt=task,
            member=member,
            version=version,
            split="train",
            task=task,
            temperature=schedule.temperature,
            seed=derived_seed(seed, "difficulty", task, member),
            truncation=schedule.truncation,
        )
        for task in tasks
        for member in range(rollouts)
    ]


def evaluation_requests(
    evaluation: Evaluation,
    purification: Purification | None,
    version: int,
    tasks: int,
    prompts: Mapping[Purpose, int],
    *,
    seed: int,
) -> list[EpisodeRequest]:
    """The first ``tasks`` held-out tasks, each once greedily and ``evaluation.samples`` times by sampling.

    Where the recipe asks for it, as often again by sampling, with every failed call purified; and once by each other
    player.  ``prompts`` says how many prompts of each purpose the run has had before.
    """
    how: list[tuple[Purpose, Player, float]] = [
        (PURPOSE_OF[player], player, 0.0) for player in evaluation.players if player != "model"
    ]
    if "model" in evaluation.players:
        how += [("eval-greedy", "model", 0.0), ("eval-sampled", "model", evaluation.temperature)]
        if purification is not None and purification.in_evaluation:
            how.append(("eval-purified", "model", evaluation.temperature))
    script = tuple(turns_of_script(evaluation.script))
    return [
        EpisodeRequest(
            purpose=purpose,
            prompt=prompts.get(purpose, 0) + task,
            member=member,
            version=version,
            split="heldout",
            task=task,
            temperature=temperature,
            seed=derived_seed(seed, purpose, version, task, member),
            player=player,
            script=script if player == "script" else (),
            purify=purpose == "eval-purified",
            truncation=evaluation.truncation if temperature else NO_TRUNCATION,
        )
        for purpose, player, temperature in how
        for task in range(tasks)
        for member in range(evaluation.samples if temperature else 1)
    ]


def shares(requests: Sequence[EpisodeRequest], workers: int) -> list[list[EpisodeRequest]]:
    """The same work for each of ``workers``, to within one episode, dealt out so that each gets of every kind."""
    return [list(requests[worker::workers]) for worker in range(workers)]


def _is_purified(purification: Purification | None, seed: int) -> bool:
    return purification is not None and saar.purifies(seed, rho=purification.share)
