import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.algorithms.ratios import kl_k3, token_ratios

logps = st.floats(-30, 0)


def test_equal_policies_have_ratio_exactly_1_and_kl_exactly_0():
    logp = torch.tensor([-0.1, -7.3, -1e-8])
    assert torch.equal(token_ratios(logp, logp), torch.ones(3))
    assert torch.equal(kl_k3(logp, logp), torch.zeros(3))


@given(logps, logps)
def test_k3_is_never_negative_and_follows_its_formula(logp, logp_sampler):
    a, b = torch.tensor(logp, dtype=torch.float64), torch.tensor(logp_sampler, dtype=torch.float64)
    difference = max(-20.0, min(20.0, logp - logp_sampler))
    assert kl_k3(a, b) >= 0
    assert kl_k3(a, b).item() == pytest.approx(math.exp(difference) - 1 - difference, rel=1e-9, abs=1e-12)


def test_k3_in_expectation_is_the_kl_of_sampler_to_policy():
    """Summed over a whole distribution instead of drawn from it."""
    sampler, policy = torch.tensor([0.5, 0.3, 0.2]), torch.tensor([0.2, 0.2, 0.6])
    expected = (sampler * (sampler / policy).log()).sum()
    torch.testing.assert_close((sampler * kl_k3(policy.log(), sampler.log())).sum(), expected)


def test_ratio_by_hand():
    assert token_ratios(torch.tensor(math.log(0.6)), torch.tensor(math.log(0.2))).item() == pytest.approx(3.0)
