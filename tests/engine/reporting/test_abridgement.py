"""A trajectory that is too long for an event reaches the service all the same, and says what it lacks."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from engine.reporting.abridgement import KEPT, abridged
from engine.reporting.event_writer import LONGEST_DOCUMENT_BYTES, EventWriter
from engine.reporting.spool import Spool
from engine.spec.branches import branches_of, exchanges_of
from engine.spec.trajectory import SharedPrefix, Trajectory

Rollout = Callable[..., Trajectory]


def lengthened(rollout: Trajectory, **of_turn: Any) -> Trajectory:
    """With ``of_turn`` in its first turn."""
    first, *others = rollout.turns
    return rollout.with_turns([first.model_copy(update=of_turn), *others])


def sampled(tokens: int) -> dict[str, Any]:
    """As credit leaves a turn."""
    return {
        "token_ids": list(range(100_000, 100_000 + tokens)),
        "pieces": [f" word{number}" for number in range(tokens)],
        "logprobs": [-1 / 3] * tokens,
        "policy_versions": [12] * tokens,
        "advantages": [0.1234567890123456] * tokens,
        "old_logprobs": [-2 / 3] * tokens,
    }


def read(tokens: int) -> dict[str, Any]:
    return {"context_ids": list(range(100_000, 100_000 + tokens)), "context_text": "abcde" * tokens}


def size(trajectory: Trajectory) -> int:
    return len(trajectory.model_dump_json().encode())


def test_what_fits_stays_as_it_is(rollout: Rollout) -> None:
    whole = rollout(turns=3)
    assert abridged(whole, size(whole)) is whole


def test_what_training_made_of_tokens_goes_first(rollout: Rollout) -> None:
    whole = lengthened(rollout(), **sampled(500))
    stored = abridged(whole, size(whole) - 1)
    assert stored.left_out == "advantages and old log-probs"
    assert stored.can_be_learned
    assert stored.turns[0].advantages is stored.turns[0].old_logprobs is None
    nothing_else = {"advantages": None, "old_logprobs": None}
    assert stored.model_copy(update={"left_out": None}) == lengthened(whole, **nothing_else)


def test_then_the_middle_goes_and_ends_of_texts_and_tokens_stay_beside_each_other(rollout: Rollout) -> None:
    many = 3 * KEPT[-1]
    whole = lengthened(rollout(), **sampled(many), **read(many))
    stored = abridged(whole, 40_000)
    assert size(stored) <= 40_000
    assert stored.left_out is not None
    assert f"more than {KEPT[-1]} tokens or characters" in stored.left_out
    assert not stored.can_be_learned
    turn, half = stored.turns[0], KEPT[-1] // 2
    assert turn.token_ids == [*range(100_000, 100_000 + half), *range(100_000 + many - half, 100_000 + many)]
    assert len(turn.pieces) == len(turn.logprobs) == len(turn.policy_versions) == 2 * half
    assert turn.pieces[half - 1] == f" word{half - 1} [{many - 2 * half} tokens are left out here] "
    assert turn.pieces[half] == f" word{many - half}"
    text = whole.turns[0].context_text
    mark = f" [{len(text) - 2 * half} characters are left out here] "
    assert turn.context_text == text[:half] + mark + text[-half:]
    assert stored.turns[1] == whole.turns[1]


def test_segments_that_share_a_beginning_are_read_as_branches_of_their_own(rollout: Rollout) -> None:
    long = lengthened(rollout(turns=1), **read(3 * KEPT[-1]))
    [first] = long.segments
    second = first.model_copy(update={"prefix": SharedPrefix(segment=0, tokens=3 * KEPT[-1])})
    stored = abridged(long.model_copy(update={"segments": [first, second]}), 12_000)
    assert branches_of(stored) == [0, 1]
    assert all("left out here" in exchange.read_text for branch in (0, 1) for exchange in exchanges_of(stored, branch))


def test_of_what_would_never_fit_the_outcome_is_left(rollout: Rollout) -> None:
    whole = rollout(turns=300, reward=0.25)
    stored = abridged(whole, 20_000)
    assert (stored.segments, stored.left_out) == ([], "all turns")
    assert (stored.id, stored.task, stored.reward) == (whole.id, whole.task, 0.25)


def test_a_rollout_of_more_than_an_event_costs_a_warning_and_not_the_run(tmp_path: Path, rollout: Rollout) -> None:
    spool = Spool(tmp_path)
    long = lengthened(rollout(prompt=7), **sampled(45_000))
    assert size(long) > LONGEST_DOCUMENT_BYTES
    short = rollout(prompt=8)
    EventWriter(spool, attempt=1).trajectories([long, short])
    stored, beside, warning = [json.loads(line) for line in spool.read(1, max_events=9, max_bytes=10**7)]
    assert stored["trajectory"]["left_out"] == "advantages and old log-probs"
    assert Trajectory.model_validate(beside["trajectory"]) == short
    assert (warning["level"], warning["message"].split()[0]) == ("warning", "train-7-0")
    assert "advantages and old log-probs left out" in warning["message"]
