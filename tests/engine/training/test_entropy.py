from dataclasses import replace

import numpy as np
import pytest

from engine.cluster.members import trainer_for
from engine.spec.objective import CovarianceClip, CovarianceKl
from engine.training.batch import Sample
from engine.training.entropy import EntropyKeeper
from tests.engine.training.cast import only_sample, rollouts, run_spec, same_bits

WIDE = CovarianceClip(share=0.3, low=-1e9, high=1e9)


def samples(seed: int = 0) -> list[Sample]:
    dice = np.random.default_rng(seed)
    return [
        replace(
            rollout,
            advantages=dice.normal(size=len(rollout)).astype(np.float32),
            old_logprobs=-dice.random(len(rollout)),
        )
        for rollout in map(only_sample, rollouts())
    ]


def chosen(keeper: EntropyKeeper, given: list[Sample], update: int = 0) -> list[Sample]:
    return list(keeper.chosen(given, [item.old_logprobs for item in given], update=update))


def dropped(keeper: EntropyKeeper, update: int = 0) -> list[tuple[int, int]]:
    return [(i, int(t)) for i, one in enumerate(chosen(keeper, samples(), update)) for t in np.flatnonzero(~one.kept)]


def test_so_many_learned_tokens_are_dropped_and_no_other() -> None:
    given = samples()
    tokens = sum(int(sample.loss_mask.sum()) for sample in given)
    marked = chosen(EntropyKeeper(WIDE, seed=0), given)
    assert sum(int((~trajectory.kept).sum()) for trajectory in marked) == int(0.3 * tokens)
    assert all(sample.kept[~sample.loss_mask].all() for sample in marked)


def test_the_draw_depends_on_seed_stream_and_update_alone() -> None:
    again = EntropyKeeper(WIDE, seed=0)
    dropped(again, 0)
    assert dropped(again, 3) == dropped(EntropyKeeper(WIDE, seed=0), 3)
    different = [(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1)]
    draws = [dropped(EntropyKeeper(WIDE, seed=s, stream=stream), u) for s, stream, u in different]
    assert len({tuple(draw) for draw in draws}) == 4


@pytest.mark.parametrize("spec", [None, CovarianceClip(share=0, low=-1, high=1), CovarianceKl(share=0)])
def test_a_share_of_0_hands_back_the_very_samples(spec: CovarianceClip | CovarianceKl | None) -> None:
    given = samples()
    assert EntropyKeeper(spec, seed=0).chosen(given, [item.old_logprobs for item in given], update=0) is given


def test_bounds_are_measured_once_and_where_covariances_differ() -> None:
    keeper = EntropyKeeper(CovarianceClip(share=0.3, low_share=0.5), seed=0)
    equal = [replace(sample, advantages=np.ones(len(sample), dtype=np.float32) / 3) for sample in samples()]
    keeper.measure(equal, [item.old_logprobs for item in equal])
    assert keeper.state() is None
    assert chosen(keeper, samples())[0].kept is None, "without bounds nothing is dropped"
    states = []
    for seed in (0, 1):
        given = samples(seed)
        keeper.measure(given, [item.old_logprobs for item in given])
        states.append(keeper.state())
    first, second = states
    assert first is not None
    assert second == first
    restored = EntropyKeeper(CovarianceClip(share=0.3, low_share=0.5), seed=0)
    restored.load(first)
    assert dropped(restored) == dropped(keeper) != []


def test_equal_advantages_have_no_covariance_that_rounding_could_rank() -> None:
    third = [replace(sample, advantages=np.full(len(sample), 1 / 3, dtype=np.float32)) for sample in samples()]
    assert all(case.kept is case.penalised is None for case in chosen(EntropyKeeper(WIDE, seed=0), third))
    held_back = chosen(EntropyKeeper(CovarianceKl(share=0.5), seed=0), third)
    assert all(held.kept is None and not held.penalised.any() for held in held_back)


@pytest.mark.parametrize("kind", ["kl", None])
def test_kl_cov_has_no_clip_also_where_all_advantages_are_equal(kind: str | None) -> None:
    """Tokens that have become much likelier have no gradient behind the clip of 1.28, and KL-Cov has none."""
    covariance = {} if kind is None else {"covariance": {"kind": kind, "share": 0.5}}
    trainer = trainer_for(run_spec({"objective": {"kind": "clipped", **covariance}}))
    before = trainer.backend.weights()
    likelier = [
        replace(one, advantages=np.ones(len(one), dtype=np.float32)).with_old_logprobs([value - 1 for value in row])
        for one, row in zip(samples(), trainer.old_logprobs(samples()), strict=True)
    ]
    trainer.update(likelier[:8])
    assert same_bits(before, trainer.backend.weights()) is (kind is None)


def test_kl_cov_marks_the_highest_covariances() -> None:
    given = samples()
    marked = chosen(EntropyKeeper(CovarianceKl(share=0.2), seed=0), given)
    logp = np.concatenate([sample.old_logprobs[sample.loss_mask] for sample in given])
    advantages = np.concatenate([sample.advantages[sample.loss_mask] for sample in given])
    covariance = (logp - logp.mean()) * (advantages - advantages.mean())
    expected = set(np.argsort(-covariance)[: int(0.2 * len(logp))].tolist())
    penalised = np.concatenate([sample.penalised[sample.loss_mask] for sample in marked])
    assert set(np.flatnonzero(penalised).tolist()) == expected
