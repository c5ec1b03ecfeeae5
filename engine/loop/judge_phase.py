"""The judge's phase of a step: a verdict for each turn of what credit will look at.

Where groups are played beside the training they are judged as they come, and the step has no such phase.

Where one rollout of a group gets no verdict, none of the group has any: credit compares within
groups, and there the channel is then neutral.  Groups of which nothing is trained on are not judged.
"""

import asyncio
import os
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from engine.algorithms.curriculum import attribution_weight
from engine.environments.contract import JudgeVerdict, Oracle
from engine.environments.registry import environment_for
from engine.judge_endpoint import JudgeCounts, JudgeFailed, ServedJudge, key_for
from engine.rollout.judge import EnvironmentJudge, Judge
from engine.rollout.judge_llm import LanguageModelJudge
from engine.spec.credit import Attribution
from engine.spec.judge import LlmJudge
from engine.spec.mixture import RunEnvironment
from engine.spec.recipe import Recipe
from engine.spec.rollout_group import RolloutGroup, rollouts_in
from engine.spec.run import Dataset
from engine.spec.trajectory import Trajectory

HEARTBEAT_S = 0.5
"""Every request of a judge has its time-out, so judging ends by itself: as long as it lasts it is alive."""

JudgeResponse = Sequence[JudgeVerdict] | JudgeFailed


@dataclass(slots=True)
class Judged:
    groups: list[RolloutGroup]
    """The same ones, in the same order."""
    metrics: dict[str, float]
    warnings: list[str]


class Judging:
    def __init__(self, credit: Attribution, judge: Judge) -> None:
        self._credit = credit
        self._judge = judge
        self._begin_anew()

    def has_weight(self, step: int) -> bool:
        """Return whether a verdict can still change anything at this step."""
        return attribution_weight(step, self._credit.decay_steps, alpha=self._credit.alpha) > 0

    async def judge(self, groups: Sequence[RolloutGroup], *, alive: Callable[[], None]) -> Judged:
        """``alive`` is called again and again while it lasts.  A cancellation ends what is under way."""
        self._begin_anew()
        return self.reported(await self.with_verdicts(groups, alive=alive))

    async def with_verdicts(self, groups: Sequence[RolloutGroup], *, alive: Callable[[], None]) -> list[RolloutGroup]:
        """Judge groups as they come, many calls at once; ``reported`` then says what came of all."""
        began = time.monotonic()
        asked = [
            rollout
            for group in groups
            if any(rollout.masked_because is None for rollout in group.rollouts)
            for rollout in group.rollouts
            if rollout.turns
        ]
        answers = dict(zip([rollout.id for rollout in asked], await self._answers(asked, alive), strict=True))
        self._received |= answers
        self._neutral += sum(_has_failure(group, answers) for group in groups)
        self._seconds += time.monotonic() - began
        return [_with_verdicts(group, answers) for group in groups]

    def reported(self, judged: Sequence[RolloutGroup]) -> Judged:
        """What judging came to since it was last reported; the verdicts are those of ``judged``."""
        counts = self._judge.counts
        counts.failed = sum(isinstance(answer, JudgeFailed) for answer in self._received.values())
        report = Judged(list(judged), _metrics(judged, counts, self._seconds), _warnings(self._received, self._neutral))
        self._begin_anew()
        return report

    def _begin_anew(self) -> None:
        self._judge.counts = JudgeCounts()
        self._received: dict[str, JudgeResponse] = {}
        self._neutral, self._seconds = 0, 0.0

    async def close(self) -> None:
        await self._judge.close()

    async def _answers(self, asked: Sequence[Trajectory], alive: Callable[[], None]) -> list[JudgeResponse]:
        try:
            async with asyncio.TaskGroup() as asking:
                beating = asking.create_task(_beat(alive))
                tasks = [asking.create_task(self._answer(rollout)) for rollout in asked]
                answers = [await task for task in tasks]
                beating.cancel()
        except BaseExceptionGroup as failures:
            raise failures.exceptions[0] from failures
        return answers

    async def _answer(self, rollout: Trajectory) -> JudgeResponse:
        try:
            return await self._judge.verdicts(rollout)
        except JudgeFailed as failure:
            return failure


def attribution_in(recipe: Recipe) -> Attribution | None:
    """The credit that needs verdicts; None where none would ever be asked for."""
    credit = recipe.credit
    return credit if isinstance(credit, Attribution) and credit.alpha > 0 and recipe.reinforces else None


def judging_for(
    recipe: Recipe,
    described: RunEnvironment,
    dataset: Dataset,
    environ: Mapping[str, str] = os.environ,
    served: ServedJudge | None = None,
) -> Judging | None:
    """The judging that a recipe asks for in the environment ``described``; None where nothing is judged.

    ``requirements.lacking`` says before whether the key, or the oracle, is there.
    """
    credit = attribution_in(recipe)
    if credit is None:
        return None
    if isinstance(credit.judge, LlmJudge):
        key = key_for(credit.judge, environ)
        return Judging(credit, LanguageModelJudge(credit.judge, key=key, served=served))
    environment = environment_for(described, dataset)
    if not isinstance(environment, Oracle):
        raise TypeError(f"{described.id} is no oracle")
    return Judging(credit, EnvironmentJudge(environment, recipe.context))


def _has_failure(group: RolloutGroup, answers: Mapping[str, JudgeResponse]) -> bool:
    return any(isinstance(answers.get(rollout.id), JudgeFailed) for rollout in group.rollouts)


def _with_verdicts(group: RolloutGroup, answers: Mapping[str, JudgeResponse]) -> RolloutGroup:
    if _has_failure(group, answers):
        return group
    return group.with_rollouts(_judged(rollout, answers.get(rollout.id)) for rollout in group.rollouts)


def _judged(rollout: Trajectory, answer: JudgeResponse | None) -> Trajectory:
    """The very rollout where it was not asked about."""
    if answer is None or isinstance(answer, JudgeFailed):
        return rollout
    turns = [turn.model_copy(update={"verdict": verdict}) for turn, verdict in zip(rollout.turns, answer, strict=True)]
    return rollout.with_turns(turns)


def _metrics(judged: Sequence[RolloutGroup], counts: JudgeCounts, seconds: float) -> dict[str, float]:
    verdicts = [
        turn.verdict
        for rollout in rollouts_in(judged)
        for turn in rollout.turns
        if turn.verdict is not None and not turn.prefilled
    ]
    values = {
        "judge/calls": counts.calls,
        "judge/cached": counts.cached,
        "judge/failed": counts.failed,
        "judge/seconds": seconds,
    }
    return values | ({"judge/good": fmean(verdict == "good" for verdict in verdicts)} if verdicts else {})


def _warnings(answers: Mapping[str, JudgeResponse], neutral: int) -> list[str]:
    """One for each kind of failure, with an example.  ``neutral``: in how many groups there is none of it."""
    examples: dict[str, list[str]] = defaultdict(list)
    for trajectory, answer in answers.items():
        if isinstance(answer, JudgeFailed):
            examples[type(answer).__name__].append(f"{trajectory}: {answer}")
    kinds = Counter({kind: len(found) for kind, found in examples.items()})
    return [
        f"{kind} of {count} trajectories, e.g. {examples[kind][0]}; {neutral} groups are judged by outcome alone"
        for kind, count in sorted(kinds.items())
    ]


async def _beat(alive: Callable[[], None]) -> None:
    while True:
        alive()
        await asyncio.sleep(HEARTBEAT_S)
