import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.algorithms.experience import boosted_surrogate
from engine.algorithms.objectives import clipped_surrogate
from engine.algorithms.stripping import stripped

CLIPS = {"clip_low": 0.2, "clip_high": 0.28}


def _loss_and_slope(ratio: float, advantage: float, *, was_stripped: bool) -> tuple[float, float]:
    r = torch.tensor(ratio, dtype=torch.float64, requires_grad=True)
    loss = boosted_surrogate(r, torch.tensor(advantage), torch.tensor(was_stripped))
    loss.backward()
    return loss.item(), r.grad.item()


@pytest.mark.parametrize(
    ("ratio", "advantage", "was_stripped", "loss", "slope"),
    [
        (1.5, 1.0, True, -1.5, -1.0),  # inside the wider clip: still learned
        (1.5, 1.0, False, -1.28, 0.0),
        (2.0, 1.0, True, -1.6, 0.0),  # the wider clip is a clip
        (0.5, -1.0, True, 0.8, 0.0),  # bad ones are clipped as ever
        (2.0, -1.0, True, 2.0, 1.0),
        (9.0, -1.0, True, 3.0, 0.0),  # and bounded by the dual clip
    ],
)
def test_selective_boosting_by_hand(ratio, advantage, was_stripped, loss, slope):
    assert _loss_and_slope(ratio, advantage, was_stripped=was_stripped) == pytest.approx((loss, slope))


def test_without_a_stripped_sample_it_is_bit_identical_to_the_clipped_surrogate():
    ratios, advantages, nobody = torch.rand(1000) * 3, torch.randn(1000), torch.zeros(1000).bool()
    plain = clipped_surrogate(ratios, advantages, **CLIPS, dual_clip=3.0)
    assert torch.equal(boosted_surrogate(ratios, advantages, nobody, **CLIPS), plain)
    unboosted = boosted_surrogate(ratios, advantages, ~nobody, **CLIPS, boosted_clip_high=0.28)
    assert torch.equal(unboosted, plain)


def test_stripping_by_hand():
    """system 1 2, experience 3 4 5, query 6, trajectory 7 8."""
    assert stripped([1, 2, 3, 4, 5, 6, 7, 8], [(2, 5)]) == [1, 2, 6, 7, 8]


@given(st.lists(st.integers(), max_size=20), st.data())
def test_nothing_else_moves_and_columns_stay_aligned(ids, data):
    edges = sorted(data.draw(st.lists(st.integers(0, len(ids)), max_size=6)))
    spans = list(zip(edges[::2], edges[1::2], strict=False))
    inside = {place for start, end in spans for place in range(start, end)}
    kept = [place for place in range(len(ids)) if place not in inside]
    assert stripped(range(len(ids)), spans) == kept
    assert stripped(ids, spans) == [ids[place] for place in kept]


def test_no_span_strips_nothing():
    assert stripped([1, 2, 3], []) == [1, 2, 3]


@pytest.mark.parametrize("spans", [[(2, 1)], [(0, 2), (1, 3)], [(2, 3), (0, 1)], [(0, 9)], [(-1, 1)]])
def test_spans_that_make_no_sense_are_refused(spans):
    with pytest.raises(ValueError, match="span"):
        stripped([1, 2, 3], spans)
