import numpy as np
import pytest

from engine.spec.credit import (
    Attribution,
    ChunkReturn,
    Credit,
    DrGrpo,
    Gae,
    Gigpo,
    Grpo,
    ReinforcePlusPlus,
    Rloo,
)
from engine.spec.trajectory import Start, Trajectory
from engine.training.advantages import token_advantages
from engine.training.estimators.critic import targets_of
from engine.training.estimators.interface import Occasion
from tests.engine.groups import grouped
from tests.engine.training.cast import only_sample, rollouts, trajectory, turn


def per_turn(credit: Credit, *group: Trajectory, step: int = 1) -> list[list[float]]:
    """The advantage of each turn, which all its tokens share."""
    answers = token_advantages(credit, grouped(group), Occasion(step))
    assert all(len(set(tokens)) == 1 for answer in answers for tokens in answer)
    assert [[len(tokens) for tokens in answer] for answer in answers] == [
        [len(each.token_ids) for each in rollout.turns] for rollout in group
    ]
    return [[tokens[0] for tokens in answer] for answer in answers]


def two_turns(reward: float, *, seen: str = "a", **more: object) -> Trajectory:
    return trajectory(turn([1, 2], [20, 21], seen="prompt"), turn([8], [22], seen=seen), reward=reward, **more)


@pytest.mark.parametrize(
    ("credit", "expected"),
    [
        (Grpo(), [1, -1]),
        (DrGrpo(), [0.5, -0.5]),
        (Rloo(), [1, -1]),
        (ReinforcePlusPlus(), [1, -1]),
        (ReinforcePlusPlus(group_baseline=True), [1, -1]),
    ],
)
def test_credit_of_the_outcome_is_the_same_on_every_turn(credit: Credit, expected: list[float]) -> None:
    advantages = per_turn(credit, two_turns(1.0), two_turns(0.0))
    assert advantages == [pytest.approx([value, value], abs=1e-5) for value in expected]


def test_an_experts_turns_get_no_advantage_but_a_return() -> None:
    prefilled = turn([1, 2], [20, 21], prefilled=True)
    group = [trajectory(prefilled, turn([8], [22]), turn([8], [23]), reward=reward) for reward in (1.0, 0.0)]
    for credit in (Grpo(), Gigpo(), Attribution()):
        assert [rollout[0] for rollout in per_turn(credit, *group)] == [0, 0]
        assert all(rollout[1] != 0 for rollout in per_turn(credit, *group))
    assert per_turn(ChunkReturn(gamma=0.5), *group) == [[0.25, 0.5, 1.0], [0.25, 0.0, 0.0]]


def from_start(reward: float, start: Start | None) -> Trajectory:
    """Two turns of an expert and one of the policy."""
    prefilled = [turn([1, 2], [20, 21], prefilled=True), turn([8], [22], prefilled=True)]
    return trajectory(*prefilled, turn([8], [23]), reward=reward, start=start)


def test_an_experts_turns_have_the_experts_own_return_also_behind_a_failure() -> None:
    """The expert took four turns and earned 0.8: 0.8 / 8 and 0.8 / 4.  The rollouts took three."""
    start = Start(expert="e", prefix=2, turns=4, reward=0.8)
    won, lost = per_turn(ChunkReturn(gamma=0.5), *(from_start(reward, start) for reward in (1.0, -1.0)))
    assert won == [pytest.approx(0.1), pytest.approx(0.2), 1.0]
    assert lost == [pytest.approx(0.1), pytest.approx(0.2), -1.0]


@pytest.mark.parametrize(("earned", "expected"), [(None, [0.75, 1.5]), (0.0, [0.0, 0.0]), (-0.3, [0.0, 0.0])], ids=str)
def test_an_experts_return_is_never_negative(earned: float | None, expected: list[float]) -> None:
    """None: what success pays, here 3.  Failed calls may have cost an expert more than that."""
    start = Start(expert="e", prefix=2, turns=3, reward=earned)
    answers = token_advantages(
        ChunkReturn(gamma=0.5), grouped([from_start(-1.0, start)]), Occasion(1, success_reward=3.0)
    )
    assert [tokens[0] for tokens in answers[0]] == [*expected, -1.0]


def test_chunk_returns_are_discounted_by_the_distance_to_the_end() -> None:
    assert per_turn(ChunkReturn(gamma=0.9), two_turns(2.0), trajectory(turn([1], [2]), reward=-1.0)) == [
        pytest.approx([1.8, 2.0]), [-1.0]
    ]  # fmt: skip


def called(*failed: bool, rewards: dict[str, float], **more: object) -> Trajectory:
    """One call a turn, then an answer."""
    turns = [turn([1, 2], [20], failed=each, **more) for each in failed]
    rollout = trajectory(*turns, turn([8], [22], tool_calls=[]), reward=sum(rewards.values()))
    return rollout.model_copy(update={"rewards": rewards})


def test_what_calls_earn_counts_in_their_own_turns_by_hand() -> None:
    """R = 1 for the answer; the call that failed costs 0.5, the one that worked earns 0.1.

    From the end: 1; 0.1 + 0.5 x 1; -0.5 + 0.5 x 0.6.
    """
    rollout = called(True, False, rewards={"outcome": 1.0, "tool_errors": -0.5, "tool_calls": 0.1})
    assert per_turn(ChunkReturn(gamma=0.5, intrinsic=True), rollout) == [pytest.approx([-0.2, 0.6, 1.0])]
    assert per_turn(ChunkReturn(gamma=0.5), rollout) == [pytest.approx([0.15, 0.3, 0.6])]


def test_without_discount_intrinsic_rewards_move_reward_and_make_none() -> None:
    """The first turn's return is all that the rollout earned, as without them."""
    rollout = called(True, False, True, rewards={"outcome": -1.0, "tool_errors": -0.6, "tool_calls": 0.1})
    [with_them] = per_turn(ChunkReturn(gamma=1.0, intrinsic=True), rollout)
    assert with_them == pytest.approx([-1.5, -1.2, -1.3, -1.0])
    [without] = per_turn(ChunkReturn(gamma=1.0), rollout)
    assert without == pytest.approx([-1.5] * 4)


def test_calls_that_earned_nothing_leave_returns_as_they_are_to_the_bit() -> None:
    rollout = called(False, False, rewards={"outcome": 0.7, "tool_errors": 0.0})
    assert per_turn(ChunkReturn(intrinsic=True), rollout) == per_turn(ChunkReturn(), rollout)


def test_an_experts_calls_earn_the_rollout_nothing() -> None:
    """Its failed call was not charged: the policy made none that failed, and its reward is 1 at the end."""
    expert, own = turn([1, 2], [20], failed=True, prefilled=True), turn([8], [21])
    rollout = trajectory(expert, own, turn([8], [22], tool_calls=[]), reward=1.1)
    rollout = rollout.model_copy(update={"rewards": {"outcome": 1.0, "tool_errors": 0.0, "tool_calls": 0.1}})
    assert per_turn(ChunkReturn(gamma=0.5, intrinsic=True), rollout)[0][1:] == pytest.approx([0.6, 1.0])


def test_gigpo_compares_turns_that_read_the_same() -> None:
    """All read the same prompt, two the same observation.  Step returns: 0.5 and 1, 0 and 0, 0.5 and 1."""
    credit = Gigpo(gamma=0.5, scale_by_std=False)
    one, two, alone = two_turns(1.0), two_turns(0.0), two_turns(1.0, seen="b")
    advantages = per_turn(credit, one, two, alone)
    episode = [1 / 3, -2 / 3, 1 / 3]
    prompt = [1 / 6, -1 / 3, 1 / 6]
    assert advantages[0] == pytest.approx([episode[0] + prompt[0], episode[0] + 0.5])
    assert advantages[1] == pytest.approx([episode[1] + prompt[1], episode[1] - 0.5])
    assert advantages[2] == pytest.approx([episode[2] + prompt[2], episode[2]])


def judged(reward: float, *verdicts: str | None) -> Trajectory:
    return trajectory(*(turn([1, 2], [20], verdict=verdict) for verdict in verdicts), reward=reward)


def test_attribution_adds_what_the_judge_says_of_this_turn_and_later_ones() -> None:
    """Averages 0 and -1: mu -0.5, sigma 0.5.  r_attr of the first: 3, -1; of the second: -1, -1."""
    credit = Attribution(alpha=0.1, scale="paper")
    advantages = per_turn(credit, judged(1.0, "good", "bad"), judged(0.0, "bad", "bad"))
    assert advantages == [pytest.approx([1 + 0.2, 1 - 0.1]), pytest.approx([-1 - 0.2, -1 - 0.1])]


def test_a_turn_without_a_verdict_makes_the_group_neutral_and_no_other() -> None:
    lost = [judged(1.0, "good", None), judged(0.0, "bad", "bad")]
    other = [item.model_copy(update={"prompt": 1}) for item in (judged(1.0, "good"), judged(0.0, "bad"))]
    advantages = per_turn(Attribution(alpha=0.1), *lost, *other)
    assert advantages[:2] == [pytest.approx([1, 1]), pytest.approx([-1, -1])]
    assert advantages[2:] == [pytest.approx([1.1]), pytest.approx([-1.1])]


def test_the_judges_weight_falls_to_0_over_its_steps() -> None:
    credit = Attribution(alpha=0.1, decay_steps=10)
    group = [judged(1.0, "good"), judged(0.0, "bad")]
    assert per_turn(credit, *group, step=5)[0] == pytest.approx([1.05])
    assert per_turn(credit, *group, step=10)[0] == pytest.approx([1.0])


@pytest.mark.parametrize("credit", [Grpo(), Rloo(), ReinforcePlusPlus(group_baseline=True), Gigpo(), Attribution()])
def test_groups_of_two_steps_are_two_groups_though_they_have_one_number(credit: Credit) -> None:
    """Who is released from quarantine is credited beside a later step, which numbers its groups anew."""
    earlier, later = [two_turns(-1.0), two_turns(-0.5)], [two_turns(0.7, step=2)] * 2
    answers = token_advantages(credit, [*grouped(earlier), *grouped(later)], Occasion(1))
    assert all(value < 0 for tokens in answers[0] for value in tokens)
    assert all(value > 0 for tokens in answers[1] for value in tokens)
    assert all(value == 0 for answer in answers[2:] for tokens in answer for value in tokens)


@pytest.mark.parametrize("credit", [Grpo(), DrGrpo(), Rloo(), ReinforcePlusPlus(), Gigpo(), Attribution()])
def test_who_is_masked_counts_in_the_statistics(credit: Credit) -> None:
    played = rollouts()
    masked = [
        rollout.model_copy(update={"masked_because": "overlong"}) if rollout.member else rollout for rollout in played
    ]
    assert token_advantages(credit, grouped(masked), Occasion(1)) == token_advantages(
        credit, grouped(played), Occasion(1)
    )


@pytest.mark.parametrize("credit", [Grpo(), Rloo(), ReinforcePlusPlus(), Gigpo(), Attribution()])
def test_the_order_of_the_trajectories_does_not_matter(credit: Credit) -> None:
    played = rollouts()
    forwards, backwards = (token_advantages(credit, grouped(some), Occasion(1)) for some in (played, played[::-1]))
    for ours, theirs in zip(forwards, backwards[::-1], strict=True):
        assert [tokens[0] for tokens in ours] == pytest.approx([tokens[0] for tokens in theirs], abs=1e-5)


def test_the_expected_value_is_subtracted_from_what_was_earned() -> None:
    """lambda 1, gamma 1: A = R - V, also across a tool's answer; what the critic should have said is R everywhere."""
    one = two_turns(2.0)

    def values(samples: list) -> list[np.ndarray]:
        return [np.array([9, 9, 0.5, 1.0, 9, 1.5], dtype=np.float32) * sample.loss_mask for sample in samples]

    [advantages] = token_advantages(Gae(whiten=False), grouped([one]), Occasion(1, values))
    assert advantages == [[1.5, 1.0], [0.5]]
    _, [returns] = targets_of(Gae(), [[only_sample(one, as_sampled=True)]], [2.0], values)
    assert returns.tolist() == [0, 0, 2, 2, 0, 2]


def test_with_lambda_0_only_the_next_value_counts() -> None:
    def values(samples: list) -> list[np.ndarray]:
        return [np.array([0, 0, 0.5, 1.0, 0, 1.5], dtype=np.float32) for _ in samples]

    credit = Gae(lam=0.0, gamma=0.5, whiten=False)
    [advantages] = token_advantages(credit, grouped([two_turns(2.0)]), Occasion(1, values))
    assert advantages == [[0.0, -0.25], [0.5]]


def test_whitened_advantages_have_mean_0_and_variance_1_over_all_sampled_tokens() -> None:
    def values(samples: list) -> list[np.ndarray]:
        return [np.linspace(0, 1, len(sample), dtype=np.float32) * sample.loss_mask for sample in samples]

    rows = token_advantages(Gae(), grouped(rollouts()), Occasion(1, values))
    flat = np.array([value for row in rows for tokens in row for value in tokens])
    assert flat.mean() == pytest.approx(0, abs=1e-6)
    assert flat.std() == pytest.approx(1, abs=1e-5)


def test_equal_rewards_that_nobody_foresaw_teach_nothing() -> None:
    """0.7 has no exact float: its mean over many tokens is off by a bit, and dividing by the std would show it."""
    played = [rollout.model_copy(update={"reward": 0.7}) for rollout in rollouts()]

    def values(samples: list) -> list[np.ndarray]:
        return [np.zeros(len(sample), dtype=np.float32) for sample in samples]

    rows = token_advantages(Gae(), grouped(played), Occasion(1, values))
    assert {value for row in rows for tokens in row for value in tokens} == {0.0}
