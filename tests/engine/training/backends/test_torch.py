"""The torch backend as the trainer sees it: means that add up, a reference on demand, what a checkpoint holds."""

from pathlib import Path

import pytest
import torch

from engine.cluster.members import trainer_for
from engine.training.backends.registry import trainer_backend
from engine.training.backends.torch import TorchBackend
from engine.training.batch import Sample, sample_of
from engine.training.loss_terms.likelihood import LikelihoodLoss
from engine.training.loss_terms.preference import PreferenceLoss
from tests.engine.training.cast import run_spec

SHORT = sample_of([1, 20, 30], [False, True, True])
LONG = sample_of([2, 40, 50, 60, 70], [False, False, True, True, True])
UNLEARNED = sample_of([3, 20, 30], [False, False, False])


def backend() -> TorchBackend:
    spec = run_spec({})
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
