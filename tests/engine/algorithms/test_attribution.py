import math
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.algorithms.attribution import attribution_advantages, standardised_labels
from engine.algorithms.credit import group_relative_advantages

GOOD, BAD = 1.0, -1.0


def _doubles(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


OUTCOMES = _doubles(1, 0)
LABELS = [_doubles(GOOD, GOOD), _doubles(GOOD, BAD, BAD, GOOD)]


attribution_as_in_the_paper = partial(attribution_advantages, scale="paper")


def test_attribution_by_hand():
    """Trajectory averages 1 and 0: mu 0.5, sigma 0.5, so GOOD is 1 and BAD -3.  Outcomes become 1 and -1."""
    first, second = attribution_as_in_the_paper(LABELS, [2, 4], OUTCOMES, alpha=0.1)
    torch.testing.assert_close(first, _doubles(0.1 + 0.1 + 1, 0.1 + 1))
    torch.testing.assert_close(
        second, _doubles(0.1 - 0.3 - 0.3 + 0.1 - 1, -0.3 - 0.3 + 0.1 - 1, -0.3 + 0.1 - 1, 0.1 - 1)
    )


def test_attribution_at_the_scale_of_the_public_code_by_hand():
    """mu 0.5 as before.  Mean squares 0.25 and (0.25 + 2.25) / 2 = 1.25, whose mean is 0.75: GOOD is 1 / sqrt 3."""
    first, second = attribution_advantages(LABELS, [2, 4], OUTCOMES, alpha=0.1)
    good, bad = 0.1 / math.sqrt(3), -0.3 / math.sqrt(3)
    torch.testing.assert_close(first, _doubles(2 * good + 1, good + 1))
    torch.testing.assert_close(second, _doubles(2 * good + 2 * bad - 1, good + 2 * bad - 1, good + bad - 1, good - 1))


@pytest.mark.parametrize("steps", [5, 20, 80])
def test_only_at_the_scale_of_the_paper_labels_grow_with_the_number_of_steps(steps):
    """One BAD more among K steps: averages 2 / K apart, so sigma 1 / K in the paper, while steps vary by about 1."""
    labels = [_doubles(*[GOOD, BAD] * steps), _doubles(*[GOOD, BAD] * (steps - 1), BAD, BAD)]
    paper, code = (standardised_labels(labels, scale=scale)[0].abs().max().item() for scale in ("paper", "code"))
    assert paper == pytest.approx(2 * steps, rel=0.2)
    assert code == pytest.approx(1, rel=0.2)


def test_at_the_scale_of_the_public_code_equal_averages_still_tell_good_steps_from_bad_ones():
    labels = [_doubles(GOOD, BAD), _doubles(BAD, GOOD)]
    torch.testing.assert_close(torch.stack(standardised_labels(labels)), torch.stack(labels), rtol=0, atol=1e-7)
    same = standardised_labels([_doubles(GOOD, GOOD), _doubles(GOOD)])
    assert same is not None
    assert all(torch.equal(verdict, torch.zeros_like(verdict)) for verdict in same)


@pytest.mark.parametrize("scale", ["paper", "code"])
def test_a_long_trajectory_weighs_no_more_than_a_short_one(scale):
    """Repeating every verdict of one trajectory leaves mu and sigma, and so all labels, as they were."""
    short, long = (standardised_labels(labels, scale=scale) for labels in (LABELS, [LABELS[0].repeat(5), LABELS[1]]))
    torch.testing.assert_close(long[1], short[1])
    torch.testing.assert_close(long[0], short[0].repeat(5))


@pytest.mark.parametrize(
    "labels",
    [
        [_doubles(GOOD, BAD), _doubles(BAD, GOOD)],  # equal averages: sigma 0, though steps differ
        [_doubles(GOOD, GOOD, BAD), _doubles(GOOD, GOOD, BAD, GOOD, GOOD, BAD)],
        [_doubles(GOOD, GOOD), None],  # the judge failed once
    ],
)
def test_a_channel_that_says_nothing_is_neutral(labels):
    steps = [2 if verdict is None else len(verdict) for verdict in labels]
    for advantages, outcome in zip(attribution_as_in_the_paper(labels, steps, OUTCOMES), (1, -1), strict=True):
        torch.testing.assert_close(advantages, torch.full_like(advantages, outcome))


@given(st.lists(st.integers(-3, 3), min_size=2, max_size=6))
def test_alpha_0_is_grpo_on_every_step(rewards):
    outcomes = _doubles(*rewards)
    labels = [_doubles(GOOD, BAD, GOOD)[: 1 + i % 3] for i in range(len(rewards))]
    steps = [len(verdict) for verdict in labels]
    grpo = group_relative_advantages(outcomes[None])[0]
    off = attribution_advantages(labels, steps, outcomes, alpha=0.0)
    absent = attribution_advantages([None] * len(rewards), steps, outcomes)
    for i, advantages in enumerate(off):
        assert torch.equal(advantages, absent[i])
        torch.testing.assert_close(advantages, grpo[i].expand(steps[i]), rtol=1e-5, atol=0)


def test_equal_outcomes_leave_the_process_alone_to_teach():
    first, second = attribution_as_in_the_paper(LABELS, [2, 4], _doubles(1, 1), alpha=0.1)
    torch.testing.assert_close(first, _doubles(0.2, 0.1))
    torch.testing.assert_close(second[0], _doubles(-0.4)[0])


def test_a_good_step_is_worth_more_than_a_bad_one():
    """The difference of two neighbours is the later one's share of the process."""
    _, second = attribution_as_in_the_paper(LABELS, [2, 4], OUTCOMES)
    shares = second[:-1] - second[1:]
    assert shares[0] > 0 > shares[1]
    assert shares[1].item() == pytest.approx(-0.3)


def test_the_order_of_the_group_does_not_matter():
    straight = attribution_advantages(LABELS, [2, 4], OUTCOMES)
    turned = attribution_advantages(LABELS[::-1], [4, 2], OUTCOMES.flip(0))
    torch.testing.assert_close(turned[::-1], straight)


@pytest.mark.parametrize(("labels", "steps"), [([_doubles(GOOD), None], [2, 4]), ([None, None], [0, 4])])
def test_a_verdict_covers_every_step(labels, steps):
    with pytest.raises(ValueError, match="at least one step"):
        attribution_advantages(labels, steps, OUTCOMES)


def test_advantages_stay_finite_whatever_the_judge_says():
    labels = [torch.tensor([GOOD] * 30 + [BAD]), torch.tensor([GOOD] * 31)]
    advantages = attribution_advantages(labels, [31, 31], torch.tensor([0.0, 0.0]))
    assert all(math.isfinite(x) for row in advantages for x in row.tolist())


def test_one_failed_verdict_silences_the_channel_for_the_whole_group():
    """Also where the verdicts that remain would have something to say."""
    labels = [_doubles(GOOD, GOOD), None, _doubles(BAD)]
    outcomes = _doubles(1, 0, 0)
    absent = attribution_advantages([None] * 3, [2, 2, 1], outcomes)
    for got, wanted in zip(attribution_advantages(labels, [2, 2, 1], outcomes), absent, strict=True):
        assert torch.equal(got, wanted)
