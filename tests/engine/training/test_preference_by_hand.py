"""What a step with ``recipe.preference`` descends on, against autograd on the plain model."""

from collections.abc import Sequence

import pytest
import torch

from engine.cluster.members import learner_for
from engine.spec.rollout_group import rollouts_in
from engine.spec.trajectory import Change, Trajectory
from engine.training.adamw import AdamW
from engine.training.columns import UpdateRequest
from engine.training.learner import Learner
from tests.engine.groups import grouped
from tests.engine.training.cast import rollouts, run_spec

BETA, WEIGHT = 0.3, 0.7
GRAFT = 2
"""Tokens at the end of a turn that replaced the failed ones."""
FAILED = [60, 61, 62]


def repaired_last(one: Trajectory) -> Trajectory:
    """The end of its last turn was grafted."""
    number = len(one.turns) - 1
    stop = len(one.turns[number].token_ids)
    change = Change(
        kind="purified", turn=number, start=max(0, stop - GRAFT), stop=stop, reason="shallow", removed_ids=FAILED
    )
    return one.model_copy(update={"changes": [change]})


def by_hand(learner: Learner, repaired: Sequence[Trajectory]) -> list[torch.Tensor]:
    """At the reference both gains are 0, so that the slope of a pair is beta / 2 of either side's."""
    network = learner._trainer.backend.network
    total = torch.zeros(())
    for rollout in repaired:
        [segment] = rollout.segments
        written = [token for each in segment.turns for token in (*each.context_ids, *each.token_ids)]
        graft = written[-min(GRAFT, len(segment.turns[-1].token_ids)) :]
        before = written[: -len(graft)]
        for sign, end in ((-1, graft), (1, FAILED)):
            logp_TV = network(torch.tensor([[*before, *end]]))[0].log_softmax(-1)
            for place, token in enumerate(end, start=len(before)):
                total = total + sign * logp_TV[place - 1, token]
    loss = WEIGHT * BETA / 2 * total / len(repaired)
    return list(torch.autograd.grad(loss, list(network.parameters())))


def test_equal_rewards_below_0_a_group_of_one_a_masked_and_a_released_rollout(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of the objective is left: all advantages are 0.  Each repair counts once, but for the masked one's."""
    spec = run_spec(
        {
            "purification": {},
            "preference": {"beta": BETA, "weight": WEIGHT},
            "optimizer": {"learning_rate": 1e-3, "grad_clip": 1e9},
        },
        schedule={"prompts_per_step": 4, "group_size": 4, "minibatch_trajectories": 16},
        environment={"sandbox": {"snapshots": True}},
    )
    learner = learner_for(spec)
    same = [repaired_last(rollout).model_copy(update={"reward": -0.5, "success": False}) for rollout in rollouts(2)]
    same = [rollout for rollout in same if rollout.prompt < 3 or rollout.member == 0]
    same[1] = same[1].model_copy(update={"masked_because": "overlong"})
    earlier = [rollout.model_copy(update={"prompt": 9, "id": f"train-9-{rollout.member}"}) for rollout in same[2:4]]
    groups, held = grouped(same), grouped(earlier)
    learner.credit(groups, held, step=2)
    again = rollouts_in(held)[:1]
    learned = [rollout for rollout in [*same, *again] if rollout.masked_because is None]
    expected = by_hand(learner, learned)
    caught: list[torch.Tensor] = []

    def catch(optimizer: AdamW) -> None:
        caught.extend(parameter.grad.clone() for group in optimizer.param_groups for parameter in group["params"])

    with monkeypatch.context() as patch:
        patch.setattr(AdamW, "step", catch)
        report = learner.update(UpdateRequest.of(2, groups, again, credited=True)).metrics
    assert (report["updates"], report["dpo/pairs"], report["dpo/margin"]) == (1, len(learned), 0)
    assert len({len(rollout.turns) for rollout in learned}) > 1
    for ours, theirs in zip(caught, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)
