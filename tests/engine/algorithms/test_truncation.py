"""Truncation against definitions that are written out token by token, and against transformers."""

import math
import random

import pytest
import torch

from engine.algorithms.truncation import FIRST_LOOK, lowest_kept, without_the_cut


def floors(scaled_NV, top_k=0, top_p=1.0, min_p=0.0):
    rows = len(scaled_NV)
    return lowest_kept(
        scaled_NV,
        torch.full((rows,), top_k),
        torch.full((rows,), top_p, dtype=torch.float64),
        torch.full((rows,), min_p, dtype=torch.float64),
    )


def kept_by_definition(logits, top_k, top_p, min_p):
    """The set in Python's own floats: no sort, no running sum."""
    tokens = range(len(logits))
    kept = {t for t in tokens if not top_k or sum(logits[other] > logits[t] for other in tokens) < top_k}
    mass = {t: math.exp(logits[t] - max(logits)) for t in kept}
    total = math.fsum(mass.values())
    likelier = {t: math.fsum(mass[other] for other in kept if logits[other] > logits[t]) / total for t in kept}
    kept = {t for t in kept if top_p == 1 or likelier[t] < top_p}
    return {t for t in kept if mass[t] >= min_p}


@pytest.mark.parametrize("seed", range(40))
def test_what_is_kept_is_what_the_definitions_say(seed):
    dice = random.Random(seed)
    size = dice.choice([2, 5, 40])
    rows = torch.tensor([[dice.gauss(0, dice.choice([0.1, 1, 5])) for _ in range(size)] for _ in range(8)])
    top_k = dice.choice([0, 1, 2, 3, size, size + 10])
    top_p = dice.choice([1.0, 0.999, 0.6, 0.3, 1e-9])
    min_p = dice.choice([0.0, 0.05, 0.5, 1.0])
    floor_N1 = floors(rows, top_k, top_p, min_p)
    for logits, floor in zip(rows, floor_N1, strict=True):
        kept = {t for t in range(size) if logits[t] >= floor}
        assert kept == kept_by_definition(logits.tolist(), top_k, top_p, min_p)
        assert kept


@pytest.mark.parametrize("settings", [(0, 0.6, 0.0), (20, 0.9, 0.0), (50, 1.0, 0.1), (7, 0.8, 0.3)])
def test_the_kept_sets_are_those_of_transformers(settings):
    from transformers import MinPLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

    top_k, top_p, min_p = settings
    scaled = torch.randn(30, 400, generator=torch.Generator().manual_seed(1)) * 2
    theirs = scaled
    if top_k:
        theirs = TopKLogitsWarper(top_k)(None, theirs)
    if top_p < 1:
        theirs = TopPLogitsWarper(top_p)(None, theirs)
    if min_p:
        theirs = MinPLogitsWarper(min_p)(None, theirs)
    assert torch.equal(scaled >= floors(scaled, *settings), theirs > -torch.inf)


def test_a_nucleus_wider_than_the_first_look_is_found_in_the_whole_vocabulary():
    scaled = torch.randn(3, 5 * FIRST_LOOK, generator=torch.Generator().manual_seed(1)) * 0.1
    scaled[1, 7] = 30  # this row's nucleus is one token
    kept = scaled >= floors(scaled, top_p=0.9)
    assert kept.sum(-1).tolist()[1] == 1
    for row in (0, 2):
        probs = scaled[row].double().softmax(-1)
        inside = probs[kept[row]]
        assert kept[row].sum() > FIRST_LOOK
        assert inside.sum() >= 0.9 > inside.sum() - inside.min()


def test_a_row_is_cut_alike_whoever_stands_beside_it():
    scaled = torch.randn(6, 2 * FIRST_LOOK, generator=torch.Generator().manual_seed(1))
    scaled[3] *= 0.01
    together = floors(scaled, top_k=1500, top_p=0.95)
    scaled_elsewhere = scaled.flip(0).clone()
    scaled_elsewhere[0] = 0.0
    assert torch.equal(floors(scaled_elsewhere, top_k=1500, top_p=0.95).flip(0)[:5], together[:5])


def test_equal_logits_are_kept_or_cut_together():
    scaled = torch.tensor([[1.0, 2.0, 2.0, 2.0, 0.0]])
    for settings in ({"top_k": 1}, {"top_k": 2}, {"top_p": 0.1}, {"top_p": 0.5}, {"min_p": 1.0}):
        assert (scaled >= floors(scaled, **settings)).tolist() == [[False, True, True, True, False]]


def test_all_off_keeps_all_also_what_is_impossible():
    scaled = torch.tensor([[0.0, -torch.inf, 3.0]])
    assert (scaled >= floors(scaled)).all()


def test_rows_have_settings_of_their_own():
    scaled = torch.tensor([[0.0, 1.0, 2.0]] * 4)
    floor = lowest_kept(
        scaled,
        torch.tensor([0, 2, 0, 0]),
        torch.tensor([1.0, 1.0, 0.1, 1.0], dtype=torch.float64),
        torch.tensor([0.0, 0.0, 0.0, 0.3], dtype=torch.float64),
    )
    assert (scaled >= floor).sum(-1).tolist() == [3, 2, 1, 2]


def test_the_own_token_stays_and_the_rest_of_the_cut_is_out():
    scaled = torch.tensor([[0.0, 1.0, 2.0, 3.0], [0.0, 1.0, 2.0, 3.0]], requires_grad=True)
    logp = without_the_cut(scaled, torch.tensor([[2.0], [2.0]]), torch.tensor([3, 0])).log_softmax(-1)
    assert logp[0, 3].item() == pytest.approx(3 - math.log(math.exp(2) + math.exp(3)))
    assert logp[1, 0].item() == pytest.approx(0 - math.log(1 + math.exp(2) + math.exp(3)))
    logp[1, 0].backward()
    assert scaled.grad is not None
    assert scaled.grad[1, 1] == 0  # what is cut is not pushed
    assert scaled.grad[1, 0] > 0
    assert scaled.grad.isfinite().all()
