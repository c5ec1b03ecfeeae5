"""Every estimator is an entry of one registry, whatever its structure; one that answers wrongly ends the run."""

import math
from collections.abc import Sequence
from typing import ClassVar, Literal, get_args

import numpy as np
import pytest

from engine.failures import RunFailed
from engine.spec.credit import Attribution, ChunkReturn, Credit, DrGrpo, Gae, Gigpo, Grpo, ReinforcePlusPlus, Rloo
from engine.spec.estimator import CriticEstimator, Estimator, GroupEstimator, TokenEstimator, TurnEstimator
from engine.spec.requirement import Requirements
from engine.spec.trajectory import Trajectory
from engine.training.advantages import token_advantages
from engine.training.batch import Sample
from engine.training.estimators.critic import targets_of
from engine.training.estimators.interface import Occasion, named
from tests.engine.groups import grouped
from tests.engine.training.cast import only_sample, trajectory, turn


class OfGroup(GroupEstimator):
    kind: Literal["of-group"] = "of-group"
    answer: tuple[float, ...]

    def advantages(self, rewards: Sequence[float]) -> list[float]:
        return list(self.answer)


class OfTurns(TurnEstimator):
    kind: Literal["of-turns"] = "of-turns"
    answer: tuple[tuple[float, ...], ...]

    def advantages(self, rollouts: Sequence[Trajectory]) -> list[list[float]]:
        return [list(row) for row in self.answer]


class OfTokens(TokenEstimator):
    """The advantage of a token is what the critic had not foreseen of the outcome."""

    kind: Literal["of-tokens"] = "of-tokens"
    whiten: bool = False
    short: bool = False

    def estimates(self, rewards: Sequence[float], values: Sequence[float]) -> tuple[list[float], list[float]]:
        outcome = rewards[-1]
        advantages = [outcome - value for value in values]
        return advantages[1:] if self.short else advantages, [outcome] * len(values)


def group() -> list[Trajectory]:
    """The second turn of the first rollout is an expert's."""
    first = trajectory(turn([1], [20, 21]), turn([8], [9], prefilled=True), turn([8], [22]), reward=1.0, member=0)
    return [first, trajectory(turn([1], [20]), reward=0.0, member=1)]


def a_quarter(samples: Sequence[Sample]) -> list[np.ndarray]:
    return [sample.loss_mask.astype(np.float32) * 0.25 for sample in samples]


@pytest.mark.parametrize("kind", get_args(Credit), ids=lambda kind: kind.__name__)
def test_every_credit_is_an_entry_that_says_what_computes_it(kind: type[Estimator]) -> None:
    assert issubclass(kind, Estimator)
    assert callable(named(kind.computed_by))
    assert next(iter(kind.model_fields)) == "kind"
    if issubclass(kind, CriticEstimator):
        assert callable(named(kind.estimated_by))


@pytest.mark.parametrize(
    ("credit", "compares", "whitens"),
    [
        (Grpo(), True, False), (DrGrpo(), True, False), (Rloo(), True, False), (ReinforcePlusPlus(), False, True),
        (ReinforcePlusPlus(group_baseline=True), True, True), (Gae(), False, True), (Gae(whiten=False), False, False),
        (Gigpo(), True, False), (Attribution(), True, False), (ChunkReturn(), False, False),
    ],
)  # fmt: skip
def test_an_estimator_says_whom_it_compares(credit: Estimator, compares: bool, whitens: bool) -> None:
    assert (credit.compares_a_group(), credit.whitens_a_step()) == (compares, whitens)


def test_a_turn_estimator_gives_each_turn_of_the_policys_its_own_number_and_an_experts_none() -> None:
    credit = OfTurns(answer=((0.5, -0.25), (2.0,)))
    assert token_advantages(credit, grouped(group()), Occasion(1)) == [[[0.5, 0.5], [0.0], [-0.25]], [[2.0]]]


def test_a_turn_estimator_is_not_asked_about_rollouts_in_which_the_policy_wrote_nothing() -> None:
    silent = trajectory(turn([1], [9], prefilled=True), reward=1.0, member=0)
    credit = OfTurns(answer=((2.0,),))
    assert token_advantages(credit, grouped([silent, group()[1]]), Occasion(1)) == [[[0.0]], [[2.0]]]


def test_one_that_compares_nobody_says_so() -> None:
    class Alone(OfTurns):
        requires_of_run: ClassVar[Requirements] = ()

    assert OfTurns(answer=()).compares_a_group()
    assert not Alone(answer=()).compares_a_group()


@pytest.mark.parametrize(
    ("credit", "problem"),
    [
        (OfGroup(answer=(1.0,)), "of-group: 1 answers for the 2 rollouts of a group; give one for each"),
        (OfGroup.model_construct(answer=(1.0, math.nan)), "of-group: .*nan.* give finite numbers"),
        (OfTurns(answer=((0.5, 0.5),)), "of-turns: 1 answers for the 2 rollouts of a group"),
        (OfTurns(answer=((0.5,), (0.5, 0.5))), "of-turns: 1 answers for the 2 turns of train-0-0"),
        (OfTurns(answer=((0.5, 0.5, 0.5), (0.5,))), "of-turns: 3 answers for the 2 turns of train-0-0"),
        (OfTurns.model_construct(answer=((0.5, -math.inf), (0.5,))), "of-turns: .*inf.* give finite numbers"),
    ],
)
def test_an_estimator_that_answers_wrongly_ends_the_run_by_its_name(credit: Estimator, problem: str) -> None:
    with pytest.raises(RunFailed, match=f"recipe.credit.kind = {problem}"):
        token_advantages(credit, grouped(group()), Occasion(1))


def test_a_token_estimator_sees_the_sampled_tokens_beside_the_critics_values() -> None:
    rollout = group()[0]
    sample = only_sample(rollout, as_sampled=True)
    credit = OfTokens()
    assert token_advantages(credit, grouped([rollout]), Occasion(1, a_quarter)) == [[[0.75, 0.75], [0.0], [0.75]]]
    _, [returns] = targets_of(credit, [[sample]], [1.0], a_quarter)
    assert returns[sample.loss_mask].tolist() == [1.0, 1.0, 1.0]
    assert not returns[~sample.loss_mask].any()
    with pytest.raises(RunFailed, match="of-tokens: 2 answers for the 3 sampled tokens of a rollout"):
        token_advantages(OfTokens(short=True), grouped([rollout]), Occasion(1, a_quarter))
