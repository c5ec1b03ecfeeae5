"""What agents do to contexts (branches, sub-agents, silence) under recipes that look at turns, groups and segments."""

from collections import defaultdict
from dataclasses import replace
from statistics import fmean

import numpy as np
import pytest
import torch

from engine.algorithms.credit import group_relative_advantages
from engine.cluster.members import learner_for
from engine.inference.torch.factory import builtin_generator
from engine.loop.group_filters import masked
from engine.rollout.agents.asked import Asked
from engine.rollout.agents.call_sessions import CallSessions
from engine.rollout.agents.proxy import Budget, ModelProxy
from engine.rollout.policy_session import PolicySession
from engine.rollout.renderers.registry import renderer_for
from engine.spec.message import AssistantMessage, Message
from engine.spec.run import RunSpec
from engine.spec.trajectory import Task, Trajectory
from engine.training.backends.torch import TorchBackend
from engine.training.batch import samples_from_trajectory
from tests.engine.groups import grouped
from tests.engine.training.cast import credited, learned, updated
from tests.engine.training.cast import run_spec as run_spec_of

AGENT = {"id": "agent", "agent": {"command": ["true"]}, "max_turns": 8, "max_turn_tokens": 12}
MODEL = {"layers": 1, "hidden_size": 16, "heads": 2, "kv_heads": 1, "head_dim": 8, "intermediate_size": 24,
         "context_tokens": 300}  # fmt: skip
START = Message("user", "start")
EXPERIENCE = "look twice"


def spec_of(recipe) -> RunSpec:
    schedule = {"prompts_per_step": 2, "group_size": 4, "minibatch_trajectories": 4, "steps": 4}
    return run_spec_of({"stages": [], **recipe}, environment=AGENT, model=MODEL, schedule=schedule)


async def silent(ask):
    """It never asks."""


async def talks(ask):
    messages = [START]
    for words in ("go on", "and on"):
        messages += [(await ask(messages))[0], Message("user", words)]
    await ask(messages)


async def branches(ask):
    """A conversation with a sub-agent in it, a retry, and a history that was changed."""
    [reply] = await ask([START])
    [sub] = await ask([Message("system", "you are a helper"), Message("user", "help")])
    await ask([START, reply, Message("user", sub.content)])
    await ask([START, reply, Message("user", sub.content)])
    await ask([START, AssistantMessage("a summary"), Message("user", "go on")])


async def chooses(ask):
    """Given two answers to the same messages, it goes on from both."""
    for reply in await ask([START], choices=2):
        await ask([START, reply, Message("user", "go on")])


AGENTS = {silent: 0.0, talks: 1.0, branches: 1.0, chooses: 0.0}
"""With the reward of each."""


async def played(spec, *, experience=()):
    """The rollouts of two prompts, each of all agents, sampled by the policy with which the run begins."""
    generator = builtin_generator(spec.model, slots=8, threads=1, seed=spec.seed)
    try:
        return [
            await rollout(spec, generator, agent, prompt, member, experience=experience, reward=AGENTS[agent])
            for prompt in range(2)
            for member, agent in enumerate(AGENTS)
        ]
    finally:
        generator.close()


async def rollout(spec, generator, agent, prompt, member, *, experience, reward):
    renderer, name = renderer_for(spec.model, spec.environment), f"train-{prompt}-{member}"

    def session():
        return PolicySession(generator, name, stop_ids=renderer.stop_ids, max_turn_tokens=12, context_tokens=300,
                             temperature=1.0)  # fmt: skip

    async def on_call(number, call):
        pass

    budget = Budget(calls=8, sampled_tokens=1000, turn_tokens=12, parallel=4, context_tokens=300)
    model = ModelProxy(renderer, CallSessions(session), budget, seed=10 * prompt + member, experience=experience,
                       on_call=on_call)  # fmt: skip

    async def ask(messages, **options):
        return [call.reply for call in await model.complete(replace(Asked(tuple(messages), ()), **options))]

    await agent(ask)
    await model.close()
    task = Task(id=f"t{prompt}", split="train", level=1, question="", answer="")
    made = Trajectory(id=name, purpose="train", prompt=prompt, member=member, sampled_at_version=0, task=task,
                      segments=model.segments(), stop_reason="done", answer=None, success=reward > 0, reward=reward,
                      rewards={})  # fmt: skip
    return Trajectory.model_validate_json(made.model_dump_json())


def of_turns(trajectory):
    """The one advantage that all tokens of a turn have, by turn in order of time."""
    assert all(len(set(turn.advantages)) == 1 for turn in trajectory.turns)
    return [turn.advantages[0] for turn in trajectory.turns]


def trained(trajectories):
    return sum(int(sample.loss_mask.sum()) for each in trajectories for sample in samples_from_trajectory(each))


async def test_the_cast_has_the_contexts_that_it_is_meant_to_have():
    quiet, talking, branching, choosing = (await played(spec_of({})))[:4]
    assert quiet.segments == []
    assert [segment.numbers for segment in talking.segments] == [[0, 1, 2]]
    assert [segment.numbers for segment in branching.segments] == [[0, 2], [1], [3], [4]]
    assert [segment.numbers for segment in choosing.segments] == [[0, 2], [1, 3]]


RECIPES = {
    "grpo": {},
    "token-mean": {"objective": {"kind": "clipped", "aggregation": "token-mean"}},
    "seq-mean": {"objective": {"kind": "clipped", "aggregation": "seq-mean-token-mean"}},
    "gspo": {"objective": {"kind": "gspo"}},
    "gigpo": {"credit": {"kind": "gigpo"}},
    "ppo": {"credit": {"kind": "gae"}},
    "attribution": {"credit": {"kind": "attribution"}},
    "ipa": {"credit": {"kind": "chunk-return"}, "objective": {"kind": "ipa"}},
    "mismatch": {"mismatch": {"mask": "token", "mask_bound": 2.0}},
    "spear": {"self_imitation": {"replay_buffer": 4, "warmup_steps": 1}},
}


@pytest.mark.parametrize("name", RECIPES)
async def test_each_sampled_token_is_trained_once_and_has_one_advantage_beside_agents_that_were_silent(name):
    spec = spec_of(RECIPES[name])
    rollouts, learner = await played(spec), learner_for(spec)
    before = {key: tensor.clone() for key, tensor in learner.weights().items()}
    groups = credited(learner, grouped(rollouts))
    sampled = sum(each.sampled_tokens for each in rollouts)
    assert trained([each for group in groups for each in group.rollouts]) == sampled
    for group in groups:
        for each in group.rollouts:
            assert all(np.isfinite(turn.advantages).all() for turn in each.turns)
            assert [len(turn.advantages) for turn in each.turns] == [len(turn.token_ids) for turn in each.turns]
            assert [len(turn.old_logprobs or turn.logprobs) for turn in each.turns] == [
                len(turn.token_ids) for turn in each.turns
            ]
    report = updated(learner, groups)
    assert (report["tokens"], report["updates"]) == (sampled, 2)
    after = learner.weights()
    assert any(not torch.equal(after[key], tensor) for key, tensor in before.items())
    assert all(torch.isfinite(after[key]).all() for key in before)


async def test_gigpo_compares_what_was_read_last_whichever_segment_it_stands_in():
    """A_E + A_S, from turns in order of time; a retry and another choice are at the same place as the first try."""
    spec = spec_of({"credit": {"kind": "gigpo", "gamma": 0.5, "scale_by_std": False}})
    groups = credited(learner_for(spec), grouped(await played(spec)))
    for group in groups:
        acting = [each for each in group.rollouts if each.turns]
        episode = group_relative_advantages(torch.tensor([[each.reward for each in acting]]), scale_by_std=False)[0]
        returns = [
            [each.reward * 0.5 ** (len(each.turns) - 1 - place) for place in range(len(each.turns))] for each in acting
        ]
        places = defaultdict(list)
        for each, of_turn in zip(acting, returns, strict=True):
            for turn, value in zip(each.turns, of_turn, strict=True):
                places[turn.observation].append(value)
        for each, of_turn, credit in zip(acting, returns, episode.tolist(), strict=True):
            expected = [
                credit + value - fmean(places[turn.observation])
                for turn, value in zip(each.turns, of_turn, strict=True)
            ]
            assert of_turns(each) == pytest.approx(expected, abs=1e-6)
        _, talking, branching, choosing = group.rollouts
        begins = {each.turns[0].observation for each in (talking, branching, choosing)}
        assert begins == {choosing.turns[1].observation}
        assert branching.turns[2].observation == branching.turns[3].observation
        assert talking.turns[1].observation == choosing.turns[2].observation == choosing.turns[3].observation


async def test_chunk_returns_count_the_turns_of_all_segments_in_order_of_time():
    spec = spec_of({"credit": {"kind": "chunk-return", "gamma": 0.5}, "objective": {"kind": "ipa"}})
    groups = credited(learner_for(spec), grouped(await played(spec)))
    quiet, talking, branching, choosing = groups[0].rollouts
    assert of_turns(quiet) == []
    assert of_turns(talking) == [0.25, 0.5, 1.0]
    assert of_turns(branching) == [0.0625, 0.125, 0.25, 0.5, 1.0]
    assert of_turns(choosing) == [0.0] * 4


async def test_a_replayed_agent_is_one_entry_with_all_its_segments_and_a_silent_one_is_none():
    spec = spec_of({"self_imitation": {"replay_buffer": 4, "warmup_steps": 1}})
    learner, rollouts = learner_for(spec), await played(spec)
    first = learned(learner, grouped(rollouts))
    assert (first["sil/buffer"], first["sil/replayed"]) == (4, 0)
    again = [each.model_copy(update={"sampled_at_version": 1}) for each in rollouts]
    second = learned(learner, grouped(again))
    assert second["sil/replayed"] == sum(1 for each in rollouts if each.reward > 0)


async def test_stripped_experience_stands_in_no_segment_and_every_sampled_token_stays():
    spec = spec_of({"experience": {"pool": [{"when_to_use": "always", "content": EXPERIENCE}], "share": 1.0}})
    rollouts, renderer = await played(spec, experience=(EXPERIENCE,)), renderer_for(spec.model, spec.environment)
    groups = credited(learner_for(spec), grouped(rollouts))
    for each in (each for group in groups for each in group.rollouts):
        shown = [renderer.text(sample.token_ids.tolist()) for sample in samples_from_trajectory(each, as_sampled=True)]
        learned_from = [renderer.text(sample.token_ids.tolist()) for sample in samples_from_trajectory(each)]
        assert all(EXPERIENCE in text for text in shown)
        assert not any(EXPERIENCE in text for text in learned_from)
        assert trained([each]) == each.sampled_tokens
    learner = learner_for(spec)
    assert updated(learner, credited(learner, grouped(rollouts)))["tokens"] == trained(rollouts)


async def test_a_quarantined_agent_trains_on_none_of_its_segments_and_may_be_released_whole():
    spec = spec_of({})
    learner, rollouts = learner_for(spec), await played(spec)
    held = [each.model_copy(update={"masked_because": "quarantined"}) for each in rollouts]
    assert trained(held) == 0
    groups = credited(learner, grouped([*rollouts[:2], held[2], *rollouts[3:]]))
    assert updated(learner, groups)["tokens"] == trained(rollouts) - rollouts[2].sampled_tokens
    [_, *later] = credited(learner, grouped(rollouts[4:]), grouped(rollouts[:4]))
    assert [turn.old_logprobs for turn in later[0].rollouts[2].turns] == [turn.logprobs for turn in rollouts[2].turns]


async def test_a_step_of_silent_agents_makes_no_update():
    spec = spec_of({})
    learner, rollouts = learner_for(spec), await played(spec)
    quiet = [rollouts[0].model_copy(update={"id": f"train-0-{member}", "member": member}) for member in range(4)]
    assert learned(learner, grouped(quiet))["updates"] == 0


async def test_the_mask_of_void_turns_masks_an_agent_that_makes_no_tool_calls():
    """Such an agent reads what the policy writes by itself: the mask cannot know, and says why on the trajectory."""
    spec = spec_of({"selection": {"masks": ["void-turn"]}})
    talking = (await played(spec))[1]
    assert masked(spec.recipe, talking).masked_because == "void-turn"


async def test_turns_that_stop_strings_ended_have_the_log_probs_that_the_trainer_recomputes():
    """Also the ones behind them, though the generator's cache holds what was dropped until it is asked again."""

    async def reacts(ask):
        messages = [START]
        for place in range(4):
            stops = tuple("aeiou0123456789" if place % 2 == 0 else ())
            messages += [(await ask(messages, stops=stops))[0], Message("user", "go on")]

    spec = spec_of({})
    generator = builtin_generator(spec.model, slots=8, threads=1, seed=spec.seed)
    try:
        made = [await rollout(spec, generator, reacts, prompt, 0, experience=(), reward=1.0) for prompt in range(12)]
    finally:
        generator.close()
    stopped_turns = [turn for each in made for turn in each.turns[::2] if len(each.segments) > 1]
    assert any(len(turn.token_ids) < 12 for turn in stopped_turns)
    backend = TorchBackend(spec.model, spec.resources, seed=spec.seed)
    for each in made:
        samples = samples_from_trajectory(each)
        for sample, row in zip(samples, backend.logprobs(samples), strict=True):
            mask = sample.loss_mask
            np.testing.assert_allclose(np.asarray(row)[mask], sample.rollout_logprobs[mask], atol=1e-4)


@pytest.mark.parametrize(
    ("recipe", "reason"),
    [
        ({"purification": {}}, "an agent's calls are a tree of segments"),
        ({"expert_starts": {}}, "cannot be put into the middle of an episode"),
        ({"preset": "cleaner"}, "an agent's calls are a tree of segments"),
        ({"preset": "ipa"}, "cannot be put into the middle of an episode"),
    ],
)
def test_what_needs_the_middle_of_an_episode_is_refused_before_the_start(recipe, reason):
    with pytest.raises(ValueError, match=reason):
        RunSpec.model_validate({"name": "x", "environment": AGENT, "recipe": recipe})
