import math

import pytest
import torch

from engine.algorithms.kl import kl_to_reference

every_estimator = pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
POLICY, REFERENCE = torch.tensor([0.5, 0.3, 0.2]).double(), torch.tensor([0.2, 0.2, 0.6]).double()


@pytest.mark.parametrize(
    ("estimator", "value"), [("k1", math.log(2)), ("k2", math.log(2) ** 2 / 2), ("k3", 0.5 - 1 + math.log(2))]
)
def test_estimates_by_hand(estimator, value):
    """The policy finds the token twice as likely as the reference does."""
    kl = kl_to_reference(torch.tensor(math.log(0.4)), torch.tensor(math.log(0.2)), estimator)
    assert kl.item() == pytest.approx(value, rel=1e-5)


@pytest.mark.parametrize("estimator", ["k1", "k3"])
def test_k1_and_k3_in_expectation_are_the_kl_of_policy_to_reference(estimator):
    expected = (POLICY * (POLICY / REFERENCE).log()).sum()
    torch.testing.assert_close((POLICY * kl_to_reference(POLICY.log(), REFERENCE.log(), estimator)).sum(), expected)


def _gradients(estimator: str) -> tuple[torch.Tensor, torch.Tensor]:
    """The gradients of the true KL, and of the estimator in expectation over tokens that the policy sampled before the
    step."""
    logits = POLICY.log().requires_grad_()
    logp = logits.log_softmax(0)
    (true,) = torch.autograd.grad((logp.exp() * (logp - REFERENCE.log())).sum(), logits, retain_graph=True)
    (estimated,) = torch.autograd.grad((POLICY * kl_to_reference(logp, REFERENCE.log(), estimator)).sum(), logits)
    return true, estimated


def test_descending_k2_descends_the_kl():
    torch.testing.assert_close(*_gradients("k2"))


def test_the_gradient_of_k1_as_a_loss_is_0_in_expectation():
    _, estimated = _gradients("k1")
    torch.testing.assert_close(estimated, torch.zeros(3).double(), rtol=0, atol=1e-12)


@every_estimator
def test_the_reference_itself_is_at_distance_exactly_0(estimator):
    assert torch.equal(kl_to_reference(POLICY.log(), POLICY.log(), estimator), torch.zeros(3).double())


@pytest.mark.parametrize("estimator", ["k2", "k3"])
def test_descending_draws_the_policy_to_the_reference(estimator):
    logp = torch.tensor([-1.0, -3.0], requires_grad=True)
    kl_to_reference(logp, torch.tensor([-2.0, -2.0]), estimator).sum().backward()
    assert logp.grad[0] > 0 > logp.grad[1]
