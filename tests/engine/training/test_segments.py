"""A trajectory in several segments is learned as the same trajectory in one."""

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.algorithms.aggregation import aggregated
from engine.cluster.members import learner_for, trainer_for
from engine.loop.group_filters import SEVERAL_SEGMENTS, masked
from engine.models.vocabulary import tokens_of
from engine.spec.credit import Gae, Gigpo
from engine.spec.run import RunSpec
from engine.spec.self_imitation import SelfImitation
from engine.spec.trajectory import Change, Segment, SharedPrefix, Trajectory
from engine.training.advantages import token_advantages
from engine.training.batch import by_trajectory, per_turn, samples_from_trajectory
from engine.training.columns import RolloutDecision, UpdateRequest
from engine.training.estimators.critic import targets_of
from engine.training.estimators.interface import Occasion
from engine.training.learner import Learner
from engine.training.microbatch import minibatches
from engine.training.preferences import pairs_of
from engine.training.self_imitation import SelfImitator
from engine.training.stages import StageSources, SupervisedStages
from tests.engine.contexts import ids_of_segment
from tests.engine.groups import grouped
from tests.engine.training.cast import (
    credited,
    learned,
    only_sample,
    repaired,
    rollouts,
    run_spec,
    supervised,
    trajectory,
    turn,
    updated,
    with_experience,
)


def cut(one: Trajectory, places: Sequence[int]) -> Trajectory:
    """The same trajectory with a new segment at each of these turns, which shares all that was there before."""
    edges = [0, *sorted({place for place in places if 0 < place < len(one.turns)}), len(one.turns)]
    segments = []
    for number, (start, stop) in enumerate(zip(edges, edges[1:], strict=False)):
        before = sum(each.token_count for each in one.turns[:start])
        prefix = SharedPrefix(segment=number - 1, tokens=before) if number else None
        segments.append(Segment(turns=list(one.turns[start:stop]), prefix=prefix))
    return Trajectory.model_validate(one.model_copy(update={"segments": segments}).model_dump())


def cut_at_random(one: Trajectory, dice: random.Random) -> Trajectory:
    return cut(one, [place for place in range(1, len(one.turns)) if dice.random() < 0.7])


ids = st.lists(st.integers(12, 90), min_size=1, max_size=5)
turns_ = st.lists(st.tuples(ids, ids, st.booleans(), st.booleans()), min_size=1, max_size=7)


@st.composite
def segmentations(draw: st.DrawFn) -> Trajectory:
    """Any tree: segments side by side in time, each with a shared beginning of any length or none."""
    made = [
        turn(context, tokens, prefilled=is_expert, imitated=is_expert, masked_because="error" if is_masked else None)
        for context, tokens, is_expert, is_masked in draw(turns_)
    ]
    owners = [draw(st.integers(0, 3)) for _ in made]
    order = list(dict.fromkeys(owners))
    segments: list[Segment] = []
    for owner in order:
        numbers = [number for number, belongs in enumerate(owners) if belongs == owner]
        prefix = None
        if segments and draw(st.booleans()):
            shared = draw(st.integers(0, len(segments) - 1))
            prefix = SharedPrefix(segment=shared, tokens=draw(st.integers(1, segments[shared].token_count)))
        segments.append(Segment(turns=[made[number] for number in numbers], prefix=prefix, numbers=numbers))
    return Trajectory.model_validate(trajectory().model_copy(update={"segments": segments}).model_dump())


@settings(max_examples=200, deadline=None)
@given(segmentations())
def test_every_sampled_token_is_trained_on_once_whatever_the_segments_share(one: Trajectory) -> None:
    samples = samples_from_trajectory(one, imitation=True)
    learned_turns = [each for each in one.turns if not each.prefilled and each.masked_because is None]
    trained = [token for sample in samples for token in sample.token_ids[sample.loss_mask].tolist()]
    assert sorted(trained) == sorted(token for each in learned_turns for token in each.token_ids)
    as_sampled = samples_from_trajectory(one, as_sampled=True)
    assert sum(int(sample.loss_mask.sum()) for sample in as_sampled) == one.sampled_tokens
    for number, sample in enumerate(as_sampled):
        assert sample.token_ids.tolist() == ids_of_segment(one, number)
    imitated = sum(int(sample.expert.sum()) for sample in samples if sample.expert is not None)
    assert imitated == sum(len(each.token_ids) for each in one.turns if each.imitated and not each.masked_because)


@settings(max_examples=100, deadline=None)
@given(segmentations())
def test_values_of_samples_go_back_to_the_turns_in_order_of_time(one: Trajectory) -> None:
    samples = samples_from_trajectory(one, as_sampled=True)
    assert per_turn([sample.token_ids.tolist() for sample in samples], one) == [each.token_ids for each in one.turns]


@settings(max_examples=100, deadline=None)
@given(segmentations(), st.data())
def test_what_was_stripped_is_in_no_segment_not_even_where_it_is_shared(one: Trajectory, data: st.DataObject) -> None:
    """The tokens of the stripped span are ones that stand nowhere else."""
    number = data.draw(st.integers(0, len(one.turns) - 1))
    context = [1000, 1001, *one.turns[number].context_ids]
    shown = one.turns[number].model_copy(update={"context_ids": context})
    marked = one.with_turns([shown if place == number else each for place, each in enumerate(one.turns)])
    change = Change(kind="stripped", turn=number, start=0, stop=2, reason="strip")
    for sample in samples_from_trajectory(marked.model_copy(update={"changes": [change]})):
        assert not {1000, 1001} & set(sample.token_ids.tolist())
        assert sample.boosted is not None


def test_experience_in_a_shared_prompt_are_stripped_from_every_segment_that_shares_it() -> None:
    one = cut(with_experience(trajectory(turn([2, 4, 5], [20]), turn([8], [21]))), [1])
    change = Change(kind="stripped", turn=0, start=1, stop=4, reason="strip")
    first, second = samples_from_trajectory(one.model_copy(update={"changes": [change]}))
    assert first.token_ids.tolist() == [2, 4, 5, 20]
    assert second.token_ids.tolist() == [2, 4, 5, 20, 8, 21]
    assert second.boosted.tolist() == second.loss_mask.tolist() == [False] * 5 + [True]


CLIPPED = {"kind": "clipped"}
RECIPES: dict[str, dict[str, Any]] = {
    **{
        how: {"objective": CLIPPED | {"aggregation": how}}
        for how in ("token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm")
    },
    "mismatch": {
        "objective": CLIPPED | {"aggregation": "seq-mean-token-mean"},
        "mismatch": {"mask": "token", "mask_bound": 2.0},
    },
    "kl": {"objective": CLIPPED | {"aggregation": "seq-mean-token-mean"}, "kl": {"beta": 0.5}},
    "gigpo": {"credit": {"kind": "gigpo"}},
    "ppo": {"credit": {"kind": "gae"}},
    "ipa": {"credit": {"kind": "chunk-return"}, "objective": {"kind": "ipa", "aggregation": "seq-mean-token-mean"}},
    "spear": {"self_imitation": {"replay_buffer": 4, "warmup_steps": 1}},
    "covariance": {"objective": CLIPPED | {"covariance": {"kind": "clip", "share": 0.2}}},
}


@pytest.mark.parametrize("name", RECIPES)
def test_cutting_trajectories_into_segments_changes_neither_weight_nor_gradient(name: str) -> None:
    """Two steps of two updates each; the shared beginnings leave each token what it was predicted from."""
    spec, dice = run_spec(RECIPES[name]), random.Random(name)
    whole, parts = learner_for(spec), learner_for(spec)
    for step in (1, 2):
        played = rollouts(step)
        segmented = [cut_at_random(rollout, dice) for rollout in played]
        assert max(len(rollout.segments) for rollout in segmented) > 1
        ours, theirs = learned(parts, grouped(segmented)), learned(whole, grouped(played))
        assert ours.keys() == theirs.keys()
        assert ours["updates"] == theirs["updates"] == 2
        assert ours == pytest.approx(theirs, rel=2e-3, abs=2e-5)
    for tensor_name, tensor in whole.weights().items():
        torch.testing.assert_close(parts.weights()[tensor_name], tensor, rtol=1e-3, atol=5e-5, msg=tensor_name)


def test_without_its_share_a_segment_would_weigh_as_a_whole_trajectory() -> None:
    """By hand: a trajectory of 3 + 1 tokens with losses 1 beside one of 2 tokens with losses 4."""
    losses = torch.tensor([[1.0, 1.0, 1.0], [1.0, 0.0, 0.0], [4.0, 4.0, 0.0]])
    mask = torch.tensor([[1, 1, 1], [1, 0, 0], [1, 1, 0]]).bool()
    whole = torch.tensor([4, 4, 2])

    def value(how: Any, tokens: torch.Tensor | None) -> float:
        total, weight = aggregated(losses, mask, how, max_response_tokens=8, trajectory_tokens_B=tokens)
        return (total / weight).item()

    assert value("seq-mean-token-mean", whole) == pytest.approx((1 + 4) / 2)
    assert value("seq-mean-token-mean", None) == pytest.approx((1 + 1 + 4) / 3)
    assert value("seq-mean-token-sum", whole) == pytest.approx((4 + 8) / 2)
    assert value("seq-mean-token-sum-norm", whole) == pytest.approx((4 + 8) / 2 / 8)
    assert value("token-mean", whole) == value("token-mean", None) == pytest.approx(12 / 6)


def test_a_minibatch_counts_trajectories_and_never_parts_one() -> None:
    played = [cut(trajectory(*(turn([1], [20]) for _ in range(3)), member=member), [1, 2]) for member in range(4)]
    samples = [sample for rollout in played for sample in samples_from_trajectory(rollout)]
    assert [len(part) for part in minibatches(samples, 2)] == [6, 6]
    assert [len(part) for part in minibatches(samples, 3)] == [9, 3]
    assert [len(part) for part in by_trajectory(samples)] == [3] * 4
    assert minibatches([], 2) == by_trajectory([]) == []
    with pytest.raises(ValueError, match="another sample opens"):
        by_trajectory(samples[1:])


def test_a_masked_trajectory_trains_on_none_of_its_segments() -> None:
    learner, played = learner_for(run_spec({})), [cut(rollout, [1]) for rollout in rollouts()]
    groups = credited(learner, grouped(played))
    request = UpdateRequest.of(1, groups, [], credited=True)
    kept = played[0].id
    decisions = [
        RolloutDecision(decision.trajectory, None if decision.trajectory == kept else "x")
        for decision in request.rollouts
    ]
    report = learner.update(replace(request, rollouts=tuple(decisions))).metrics
    assert report.get("tokens", 0) == played[0].sampled_tokens


def test_gae_flows_through_segments_in_order_of_time() -> None:
    """Turns 0 and 2 in one segment, 1 in another: delta by delta, as in one sequence of three tokens."""
    turns = [turn([1], [20]), turn([2], [21]), turn([3], [22])]
    segments = [Segment(turns=[turns[0], turns[2]], numbers=[0, 2]), Segment(turns=[turns[1]], numbers=[1])]
    one = Trajectory.model_validate(trajectory(reward=2.0).model_dump() | {"segments": segments})
    worth = {20: 0.5, 21: 1.0, 22: 1.5}

    def values(samples: Sequence[Any]) -> list[np.ndarray]:
        return [np.asarray([worth.get(token, 0.0) for token in sample.token_ids], np.float32) for sample in samples]

    credit = Gae(whiten=False, gamma=0.5, lam=0.5)
    [advantages] = token_advantages(credit, grouped([one]), Occasion(1, values))
    last = 2.0 - 1.5
    middle = 0.5 * 1.5 - 1.0 + 0.25 * last
    first = 0.5 * 1.0 - 0.5 + 0.25 * middle
    assert [value for [value] in advantages] == pytest.approx([first, middle, last])
    _, returns = targets_of(credit, [samples_from_trajectory(one, as_sampled=True)], [2.0], values)
    assert [row.tolist() for row in returns] == [
        pytest.approx([0, first + 0.5, 0, last + 1.5]),
        pytest.approx([0, middle + 1.0]),
    ]


def test_an_anchor_is_what_was_observed_however_much_was_written_again_before_it() -> None:
    """The second turns act on the same observation; one of them begins a segment."""
    appended = trajectory(turn([1], [20], seen="q"), turn([2], [21], seen="room"), reward=1.0)
    again = turn([1, 2], [22], seen="q and room", observed_text="room")
    rewritten = trajectory(reward=0.0, member=1).model_copy(
        update={"segments": [Segment(turns=[turn([1], [23], seen="q")]), Segment(turns=[again])]}
    )
    credit = Gigpo(step_weight=1.0)
    [[_, [mine]], [_, [theirs]]] = token_advantages(credit, grouped([appended, rewritten]), Occasion(1))
    unanchored = rewritten.with_turns([rewritten.turns[0], again.model_copy(update={"observed_text": None})])
    [[_, [alone]], _] = token_advantages(credit, grouped([appended, unanchored]), Occasion(1))
    assert mine == -theirs != alone


def test_a_replayed_trajectory_is_one_entry_with_all_its_segments_and_survives_a_checkpoint() -> None:
    imitator = SelfImitator(SelfImitation(replay_buffer=1, baseline_buffer=0, warmup_steps=0))
    one = cut(trajectory(turn([1], [20, 21], advantages=[1.0, 1.0]), turn([2], [22], advantages=[0.25])), [1])

    class Played:
        step, reward = 1, 1.0

    imitator.next_replay([0.5], [Played()], [samples_from_trajectory(one)], step=1)
    resumed = SelfImitator(SelfImitation(replay_buffer=1, baseline_buffer=0, warmup_steps=0))
    resumed.load(imitator.state())
    for each in (imitator, resumed):
        replay, reported = each.next_replay([], [], [], step=2)
        assert reported["replayed"] == 1
        assert [sample.opens for sample in replay.samples] == [True, False]
        assert [sample.advantages.tolist() for sample in replay.samples] == [[0, 0.75, 0.75], [0, 0, 0, 0, 0.75]]


def test_a_replay_buffer_of_0_2_is_read_as_trajectories_of_one_segment() -> None:
    imitator = SelfImitator(SelfImitation(replay_buffer=1, baseline_buffer=0, warmup_steps=0))
    sample = only_sample(trajectory(turn([1], [20], advantages=[1.0])))
    columns = {name: torch.from_numpy(getattr(sample, name)) for name in ("token_ids", "loss_mask", "old_logprobs")}
    entry = {"payload": columns, "reward": 1.0, "advantage": 1.0, "step": 1}
    imitator.load({"baselines": [], "entries": [entry]})
    replay, _ = imitator.next_replay([], [], [], step=2)
    assert [sample.token_ids.tolist() for sample in replay.samples] == [[1, 20]]


def test_a_recipe_that_needs_one_segment_masks_what_has_several() -> None:
    one = trajectory(turn([1], [20]), turn([2], [21]))
    several = cut(one, [1])
    for parts in ({"purification": {}}, {"expert_starts": {}}):
        recipe = run_spec(parts, environment={"sandbox": {"snapshots": True}}).recipe
        assert masked(recipe, several).masked_because == SEVERAL_SEGMENTS
        assert masked(recipe, one).masked_because is None
    assert masked(run_spec({}).recipe, several).masked_because is None


def test_pairs_begin_with_what_the_policy_had_in_that_segment() -> None:
    one = cut(trajectory(turn([1], [20]), turn([2], [21])), [1])
    change = repaired(one).changes[0].model_copy(update={"turn": 1, "stop": 1})
    rewritten = one.model_copy(update={"changes": [change]})
    shorter = rewritten.segments[1].model_copy(update={"prefix": SharedPrefix(segment=0, tokens=1)})
    rewritten = rewritten.model_copy(update={"segments": [one.segments[0], shorter]})
    [pair] = pairs_of([rewritten], "characters")
    assert pair.chosen.token_ids.tolist() == [1, 2, 21]


def test_what_is_kept_for_replay_is_as_old_as_its_sampling() -> None:
    """Rollouts of version 0, on which step 1 could train first: step 5 does, and their age counts from 1."""
    learner = learner_for(run_spec({"self_imitation": {"replay_buffer": 4, "max_age_steps": 1, "warmup_steps": 1}}))
    groups = grouped(rollouts(1))
    learner.credit(groups, step=5)
    report = updated(learner, groups)
    assert report["sil/expired"] == 0
    assert {entry["step"] for entry in learner._imitator.state()["entries"]} == {1}


def test_an_attribution_weight_is_that_of_the_step_that_trains() -> None:
    credit = {"kind": "attribution", "decay_steps": 4}
    groups = grouped(rollouts(1))
    early, late = (learner_for(run_spec({"credit": credit})).credit(groups, step=step) for step in (1, 9))
    assert any(not np.array_equal(early[name].advantages, late[name].advantages) for name in early)


def test_a_trajectory_without_a_turn_is_no_sample_and_stops_nobody() -> None:
    """There was no room for its prompt."""
    learner = learner_for(run_spec({"credit": {"kind": "gae"}}))
    played: list[Trajectory] = [trajectory(reward=0.0), *rollouts()[1:]]
    assert samples_from_trajectory(played[0]) == []
    assert learned(learner, grouped(played))["updates"] > 0


def stages_on(spec: RunSpec, shown: list[Trajectory]) -> SupervisedStages:
    sources = StageSources(lambda _: iter(shown), lambda _: lambda line, number: [], Path())
    return SupervisedStages(spec.recipe.stages, sources, model=spec.model, context=160, seed=spec.seed)


def test_a_demonstration_in_several_segments_is_one_of_its_batch() -> None:
    """Each epoch has six, in three steps of two; the failed turns are not learned, and one begins with such a one."""
    spec = run_spec({"stages": [{"steps": 7, "batch_size": 2, "mask_errors": True}]})
    whole = [
        trajectory(
            *(turn([2 + number, 5], [20 + number, 30 + place], failed=place == number % 4) for place in range(3))
        )
        for number in range(6)
    ]
    tokens, parted = tokens_of(spec.model), [cut(rollout, [1, 2]) for rollout in whole]
    learners = [
        Learner(spec.recipe, tokens, trainer_for(spec), None, stages=stages_on(spec, shown), threads=1)
        for shown in (whole, parted)
    ]
    losses = [supervised(learner, 7) for learner in learners]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    for name, tensor in learners[0].weights().items():
        torch.testing.assert_close(learners[1].weights()[name], tensor, rtol=1e-3, atol=5e-4, msg=name)
