import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.algorithms.chunks import chunk_means, chunk_numbers, over_tokens

MASK = torch.tensor([[False, True, True, False, True, False], [True, False, True, False, False, True]])
CHUNKS = torch.tensor([[-1, 0, 0, -1, 1, -1], [0, -1, 1, -1, -1, 2]])


def test_chunks_are_the_runs_of_sampled_tokens():
    assert torch.equal(chunk_numbers(MASK), CHUNKS)


def test_means_and_broadcast_by_hand():
    values = torch.tensor([[9.0, 1.0, 3.0, 9.0, 5.0, 9.0], [7.0, 9.0, 8.0, 9.0, 9.0, 6.0]])
    means = torch.tensor([[2.0, 5.0, 0.0], [7.0, 8.0, 6.0]])
    assert torch.equal(chunk_means(values, CHUNKS), means)
    expected = torch.tensor([[0.0, 2.0, 2.0, 0.0, 5.0, 0.0], [7.0, 0.0, 8.0, 0.0, 0.0, 6.0]])
    assert torch.equal(over_tokens(means, CHUNKS), expected)


def test_what_stands_outside_the_chunks_never_counts():
    values = torch.randn(2, 6).masked_fill(~MASK, float("nan"))
    assert torch.isfinite(chunk_means(values, CHUNKS)).all()


def test_a_batch_without_a_sampled_token_has_no_chunk():
    nobody = torch.zeros(2, 3, dtype=torch.bool)
    assert torch.equal(chunk_numbers(nobody), torch.full((2, 3), -1))
    assert torch.equal(
        over_tokens(chunk_means(torch.ones(2, 3), chunk_numbers(nobody)), chunk_numbers(nobody)).sum(),
        torch.tensor(0.0),
    )


@given(st.lists(st.booleans(), min_size=1, max_size=30))
def test_numbers_rise_by_one_from_chunk_to_chunk(mask):
    numbers = chunk_numbers(torch.tensor([mask]))[0]
    assert torch.equal(numbers >= 0, torch.tensor(mask))
    met = numbers[numbers >= 0].unique_consecutive().tolist()
    assert met == list(range(len(met)))
