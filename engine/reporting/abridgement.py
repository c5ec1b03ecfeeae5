"""A trajectory that is too long for an event, made shorter: a run does not end for what is reported of it.

    what training made of each token ─► the middle of long texts and lists of tokens, ever more of it ─► all turns

What is left is a trajectory that can be read as any other; ``Trajectory.left_out`` says what is missing, and
``can_be_learned`` whether it is still one to learn from.
"""

from collections.abc import Iterator
from typing import Any

from pydantic_core import to_json

from engine.spec.trajectory import MADE_BY_TRAINING, Trajectory

OF_TRAINING = ("advantages", "old_logprobs")
PER_TOKEN = ("context_ids", "token_ids", "pieces", "logprobs", "policy_versions", "removed_ids")
KEPT = tuple(2**power for power in range(16, 8, -1))
"""The tokens of a list, or the characters of a text, that are kept: as many as fit."""


def abridged(trajectory: Trajectory, most_bytes: int) -> Trajectory:
    """As much of it as fits into ``most_bytes`` of JSON; itself, if all of it does."""
    if len(trajectory.model_dump_json().encode()) <= most_bytes:
        return trajectory
    fitting = (shorter for shorter in _abridgements(trajectory.model_dump()) if len(to_json(shorter)) <= most_bytes)
    return Trajectory.model_validate(next(fitting))


def _abridgements(document: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Ever shorter ones.  Without its middle no segment shares its beginning: tokens are not counted any more."""
    for segment in document["segments"]:
        for turn in segment["turns"]:
            turn.update(dict.fromkeys(OF_TRAINING))
    yield document | {"left_out": MADE_BY_TRAINING}
    for segment in document["segments"]:
        segment["prefix"] = None
    for kept in KEPT:
        beyond = f"the middle of what has more than {kept} tokens or characters"
        yield _without_middles(document, kept) | {"left_out": f"advantages, old log-probs, and {beyond}"}
    without_turns = document | {"segments": [], "changes": [], "left_out": "all turns"}
    yield _without_middles(without_turns, KEPT[-1])


def _without_middles(value: Any, kept: int, name: str = "") -> Any:
    """``name``: that of the field which has the value."""
    match value:
        case str() if len(value) > kept:
            mark = f" [{len(value) - kept} characters are left out here] "
            return value[: kept // 2] + mark + value[-kept // 2 :]
        case dict():
            return {field: _without_middles(entry, kept, field) for field, entry in value.items()}
        case list() if name in PER_TOKEN:
            return _ends(value, kept)
        case list():
            return [_without_middles(entry, kept) for entry in value]
        case _:
            return value


def _ends(tokens: list[Any], kept: int) -> list[Any]:
    """All lists of a turn are as long as each other, and so they stay; the text of a token says that others follow."""
    if len(tokens) <= kept:
        return tokens
    *begin, last = tokens[: kept // 2]
    mark = f" [{len(tokens) - kept} tokens are left out here] "
    return [*begin, last + mark if isinstance(last, str) else last, *tokens[-kept // 2 :]]
