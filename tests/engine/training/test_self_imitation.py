import io
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

from engine.spec.objective import Cispo, Clipped
from engine.spec.self_imitation import SelfImitation
from engine.training.batch import Sample
from engine.training.loss_terms.replay import imitation_clips
from engine.training.self_imitation import Replay, SelfImitator, evenly
from tests.engine.training.cast import only_sample, trajectory, turn


@dataclass(frozen=True)
class Played:
    """What the buffer has to know of a rollout."""

    step: int
    reward: float


def step_of(step: int, *rewards: float) -> tuple[list[float], list[Played], list[list[Sample]]]:
    """The mean of one group, whose advantages are rewards minus this mean; its rollouts; their samples."""
    mean = sum(rewards) / len(rewards)
    played = [
        trajectory(turn([1], [20 + step, 21 + i], advantages=[reward - mean] * 2, old_logprobs=[-0.1 * step, -0.2]),
                   reward=reward, member=i, step=step)
        for i, reward in enumerate(rewards)
    ]  # fmt: skip
    return [mean], [Played(step, reward) for reward in rewards], [[only_sample(rollout)] for rollout in played]


def spear(**changes: object) -> SelfImitator:
    return SelfImitator(SelfImitation(**({"replay_buffer": 2, "baseline_buffer": 3, "warmup_steps": 4} | changes)))


def replays(imitator: SelfImitator, *steps: tuple[float, ...]) -> list[tuple[Replay, dict[str, float]]]:
    return [imitator.next_replay(*step_of(number, *rewards), step=number) for number, rewards in enumerate(steps, 1)]


def test_a_full_buffer_is_replayed_in_the_next_step_and_then_empty() -> None:
    """Algorithm 1.  Baselines 0.5, 0.5, 0.2: the median is 0.5, so a reward of 1 has A~ = 0.5."""
    reported = replays(spear(), (1, 0), (1, 0), (0.3, 0.1), (1, 0))
    assert [one["buffer"] for _, one in reported] == [1, 2, 0, 1]
    assert [one["replayed"] for _, one in reported] == [0, 0, 2, 0]
    assert reported[2][1]["baseline"] == 0.5
    replay = reported[2][0]
    assert [sample.token_ids.tolist() for sample in replay.samples] == [[1, 21, 21], [1, 22, 21]]
    assert [sample.advantages.tolist() for sample in replay.samples] == [[0, 0.5, 0.5]] * 2
    assert [sample.old_logprobs.tolist() for sample in replay.samples] == [
        pytest.approx([0, -0.1, -0.2]),
        pytest.approx([0, -0.2, -0.2]),
    ]
    assert replay.strength == pytest.approx((1 - np.cos(np.pi * 3 / 4)) / 2)


def test_what_is_now_ordinary_is_not_replayed() -> None:
    """P50 has risen above the reward that was good once."""
    reported = replays(spear(replay_buffer=1, baseline_buffer=1), (0.4, 0), (1, 1))
    assert reported[1][1] | {"weight": 0} == {
        "replayed": 0, "baseline": 1, "weight": 0, "buffer": 0, "expired": 0
    }  # fmt: skip
    assert not reported[1][0].active


def test_without_baselines_each_keeps_its_own_advantage() -> None:
    reported = replays(spear(replay_buffer=1, baseline_buffer=0), (1, 0), (1, 1))
    assert [sample.advantages.tolist() for sample in reported[1][0].samples] == [[0, 0.5, 0.5]]


def test_nobody_who_is_masked_is_imitated_but_counts_in_the_baseline() -> None:
    means, played, samples = step_of(1, 1, 0)
    samples[0] = [sample.masked("overlong") for sample in samples[0]]
    _, reported = spear().next_replay(means, played, samples, step=1)
    assert (reported["buffer"], reported["baseline"]) == (0, 0.5)


def test_what_comes_back_from_quarantine_is_replayed_and_pushes_no_mean_of_its_own() -> None:
    """Group 0 of step 1 was (1, 0, 0) when its fourth rollout was out, and 0.8 comes back beside (1, 0) of step 2."""
    imitator = spear(replay_buffer=9)
    _, first = imitator.next_replay(*step_of(1, 1, 0, 0), step=1)
    assert first["baseline"] == pytest.approx(1 / 3)
    _, [*_, back], [*_, back_sample] = step_of(1, 0, 0, 0, 0.8)
    means, played, samples = step_of(2, 1, 0)
    _, reported = imitator.next_replay(means, [*played, back], [*samples, back_sample], step=2)
    assert imitator.state()["baselines"] == pytest.approx([1 / 3, 0.5])
    assert reported["buffer"] == 3
    assert [entry["step"] for entry in imitator.state()["entries"]] == [1, 2, 1]
    # Nothing else is left to learn from in this step.
    imitator.next_replay([], [back], [back_sample], step=3)
    assert imitator.state()["baselines"] == pytest.approx([1 / 3, 0.5])


def test_too_old_entries_leave() -> None:
    reported = replays(spear(max_age_steps=1), (1, 0), (1, 1), (1, 1))
    assert [one["buffer"] for _, one in reported] == [1, 1, 0]
    assert [one["expired"] for _, one in reported] == [0, 0, 1]


def test_a_full_buffer_that_steps_without_learning_made_too_old_is_not_replayed() -> None:
    imitator = spear(max_age_steps=10)
    replays(imitator, (1, 0), (1, 0))
    _, reported = imitator.next_replay(*step_of(13, 1, 0), step=13)
    assert (reported["replayed"], reported["buffer"]) == (0, 1)


def test_saved_through_torch_and_loaded_it_goes_on_as_if_nothing_had_happened() -> None:
    steps = [(1.0, 0.0), (0.7, 0.2), (1.0, 0.0), (0.3, 0.0)]
    straight = spear()
    expected = replays(straight, *steps)
    stopped = spear()
    replays(stopped, *steps[:2])
    file = io.BytesIO()
    torch.save(stopped.state(), file)
    file.seek(0)
    resumed = spear()
    resumed.load(torch.load(file, weights_only=True))
    for number in (3, 4):
        replay, reported = resumed.next_replay(*step_of(number, *steps[number - 1]), step=number)
        assert reported == expected[number - 1][1]
        for ours, theirs in zip(replay.samples, expected[number - 1][0].samples, strict=True):
            for column in ("token_ids", "loss_mask", "advantages", "old_logprobs"):
                assert np.array_equal(getattr(ours, column), getattr(theirs, column))
                assert getattr(ours, column).dtype == getattr(theirs, column).dtype


def test_a_replayed_sample_carries_nothing_of_its_first_update() -> None:
    means, played, samples = step_of(1, 1, 0)
    boosted = [
        [replace(sample, boosted=sample.loss_mask, expert=sample.loss_mask) for sample in of_rollout]
        for of_rollout in samples
    ]
    imitator = spear(replay_buffer=1)
    imitator.next_replay(means, played, boosted, step=1)
    replay, _ = imitator.next_replay(*step_of(2, 1, 0), step=2)
    assert all(sample.boosted is sample.expert is sample.kept is None for sample in replay.samples)


@pytest.mark.parametrize(("entries", "parts"), [(7, 3), (2, 4), (0, 2), (8, 8)])
def test_even_parts_hold_everything_once_in_order(entries: int, parts: int) -> None:
    cut = evenly(list(range(entries)), parts)
    assert [item for part in cut for item in part] == list(range(entries))
    assert len(cut) == parts
    assert max(map(len, cut)) - min(map(len, cut)) <= 1


def test_the_clips_of_the_replay_are_the_recipes_own_only_where_they_mean_the_same() -> None:
    own = Clipped(clip_high=0.4, dual_clip=3, aggregation="seq-mean-token-sum")
    assert imitation_clips(own) is own
    beside = imitation_clips(Cispo(clip_high=5.0, aggregation="seq-mean-token-mean"))
    assert (beside.clip_low, beside.clip_high, beside.aggregation) == (0.2, 0.28, "seq-mean-token-mean")
