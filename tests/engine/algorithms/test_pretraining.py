import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.algorithms.pretraining import next_token_loss, packed, weight_decay
from engine.algorithms.supervised import masked_likelihood_loss

DOCUMENTS = st.lists(st.lists(st.integers(1, 99), max_size=12), max_size=8)


def test_packing_by_hand():
    rows = packed([[1, 2, 3], [4, 5], [6, 7, 8]], row_tokens=4)
    assert rows.token_ids_BT.tolist() == [[1, 2, 3, 4], [5, 6, 7, 8]]
    assert rows.document_BT.tolist() == [[0, 0, 0, 1], [0, 1, 1, 1]]
    assert rows.position_BT.tolist() == [[0, 1, 2, 0], [0, 0, 1, 2]]


@given(DOCUMENTS, st.integers(2, 9))
def test_packing_loses_and_doubles_no_token(documents, row_tokens):
    rows = packed(documents, row_tokens=row_tokens, pad_id=0)
    real = rows.document_BT >= 0
    assert rows.token_ids_BT[real].tolist() == sum(documents, [])
    assert (rows.token_ids_BT[~real] == 0).all()
    assert real.sum(1)[:-1].eq(row_tokens).all()


@given(DOCUMENTS, st.integers(2, 9))
def test_no_token_looks_ahead_or_into_another_document(documents, row_tokens):
    rows = packed(documents, row_tokens=row_tokens)
    for row, visible_TT in zip(rows.document_BT.tolist(), rows.visible_BTT(), strict=True):
        for here, number in enumerate(row):
            seen = [there for there in range(here + 1) if number >= 0 and row[there] == number]
            assert visible_TT[here].nonzero().flatten().tolist() == seen


def test_the_loss_by_hand():
    rows = packed([[1, 2, 3], [4, 5]], row_tokens=4)
    logp_BT = torch.tensor([[-9.0, -1.0, -2.0, -9.0], [-9.0, -9.0, -9.0, -9.0]])
    loss, weight = next_token_loss(logp_BT, rows.position_BT)
    assert (loss.item(), weight.item()) == (3.0, 2)


def test_documents_in_rows_of_their_own_are_supervised_learning_of_all_but_the_first_token():
    documents = [[1, 2, 3, 4], [5, 6, 7, 8]]
    logp_BT = torch.randn(2, 4, generator=torch.Generator().manual_seed(0))
    turn_BT = torch.tensor([[-1, 0, 0, 0]] * 2)
    ours = next_token_loss(logp_BT, packed(documents, row_tokens=4).position_BT)
    assert ours == masked_likelihood_loss(logp_BT, turn_BT)


def test_the_cut_into_micro_batches_and_the_padding_change_nothing():
    rows = packed([[1] * 7, [2] * 6, [3] * 4], row_tokens=5, pad_id=9)
    logp_BT = torch.arange(20.0).reshape(4, 5)
    whole = next_token_loss(logp_BT, rows.position_BT)
    parts = [next_token_loss(logp_BT[i : i + 1], rows.position_BT[i : i + 1]) for i in range(4)]
    assert whole == (sum(loss for loss, _ in parts), sum(weight for _, weight in parts))
    padded = torch.where(rows.document_BT < 0, torch.tensor(-1e9), logp_BT)
    assert next_token_loss(padded, rows.position_BT) == whole


def test_the_gradient_raises_what_is_learned_and_nothing_else():
    logp_BT = torch.zeros(1, 4, requires_grad=True)
    next_token_loss(logp_BT, torch.tensor([[0, 1, 2, 0]]))[0].backward()
    assert logp_BT.grad.tolist() == [[0, -1, -1, 0]]


def test_nothing_to_learn_is_exactly_0():
    rows = packed([[1], [2]], row_tokens=2)
    loss, weight = next_token_loss(torch.full((1, 2), -3.0), rows.position_BT)
    assert (loss.item(), weight.item()) == (0.0, 0)
    assert packed([], row_tokens=4).token_ids_BT.shape == (0, 4)


def test_rows_of_one_token_are_refused():
    with pytest.raises(ValueError, match="row_tokens = 1"):
        packed([[1, 2]], row_tokens=1)


def test_weight_decay_stays_in_the_first_stage_and_falls_in_the_second():
    assert {weight_decay(1, update, 10) for update in range(10)} == {0.1}
    falling = [weight_decay(2, update, 10) for update in range(12)]
    assert falling[:2] == pytest.approx([0.1, 0.09])
    assert falling[9:] == pytest.approx([0.01] * 3)
    assert weight_decay(2, 0, 1) == pytest.approx(0.01)
