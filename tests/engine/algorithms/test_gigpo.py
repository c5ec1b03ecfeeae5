import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.algorithms.credit import group_relative_advantages
from engine.algorithms.gigpo import episode_advantages, gigpo_advantages, step_advantages

every_scale = pytest.mark.parametrize("scale_by_std", [True, False])
lengths = st.lists(st.integers(1, 4), min_size=2, max_size=6)


def _doubles(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def _at_the_end(outcome: float, steps: int) -> torch.Tensor:
    return torch.cat((torch.zeros(steps - 1, dtype=torch.float64), _doubles(outcome)))


REWARDS = [_doubles(0, 1), _doubles(0, 0, 0)]
ANCHORS = [["hall", "kitchen"], ["hall", "cellar", "hall"]]


def test_steps_from_the_same_state_by_hand():
    """gamma 0.5: in the hall the returns were 0.5, 0 and 0, with mean 1/6; kitchen and cellar were seen once."""
    first, second = step_advantages(REWARDS, ANCHORS, gamma=0.5, scale_by_std=False)
    torch.testing.assert_close(first, _doubles(1 / 3, 0))
    torch.testing.assert_close(second, _doubles(-1 / 6, 0, -1 / 6))


def test_the_two_parts_add_up_with_their_weight_by_hand():
    first, second = gigpo_advantages(REWARDS, ANCHORS, gamma=0.5, step_weight=3.0, scale_by_std=False)
    torch.testing.assert_close(first, _doubles(0.5 + 1, 0.5))
    torch.testing.assert_close(second, _doubles(-0.5 - 0.5, -0.5, -0.5 - 0.5))


def test_a_mean_over_steps_lets_long_episodes_weigh_more():
    """Returns 1 (two steps) and 0 (three steps): mean 1/2 over trajectories and 2/5 over steps."""
    over = {how: episode_advantages(REWARDS, scale_by_std=False, mean_over=how) for how in ("trajectories", "steps")}
    torch.testing.assert_close(over["trajectories"], _doubles(0.5, -0.5))
    torch.testing.assert_close(over["steps"], _doubles(0.6, -0.4))


@every_scale
@given(lengths, st.data())
def test_with_singleton_anchors_only_it_is_grpo(scale_by_std, lengths, data):
    outcomes = data.draw(st.lists(st.floats(-3, 3), min_size=len(lengths), max_size=len(lengths)))
    rewards = [_at_the_end(outcome, steps) for steps, outcome in zip(lengths, outcomes, strict=True)]
    nowhere_twice = [[(i, k) for k in range(n)] for i, n in enumerate(lengths)]
    grpo = group_relative_advantages(_doubles(*outcomes)[None], scale_by_std=scale_by_std)[0]
    for i, advantages in enumerate(gigpo_advantages(rewards, nowhere_twice, scale_by_std=scale_by_std)):
        assert torch.equal(advantages, grpo[i].expand(lengths[i]))


@every_scale
def test_a_step_weight_of_0_is_bit_identical_to_the_episode_part(scale_by_std):
    episode = episode_advantages(REWARDS, scale_by_std=scale_by_std)
    for i, advantages in enumerate(gigpo_advantages(REWARDS, ANCHORS, step_weight=0.0, scale_by_std=scale_by_std)):
        assert torch.equal(advantages, episode[i].expand_as(advantages))


@given(st.integers(1, 5), st.lists(st.floats(-3, 3), min_size=2, max_size=6))
def test_with_equal_lengths_both_episode_means_agree(steps, outcomes):
    rewards = [_at_the_end(round(outcome, 2), steps) for outcome in outcomes]
    torch.testing.assert_close(
        episode_advantages(rewards, mean_over="steps"), episode_advantages(rewards, mean_over="trajectories"),
        rtol=1e-6, atol=1e-8,
    )  # fmt: skip


@every_scale
def test_the_order_of_the_group_does_not_matter(scale_by_std):
    dice = random.Random(0)
    rewards = [torch.tensor([dice.random() for _ in range(n)], dtype=torch.float64) for n in (3, 1, 4, 2)]
    anchors = [[dice.choice("abc") for _ in seen] for seen in rewards]
    order = [2, 0, 3, 1]
    straight = gigpo_advantages(rewards, anchors, scale_by_std=scale_by_std)
    turned = gigpo_advantages([rewards[i] for i in order], [anchors[i] for i in order], scale_by_std=scale_by_std)
    for place, i in enumerate(order):
        torch.testing.assert_close(turned[place], straight[i])


@every_scale
@pytest.mark.parametrize("mean_over", ["trajectories", "steps"])
def test_equal_returns_teach_nothing(scale_by_std, mean_over):
    rewards = [torch.tensor([0.7]), torch.tensor([0.0, 0.7]), torch.tensor([0.7])]
    anchors = [["a"], ["b", "a"], ["a"]]
    for advantages in gigpo_advantages(rewards, anchors, scale_by_std=scale_by_std, episode_mean=mean_over):
        assert torch.equal(advantages, torch.zeros_like(advantages))


def test_the_better_step_from_a_state_is_pushed_up_even_in_the_same_episode():
    """Two visits of the hall, and the later one is nearer to the goal."""
    (advantages,) = gigpo_advantages([_doubles(0, 0, 1)], [["hall", "cellar", "hall"]], gamma=0.5)
    assert advantages[2] > 0 > advantages[0]
    assert advantages[1] == 0


@pytest.mark.parametrize("anchors", [[["a"], ["b"]], [["a", "b", "c"], ["a", "b", "c"]]])
def test_every_step_needs_its_observation(anchors):
    with pytest.raises(ValueError, match="observation"):
        gigpo_advantages(REWARDS, anchors)
