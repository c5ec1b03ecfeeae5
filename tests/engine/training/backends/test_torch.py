"""The torch backend as the trainer sees it: means that add up, a reference on demand, what a checkpoint holds."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from threading import Barrier, current_thread
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from engine.cluster.members import trainer_for
from engine.spec.resources import Resources
from engine.training.backends.registry import trainer_backend
from engine.training.backends.threads import dealt_out
from engine.training.backends.torch import TorchBackend
from engine.training.batch import Sample, sample_of
from engine.training.loss_terms.likelihood import LikelihoodLoss
from engine.training.loss_terms.preference import PreferenceLoss
from engine.training.loss_terms.value import ValueLoss
from tests.engine.training.cast import run_spec

SHORT = sample_of([1, 20, 30], [False, True, True])
LONG = sample_of([2, 40, 50, 60, 70], [False, False, True, True, True])
UNLEARNED = sample_of([3, 20, 30], [False, False, False])


def backend(**resources: Any) -> TorchBackend:
    spec = run_spec({}, resources={"threads": 1} | resources)
    made = trainer_backend(spec.model, spec.resources, seed=spec.seed)
    assert isinstance(made, TorchBackend)
    return made


def gradient(made: TorchBackend) -> torch.Tensor:
    return torch.cat(
        [parameter.grad.flatten() for parameter in made.network.parameters() if parameter.grad is not None]
    )


def gradient_of(*batches: list[Sample]) -> torch.Tensor:
    made = backend()
    for batch in batches:
        made.forward_backward(batch, [LikelihoodLoss()])
    return gradient(made)


def test_two_batches_add_the_gradients_of_their_means() -> None:
    torch.testing.assert_close(gradient_of([SHORT], [LONG]), gradient_of([SHORT]) + gradient_of([LONG]))


def test_a_batch_is_one_mean_over_all_its_tokens() -> None:
    """2 and 3 tokens: the means of the two samples weigh 2/5 and 3/5."""
    torch.testing.assert_close(
        gradient_of([SHORT, LONG]), 0.4 * gradient_of([SHORT]) + 0.6 * gradient_of([LONG]), rtol=1e-4, atol=1e-7
    )


def test_terms_of_one_batch_are_one_sum_over_one_weight() -> None:
    """The same term twice has twice the sum and twice the weight: the mean stays."""
    once, twice = backend(), backend()
    ours = once.forward_backward([SHORT, LONG], [LikelihoodLoss()])
    theirs = twice.forward_backward([SHORT, LONG], [LikelihoodLoss(), LikelihoodLoss()])
    assert (ours.weight, theirs.weight) == (5, 10)
    assert theirs.mean == pytest.approx(ours.mean)
    torch.testing.assert_close(gradient(once), gradient(twice))


def test_a_batch_of_weight_0_adds_nothing() -> None:
    made = backend()
    report = made.forward_backward([UNLEARNED], [LikelihoodLoss()])
    assert (report.mean, report.weight) == (0, 0)
    assert all(parameter.grad is None for parameter in made.network.parameters())


MANY = [sample_of([n % 90, *range(20, 22 + n % 7)], [False, *[True] * (2 + n % 7)]) for n in range(600)]
"""Several micro-batches for each of three threads."""


@pytest.mark.parametrize("threads", [2, 3])
def test_threads_that_share_micro_batches_come_to_the_gradient_of_one(threads: int) -> None:
    one, several, again = backend(), *(backend(threads=threads, threads_share="micro-batches") for _ in range(2))
    ours, theirs, once_more = (made.forward_backward(MANY, [LikelihoodLoss()]) for made in (one, several, again))
    assert theirs.mean == pytest.approx(ours.mean, rel=1e-5)
    assert theirs.weight == ours.weight
    assert len(theirs.observations[0]) > threads
    torch.testing.assert_close(gradient(several), gradient(one), rtol=1e-4, atol=1e-7)
    assert torch.equal(gradient(several), gradient(again)), "the sum does not depend on which thread is faster"
    assert theirs == once_more
    second = [made.forward_backward([SHORT], [LikelihoodLoss()]) for made in (one, several)]
    assert second[0].mean == pytest.approx(second[1].mean, rel=1e-5)
    torch.testing.assert_close(gradient(several), gradient(one), rtol=1e-4, atol=1e-7)


def test_threads_share_the_scoring_and_each_has_a_part(monkeypatch: pytest.MonkeyPatch) -> None:
    several = backend(threads=2, threads_share="micro-batches")
    scored, joined = several._scored, both_threads()

    def noted(*arguments: Any) -> Any:
        joined()
        assert torch.get_num_threads() == 1
        return scored(*arguments)

    monkeypatch.setattr(several, "_scored", noted)
    for ours, theirs in zip(several.logprobs(MANY), backend().logprobs(MANY), strict=True):
        assert ours == pytest.approx(theirs, abs=1e-5)


def both_threads() -> Callable[[], None]:
    """What each thread calls: its first call returns when another thread calls too, and raises if none does."""
    seen, both = set[str](), Barrier(2, timeout=60)

    def joined() -> None:
        if (name := current_thread().name) not in seen:
            seen.add(name)
            both.wait()

    return joined


def test_threads_share_the_values_and_each_has_a_part(monkeypatch: pytest.MonkeyPatch) -> None:
    one, several = backend().value_network(), backend(threads=2, threads_share="micro-batches").value_network()
    targets = [
        replace(sample, values=np.zeros(len(sample), np.float32), returns=np.ones(len(sample), np.float32))
        for sample in MANY
    ]
    for network in (one, several):  # heads are all zeros at first
        network.forward_backward(targets, [ValueLoss(None)])
        network.step(learning_rate=1e-2, grad_clip=1.0)
    valued, joined = several._outputs, both_threads()

    def noted(*arguments: Any) -> Any:
        joined()
        assert torch.get_num_threads() == 1
        return valued(*arguments)

    monkeypatch.setattr(several, "_outputs", noted)
    for ours, theirs in zip(several.values(MANY), one.values(MANY), strict=True):
        assert ours == pytest.approx(theirs, abs=1e-4)
        assert ours.any()


def test_what_a_thread_raises_is_raised_when_all_are_done(monkeypatch: pytest.MonkeyPatch) -> None:
    several = backend(threads=2, threads_share="micro-batches")

    def broken(*arguments: Any) -> Any:
        raise RuntimeError("no memory")

    monkeypatch.setattr(several, "_scored", broken)
    with pytest.raises(RuntimeError, match="no memory"):
        several.forward_backward(MANY, [LikelihoodLoss()])


def test_work_is_dealt_out_by_its_cost() -> None:
    assert dealt_out([5, 1, 4, 2], 2) == [[0, 1], [2, 3]]
    assert dealt_out([7], 4) == [[0]]
    assert dealt_out([], 2) == [[]]


@pytest.mark.parametrize("resources", [{"trainer_ranks": 2}, {"device": "cuda"}, {"trainer": "megatron"}])
def test_trainers_whose_threads_cannot_share_micro_batches_are_refused(resources: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match="threads_share"):
        Resources.model_validate({"threads_share": "micro-batches", **resources})


def test_a_step_forgets_the_gradient_and_says_how_long_it_was() -> None:
    made = backend()
    made.forward_backward([SHORT], [LikelihoodLoss()])
    norm = gradient(made).norm().item()
    assert made.step(learning_rate=1e-3, grad_clip=1.0) == pytest.approx(norm, rel=1e-5)
    assert all(parameter.grad is None for parameter in made.network.parameters())


def test_a_term_that_needs_a_reference_is_refused_without_one_and_served_with_one() -> None:
    made, pair = backend(), (SHORT, LONG)
    with pytest.raises(RuntimeError, match="none was frozen"):
        made.forward_backward([pair], [PreferenceLoss(0.1)])
    made.freeze_reference()
    report = made.forward_backward([pair], [PreferenceLoss(0.1)])
    assert report.mean == pytest.approx(0.6931, abs=1e-4)  # at the reference, ln 2
    assert report.observations == [[(0, 0.0, 1)]]


def test_a_checkpoint_holds_what_it_always_held(tmp_path: Path) -> None:
    """One file beside the weights, whose parts have these names: runs that were saved earlier go on."""
    trainer_for(run_spec({})).save(tmp_path / "here", beside={"critic": {}})
    state = torch.load(tmp_path / "here" / "trainer.pt", weights_only=True)
    assert set(state) == {"stage", "updates", "optimizer", "reference", "entropy", "replay_entropy", "beside"}
    assert state["beside"] == {"critic": {}}
