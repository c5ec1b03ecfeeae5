"""Trajectories that look like a step's: ragged, of several turns, in groups; and a policy small enough for bits."""

import random
from collections.abc import Sequence
from typing import Any

import torch

from engine.models.tokenizer import tokenizer_for
from engine.spec.rollout_group import RolloutGroup
from engine.spec.run import RunSpec
from engine.spec.trajectory import Change, Segment, Task, ToolCall, Trajectory, Turn
from engine.training.batch import Sample, samples_from_trajectory
from engine.training.columns import UpdateRequest, with_columns
from engine.training.learner import Learner

VOCABULARY = len(tokenizer_for("characters"))
TINY = {
    "layers": 1,
    "hidden_size": 16,
    "heads": 2,
    "kv_heads": 1,
    "head_dim": 8,
    "intermediate_size": 24,
    "context_tokens": 160,
}


def supervised(learner: Learner, steps: int) -> float:
    """The first steps of the first stage; their mean loss."""
    return learner.supervised(0, 1, steps)["loss"]


def run_spec(recipe: dict[str, Any], **changes: Any) -> RunSpec:
    return RunSpec(
        name="t",
        **(
            {
                "model": TINY,
                "resources": {"threads": 1},
                "schedule": {"prompts_per_step": 4, "group_size": 4, "minibatch_trajectories": 8},
                "recipe": {"stages": [{"steps": 4, "batch_size": 4}], "optimizer": {"learning_rate": 1e-3}} | recipe,
            }
            | changes
        ),
    )


def turn(
    context_ids: Sequence[int], token_ids: Sequence[int], *, seen: str | None = None, failed: bool = False, **more: Any
) -> Turn:
    call = ToolCall(
        name="python", arguments={"code": "1+1"}, output="2", status="error" if failed else "ok", seconds=0.0
    )
    return Turn(
        context_ids=list(context_ids),
        context_text=tokenizer_for("characters").decode(context_ids) if seen is None else seen,
        token_ids=list(token_ids),
        pieces=tokenizer_for("characters").pieces(token_ids),
        **({"logprobs": [-1.0] * len(token_ids), "policy_versions": [0] * len(token_ids), "tool_calls": [call]} | more),
    )


def trajectory(
    *turns: Turn, reward: float = 1.0, prompt: int = 0, member: int = 0, step: int = 1, **more: Any
) -> Trajectory:
    return Trajectory(
        id=f"train-{prompt}-{member}",
        purpose="train",
        prompt=prompt,
        member=member,
        sampled_at_version=step - 1,
        task=Task(id=f"t{prompt}", split="train", level=1, question="1+1=?", answer="2"),
        segments=[Segment(turns=list(turns))] if turns else [],
        stop_reason="answered",
        answer="2",
        success=reward > 0,
        reward=reward,
        rewards={"correct": reward},
        **more,
    )


def only_sample(one: Trajectory, **how: bool) -> Sample:
    """The sample of a trajectory of one segment."""
    [sample] = samples_from_trajectory(one, **how)
    return sample


def rollouts(step: int = 1, *, groups: int = 4, size: int = 4, seed: int = 0) -> list[Trajectory]:
    """One to three turns each; later turns act on one of two observations; rewards are 0, a half or 1; the generator
    is off from the policy by up to 1.5 nats."""
    dice = random.Random(f"{seed}-{step}")
    return [_rollout(dice, step, group, index) for group in range(groups) for index in range(size)]


def _rollout(dice: random.Random, step: int, group: int, index: int) -> Trajectory:
    def tokens(low: int, high: int) -> list[int]:
        return [dice.randrange(12, VOCABULARY) for _ in range(dice.randrange(low, high))]

    def acted(context: list[int], ids: list[int]) -> Turn:
        logprobs = [dice.uniform(-6.0, -3.5) for _ in ids]
        return turn(context, ids, logprobs=logprobs, verdict=dice.choice(("good", "bad")))

    prompt = [2, 4, *(20 + group for _ in range(3 + group)), 5]
    turns = [acted(prompt, tokens(1, 8))]
    for _ in range(dice.randrange(3)):
        turns.append(acted([8, dice.choice((40, 41)), 9], tokens(1, 9)))
    return trajectory(*turns, reward=dice.choice((0.0, 0.5, 1.0)), prompt=group, member=index, step=step)


def with_experience(one: Trajectory, ids: Sequence[int] = (50, 51, 52)) -> Trajectory:
    """Shown experience right after the first token of the prompt."""
    first = one.turns[0]
    context = [*first.context_ids[:1], *ids, *first.context_ids[1:]]
    shown = first.model_copy(update={"context_ids": context, "experience_span": (1, 1 + len(ids))})
    return one.with_turns([shown, *one.turns[1:]])


def repaired(one: Trajectory) -> Trajectory:
    """As if its first turn had been grafted by SAAR."""
    length = len(one.turns[0].token_ids)
    change = Change(
        kind="purified", turn=0, start=0, stop=length, reason="deep", removed_ids=[60, 61, 62][: 1 + length % 3]
    )
    return one.model_copy(update={"changes": [*one.changes, change]})


def from_expert(one: Trajectory, *, imitated: int = 1) -> Trajectory:
    """Its turns but the last were prefilled, the first ``imitated`` of them are learned by imitation."""
    turns = [
        each.model_copy(update={"prefilled": True, "imitated": number < imitated})
        for number, each in enumerate(one.turns[:-1])
    ]
    return one.with_turns([*turns, one.turns[-1]])


def credited(
    learner: Learner, groups: Sequence[RolloutGroup], released: Sequence[RolloutGroup] = ()
) -> list[RolloutGroup]:
    """The groups, and then those that are released, as the loop has them after credit."""
    columns = learner.credit(groups, released, step=groups[0].plan.step)
    return [
        group.with_rollouts(
            with_columns(rollout, columns[rollout.id], text_of=tokenizer_for("characters").decode)
            for rollout in group.rollouts
        )
        for group in [*groups, *released]
    ]


def updated(learner: Learner, groups: Sequence[RolloutGroup], released: Sequence[Trajectory] = ()) -> dict[str, float]:
    """The update of a step whose groups were credited, by what is decided about their rollouts now."""
    return learner.update(UpdateRequest.of(groups[0].plan.step, groups, released, credited=True)).metrics


def learned(learner: Learner, groups: Sequence[RolloutGroup]) -> dict[str, float]:
    """Credit and update of a step."""
    learner.credit(groups, step=groups[0].plan.step)
    return updated(learner, groups)


def same_bits(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> bool:
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)
