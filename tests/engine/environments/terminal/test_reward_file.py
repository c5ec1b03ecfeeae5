"""Nothing but a number from 0 to 1 is a reward."""

import json

import pytest

from engine.environments.terminal.reward_file import RewardUnreadable, reward_of


@pytest.mark.parametrize(
    ("text", "document", "reward", "components"),
    [
        (b"1\n", None, 1.0, {}),
        (b" 0.25 ", None, 0.25, {}),
        (b"1e-3", None, 0.001, {}),
        (None, b'{"reward": 0.5, "style": 1, "speed": 0.1}', 0.5, {"style": 1.0, "speed": 0.1}),
        (None, b'{"accuracy": 0.75}', 0.75, {}),
        (b"0.5", b'{"reward": 0.5}', 0.5, {}),
    ],
)
def test_rewards_are_read(text, document, reward, components):
    read = reward_of(text, document)
    assert (read.reward, read.components, read.success) == (reward, components, reward == 1)


@pytest.mark.parametrize(
    ("text", "document"),
    [
        (None, None), (b"", None), (b"nan", None), (b"inf", None), (b"-0.1", None), (b"1.01", None), (b"1 1", None),
        (b"0x1", None), (b"1_0", None), (b"one", None), (b"\xff", None), (b"1e999", None), (b"True", None),
        ("\u0661".encode(), None), (None, b"1"), (None, b"[]"), (None, b"{}"), (None, b'{"reward": true}'),
        (None, b'{"reward": "1"}'), (None, b'{"reward": NaN}'), (None, b'{"reward": 2}'), (None, b'{"reward": null}'),
        (None, b'{"reward": 0, "reward": 1}'), (None, b'{"a": 1, "b": 0}'), (None, b'{"reward": {"reward": 1}}'),
        (None, b'{"reward": 1, "": 1}'), (None, b'{"reward": 1, "x": -1}'), (None, b"[" * 100_000),
        (b"0", b'{"reward": 1}'), (b"x", b'{"reward": 1}'), (None, b'{"reward": 1} {}'),
        (None, json.dumps({f"n{i}": 1 for i in range(100)} | {"reward": 1}).encode()),
    ],
)  # fmt: skip
def test_nonsense_is_no_reward(text, document):
    with pytest.raises(RewardUnreadable):
        reward_of(text, document)
