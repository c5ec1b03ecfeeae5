"""Scripted demonstrations for the cold start, as trajectories in real token ids.

They cover training tasks only.  Their ``logprobs`` are 0 and their ``policy_versions`` -1: no
policy sampled them.
"""

from collections.abc import Iterator
from random import Random

from engine.environments.contract import Environment, Manner, Script, ScriptedCall
from engine.rollout.chat import Answer
from engine.rollout.scoring import rewards_of
from engine.seeds import derived_seed
from engine.spec.recipe import Reward
from engine.spec.supervised import ColdStart
from engine.spec.trajectory import StopReason, Task, ToolCall, Trajectory, Turn


def demonstrations(
    environment: Environment, cold_start: ColdStart, reward: Reward, *, seed: int
) -> Iterator[Trajectory]:
    """``cold_start.demonstrations`` trajectories; the i-th depends on (seed, i) alone."""
    tasks = environment.tasks("train")
    for number in range(cold_start.demonstrations):
        rng = Random(derived_seed("demonstration", seed, number))
        task = tasks[rng.randrange(len(tasks))]
        script = environment.script(task, _manner(cold_start, rng), rng)
        yield _trajectory(environment, reward, task, script, number)


def solution(environment: Environment, reward: Reward, number: int, *, seed: int) -> Trajectory:
    """How a demonstrator solves training task ``number``: the same one whoever asks, ``solution-<task's id>``."""
    task = environment.tasks("train")[number]
    script = environment.script(task, "solve", Random(derived_seed("solution", seed, number)))
    solved = _trajectory(environment, reward, task, script, prompt=0)
    return solved.model_copy(update={"id": f"solution-{task.id}"})


def _manner(cold_start: ColdStart, rng: Random) -> Manner:
    if rng.random() < cold_start.wrong_fraction:
        return "guess"
    return "repair" if rng.random() < cold_start.tool_error_fraction else "solve"


def _trajectory(environment: Environment, reward: Reward, task: Task, script: Script, prompt: int) -> Trajectory:
    turns = _turns(environment, task, script)
    last = script[-1]
    answer = last.text if isinstance(last, Answer) else None
    success = environment.score(task, last.text) if isinstance(last, Answer) else last.done and last.success
    answered = answer is not None
    rewards = rewards_of(reward, success=success, turns=turns, answered=answered, step=0)
    return Trajectory(
        id=f"demonstration-{prompt}-0",
        purpose="demonstration",
        prompt=prompt,
        member=0,
        sampled_at_version=-1,
        task=task,
        turns=turns,
        stop_reason=_stop_reason(last),
        answer=answer,
        success=success,
        reward=sum(rewards.values()),
        rewards=rewards,
    )


def _stop_reason(last: ScriptedCall | Answer) -> StopReason:
    if isinstance(last, Answer):
        return "answered"
    return "done" if last.done else "turn-limit"


def _turns(environment: Environment, task: Task, script: Script) -> list[Turn]:
    turns = []
    context = environment.prompt_ids(task)
    for step in script:
        if isinstance(step, Answer):
            turns.append(_turn(environment, context, environment.turn_ids(step), None))
            break
        call = environment.tool_call(step.call, step.result)
        turns.append(_turn(environment, context, environment.turn_ids(step.call), call))
        context = environment.observation_ids(call)
    return turns


def _turn(environment: Environment, context: list[int], tokens: list[int], call: ToolCall | None) -> Turn:
    return Turn(
        context_ids=context,
        context_text=environment.text_of(context),
        token_ids=tokens,
        pieces=environment.pieces_of(tokens),
        logprobs=[0.0] * len(tokens),
        policy_versions=[-1] * len(tokens),
        tool_call=call,
    )
