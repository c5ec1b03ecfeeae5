"""Segments that grow in turns, each repeating what was written in the others: the gradient is that of one segment.

Every turn reads in its segment what it reads in the uncut twin, so nothing may differ but the order of sums.
"""

import random
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from engine.cluster.members import learner_for
from engine.spec.rollout_group import RolloutGroup
from engine.spec.run import RunSpec
from engine.spec.trajectory import Change, Segment, SharedPrefix, Trajectory
from engine.training import microbatch
from engine.training.adamw import AdamW
from engine.training.learner import Learner
from tests.engine.contexts import ids_before
from tests.engine.groups import grouped
from tests.engine.training.cast import rollouts, run_spec, turn, updated


def interleaved(one: Trajectory, dice: random.Random) -> Trajectory:
    """Each turn in any of up to four segments, which begins anywhere in what another already holds, or anew."""
    whole: list[int] = []
    segments: list[Segment] = []
    lengths: list[int] = []
    for number, each in enumerate(one.turns):
        read = [*whole, *each.context_ids]
        place = dice.randrange(min(4, len(segments) + 1))
        if place == len(segments):
            shared = dice.randrange(len(segments)) if segments and dice.random() < 0.8 else None
            prefix = None if shared is None else SharedPrefix(segment=shared, tokens=dice.randint(1, lengths[shared]))
            lengths.append(0 if prefix is None else prefix.tokens)
            segments.append(Segment.model_construct(turns=[], prefix=prefix, numbers=[]))
        mine = segments[place]
        mine.turns.append(each.model_copy(update={"context_ids": read[lengths[place] :]}))
        assert mine.numbers is not None
        mine.numbers.append(number)
        whole = [*read, *each.token_ids]
        lengths[place] = len(whole)
    return Trajectory.model_validate(one.model_copy(update={"segments": segments}).model_dump())


def test_the_cut_twin_reads_before_every_turn_what_the_whole_one_reads() -> None:
    dice = random.Random(1)
    for rollout in played(dice):
        twin = interleaved(rollout, dice)
        for number in range(len(rollout.turns)):
            assert ids_before(twin, number) == ids_before(rollout, number)
        assert [each.token_ids for each in twin.turns] == [each.token_ids for each in rollout.turns]


def played(dice: random.Random, *, masked: bool = True) -> list[Trajectory]:
    """Four groups of up to six turns; some turns are masked, whole trajectories too; rewards below 0 among them; one
    group all of whose rewards are equal, and one of a single member."""
    longer = []
    for rollout in rollouts():
        more = [each for other in rollouts(2) for each in other.turns]
        turns = [*rollout.turns, *(dice.choice(more[1:]) for _ in range(dice.randrange(4)))]
        turns = [
            turn(
                [8, dice.choice((40, 41)), 9] if number else each.context_ids,
                each.token_ids,
                logprobs=each.logprobs,
                verdict=dice.choice(("good", "bad")),
                masked_because="error" if masked and dice.random() < 0.2 else None,
            )
            for number, each in enumerate(turns)
        ]
        reward = -0.5 if rollout.prompt == 1 else dice.choice((-1.0, -0.25, 0.5, 1.0))
        update: dict[str, Any] = {"segments": [Segment(turns=turns)], "reward": reward, "success": reward > 0}
        if rollout.member == 1 and rollout.prompt == 0:
            update["masked_because"] = "overlong"
        if rollout.prompt < 3 or rollout.member == 0:
            longer.append(rollout.model_copy(update=update))
    return longer


def with_experts(played: Sequence[Trajectory], dice: random.Random) -> list[Trajectory]:
    """Half of them began with an expert's turns, some of which are imitated; of one trajectory no other is left."""
    started = []
    for place, one in enumerate(played):
        count = dice.randrange(len(one.turns) + 1) if place % 2 else 0
        turns = [
            each.model_copy(update={"prefilled": number < count, "imitated": number < min(2, count)})
            for number, each in enumerate(one.turns)
        ]
        started.append(one.with_turns(turns))
    return started


def with_repairs(played: Sequence[Trajectory], dice: random.Random) -> list[Trajectory]:
    """A turn of each was repaired, seldom its first."""
    marked = []
    for rollout in played:
        number = dice.randrange(len(rollout.turns))
        length = len(rollout.turns[number].token_ids)
        start = dice.randrange(length)
        change = Change(kind="purified", turn=number, start=start, stop=length, reason="deep", removed_ids=[60, 61])
        marked.append(rollout.model_copy(update={"changes": [change]}))
    return marked


CLIPPED = {"kind": "clipped"}
HOW = ("token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm")
MASK = {"mask": "token", "mask_bound": 2.0}
CHUNKS = {"credit": {"kind": "chunk-return"}}
REPLAY = {"replay_buffer": 1, "baseline_buffer": 0, "warmup_steps": 1, "covariance": None}
RECIPES: dict[str, dict[str, Any]] = {
    **{how: {"objective": CLIPPED | {"aggregation": how}, "mismatch": MASK} for how in HOW},
    **{f"kl {how}": {"objective": CLIPPED | {"aggregation": how}, "kl": {"beta": 0.5}} for how in HOW},
    **{f"ipa {how}": CHUNKS | {"objective": {"kind": "ipa", "aggregation": how}, "expert_starts": {}} for how in HOW},
    **{
        f"replay {mode} {how}": {"objective": CLIPPED | {"aggregation": how}, "self_imitation": REPLAY | {"mode": mode}}
        for mode in ("sum", "after")
        for how in HOW
    },
    "chunk mismatch": {"mismatch": {"mask": "chunk", "mask_bound": 1.2, "weight": "chunk"}},
    "topr of chunks": CHUNKS | {"objective": {"kind": "topr", "ratio": "chunk"}},
    "tis of tokens": {"objective": {"kind": "tis", "ratio": "token", "aggregation": "seq-mean-token-sum"}},
    "cispo": {"objective": {"kind": "cispo"}},
    "kl-cov": {"objective": CLIPPED | {"covariance": {"kind": "kl", "share": 0.1}}},
    "gigpo": {"credit": {"kind": "gigpo"}},
    "gae": {"credit": {"kind": "gae", "gamma": 0.9, "lam": 0.8}},
    "attribution": {"credit": {"kind": "attribution"}},
    "rloo": {"credit": {"kind": "rloo"}},
    "reinforce-pp": {"credit": {"kind": "reinforce-pp"}},
    "preference": {"purification": {}, "preference": {"beta": 0.3}},
}


def spec_of(recipe: dict[str, Any]) -> RunSpec:
    return run_spec(
        recipe | {"optimizer": {"learning_rate": 1e-2, "grad_clip": 1e9}},
        schedule={"prompts_per_step": 4, "group_size": 4, "minibatch_trajectories": 4},
        environment={"sandbox": {"snapshots": True}},
    )


def gradients(
    monkeypatch: pytest.MonkeyPatch, spec: RunSpec, steps: Sequence[Sequence[RolloutGroup]]
) -> tuple[list[torch.Tensor], list[dict[str, float]]]:
    """What reaches the optimisers in all updates, whose weights stay; credit is another policy's, which differs."""
    critic_too = spec.recipe.credit.kind == "gae"
    learner, other = learner_for(spec), learner_for(spec.model_copy(update={"seed": 7}))
    caught: list[torch.Tensor] = []

    def catch(optimizer: AdamW) -> None:
        caught.extend(
            torch.zeros_like(parameter) if parameter.grad is None else parameter.grad.clone()
            for group in optimizer.param_groups
            for parameter in group["params"]
        )

    reports = []
    with monkeypatch.context() as patch:
        patch.setattr(AdamW, "step", catch)
        for number, groups in enumerate(steps):
            credit: Learner = learner if critic_too else other
            credit.credit(groups, step=number + 1)
            learner._credited = credit._credited
            reports.append(updated(learner, groups))
    return caught, reports


@pytest.mark.parametrize("name", RECIPES)
def test_segments_side_by_side_in_time_have_the_gradient_of_their_uncut_twin(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """In micro-batches so small that they part the segments of a trajectory."""
    monkeypatch.setattr(microbatch, "MICROBATCH_TOKENS", 40)
    dice = random.Random(name)
    first = played(dice)
    if "ipa" in name:
        first = with_experts(first, dice)
    if "preference" in name:
        first = with_repairs(first, dice)
    steps = [first, [rollout.model_copy(update={"sampled_at_version": 1}) for rollout in first]]
    cut = [[interleaved(rollout, dice) for rollout in step] for step in steps]
    assert max(len(rollout.segments) for rollout in cut[0]) > 2
    spec = spec_of(RECIPES[name])
    theirs, their_reports = gradients(monkeypatch, spec, [grouped(step) for step in steps])
    ours, our_reports = gradients(monkeypatch, spec, [grouped(step) for step in cut])
    assert len(ours) == len(theirs) > 0
    assert any(part.any() for part in theirs)
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-5, atol=2e-6)
    for mine_reported, other_reported in zip(our_reports, their_reports, strict=True):
        assert mine_reported == pytest.approx(other_reported, rel=1e-3, abs=1e-5)
    if "replay" in name:
        assert their_reports[1]["sil/replayed"] > 0
