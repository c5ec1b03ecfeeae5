import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.algorithms.chunk_return import chunk_returns, discounted_returns


def test_chunk_returns_by_hand():
    torch.testing.assert_close(chunk_returns(2.0, 3, gamma=0.5), torch.tensor([0.5, 1.0, 2.0]))


def test_intrinsic_rewards_by_hand():
    """The last chunk earns 1 + 0.5, the first 0.1 + 0.5 times that."""
    returns = chunk_returns(1.0, 2, gamma=0.5, intrinsic_K=torch.tensor([0.1, 0.5]))
    torch.testing.assert_close(returns, torch.tensor([0.85, 1.5]))


@given(st.floats(-5, 5, width=32), st.integers(1, 12))
def test_without_discount_every_chunk_gets_the_final_reward(reward, chunks):
    assert torch.equal(chunk_returns(reward, chunks, gamma=1.0), torch.full((chunks,), reward))


@given(st.floats(-5, 5, width=32), st.integers(1, 12), st.floats(0.1, 1))
def test_intrinsic_rewards_of_0_are_bit_identical_to_none(reward, chunks, gamma):
    zeros = torch.zeros(chunks)
    assert torch.equal(
        chunk_returns(reward, chunks, gamma=gamma, intrinsic_K=zeros), chunk_returns(reward, chunks, gamma=gamma)
    )


@given(st.lists(st.floats(-5, 5), min_size=1, max_size=12), st.floats(0, 1))
def test_a_return_is_the_discounted_sum_of_what_follows(rewards, gamma):
    returns = discounted_returns(torch.tensor(rewards, dtype=torch.float64), gamma=gamma)
    for k in range(len(rewards)):
        following = sum(gamma**n * reward for n, reward in enumerate(rewards[k:]))
        assert returns[k].item() == pytest.approx(following, abs=1e-9)


def test_the_rewards_that_were_given_stay_as_they_were():
    rewards = torch.ones(3)
    discounted_returns(rewards, gamma=1.0)
    chunk_returns(1.0, 3, gamma=1.0, intrinsic_K=rewards)
    assert torch.equal(rewards, torch.ones(3))


def test_an_empty_trajectory_has_no_return():
    assert len(chunk_returns(1.0, 0, gamma=0.9)) == 0
