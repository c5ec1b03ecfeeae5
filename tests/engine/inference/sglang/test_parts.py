"""The parts of a streamed answer, as the two kinds of servers tell them."""

import pytest

from engine.inference.sglang.client import ServerGone, ServerRefused, _check_finish, _part

TOKENS = [(-0.1, 7), (-0.2, 8), (-0.3, 9), (-0.4, 10)]


def meta(*, holds: slice, total: int, finish: str | None = None, drawn: bool = False) -> dict[str, object]:
    entries = [[logprob, token, None] for logprob, token in TOKENS[holds]]
    spans = [{"version": "1", "start": 0, "end": min(2, total)}, {"version": "2", "start": 2, "end": total}]
    more = {"output_token_sampling_logprobs": [logprob / 2 for logprob, _ in TOKENS[holds]]} if drawn else {}
    return {
        "output_token_logprobs": entries,
        "output_token_logprobs_length": total,
        "finish_reason": None if finish is None else {"type": finish},
        "weight_versions": spans[: 1 if total <= 2 else 2],
        "prompt_tokens": 3,
        **more,
    }


@pytest.mark.parametrize("tells_all", [True, False])
@pytest.mark.parametrize("drawn", [True, False])
def test_each_part_has_the_tokens_that_came_since_the_last(tells_all: bool, drawn: bool) -> None:
    ends = [1, 1, 3, 4]
    received, parts = 0, []
    for number, total in enumerate(ends):
        holds = slice(0 if tells_all else ([0, *ends][number]), total)
        finish = "length" if number == 3 else None
        part = _part(
            meta(holds=holds, total=total, finish=finish, drawn=drawn), received, None, behaviour_logprobs=drawn
        )
        received += len(part.token_ids)
        parts.append(part)
    assert [part.token_ids for part in parts] == [[7], [], [8, 9], [10]]
    scale = 2 if drawn else 1
    assert [part.logprobs for part in parts] == [[-0.1 / scale], [], [-0.2 / scale, -0.3 / scale], [-0.4 / scale]]
    assert [part.versions for part in parts] == [["1"], [], ["1", "2"], ["2"]]
    assert [part.finish for part in parts] == ["", "", "", "length"]


@pytest.mark.parametrize(("status", "error"), [(400, ServerRefused), (503, ServerGone)])
def test_a_stream_that_ends_with_an_error_of_the_server_raises_it(status: int, error: type[Exception]) -> None:
    with pytest.raises(error, match=f"answered {status}: too long"):
        _check_finish("http://server", {"type": "abort", "status_code": status, "message": "too long"})
    _check_finish("http://server", {"type": "abort", "message": "asked for"})
