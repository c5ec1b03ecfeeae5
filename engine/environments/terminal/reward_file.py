"""What the tests of a task say: ``reward.txt`` or ``reward.json``, read so that nothing else is taken for a reward."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isclose, isfinite
from typing import Any

MOST_BYTES = 64 * 1024
MOST_COMPONENTS = 64
WHOLE = "reward"
"""The component of ``reward.json`` that is the reward itself."""
_NUMBER = re.compile(rb"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d{1,3})?")
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_./-]{0,63}")


class RewardUnreadable(ValueError):
    """The file is there and holds no reward; the message says why."""


@dataclass(frozen=True, slots=True)
class TestReward:
    """A reward from 0 to 1, and the parts that ``reward.json`` names beside it."""

    reward: float
    components: Mapping[str, float] = field(default_factory=dict)

    @property
    def success(self) -> bool:
        return self.reward >= 1.0


def reward_of(text: bytes | None, document: bytes | None) -> TestReward:
    """The reward of ``reward.txt`` and ``reward.json``, either of which may be None.  Raises ``RewardUnreadable``."""
    if document is None:
        if text is None:
            raise RewardUnreadable("the tests wrote neither reward.txt nor reward.json")
        return TestReward(_number_in(text))
    read = _document_in(document)
    if text is not None and not isclose(_number_in(text), read.reward, abs_tol=1e-9):
        raise RewardUnreadable("reward.txt and reward.json hold two rewards")
    return read


def _number_in(text: bytes) -> float:
    if _NUMBER.fullmatch(text.strip()) is None:
        raise RewardUnreadable(f"reward.txt holds {text[:40]!r} where a number from 0 to 1 is due")
    return _within("reward.txt", float(text))


def _document_in(document: bytes) -> TestReward:
    try:
        read = json.loads(document, parse_constant=_refused, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise RewardUnreadable(f"reward.json is no JSON: {error}") from None
    if not isinstance(read, dict) or not read or len(read) > MOST_COMPONENTS:
        raise RewardUnreadable(f"reward.json is no object of 1 to {MOST_COMPONENTS} numbers")
    rewards = {_name(name): _component(name, value) for name, value in read.items()}
    if WHOLE not in rewards and len(rewards) > 1:
        raise RewardUnreadable(f"reward.json has several parts and none named {WHOLE!r}")
    whole = rewards.pop(WHOLE, None)
    return TestReward(rewards.popitem()[1]) if whole is None else TestReward(whole, rewards)


def _name(name: str) -> str:
    if _NAME.fullmatch(name) is None:
        raise RewardUnreadable(f"reward.json has a part {name[:40]!r}, which is no name")
    return name


def _component(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise RewardUnreadable(f"reward.json: {name} is no number")
    return _within(f"reward.json: {name}", float(value))


def _within(where: str, reward: float) -> float:
    if not isfinite(reward) or not 0 <= reward <= 1:
        raise RewardUnreadable(f"{where} is {reward}, not from 0 to 1")
    return reward


def _refused(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(dict(pairs)) < len(pairs):
        raise ValueError("a name stands there twice")
    return dict(pairs)
