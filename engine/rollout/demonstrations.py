"""Scripted demonstrations for supervised stages, as trajectories in the ids of the run's renderer.

They cover training tasks only.  Their ``logprobs`` are 0 and their ``policy_versions`` -1: no
policy sampled them.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import Protocol

from engine.environments.contract import Demonstrator, Environment, Manner, Script
from engine.rollout.context import instructed
from engine.rollout.context_tools import context_tools
from engine.rollout.renderers.contract import Renderer
from engine.rollout.scoring import rewards_of
from engine.rollout.transcript import Transcript
from engine.seeds import derived_seed
from engine.spec.context import Context
from engine.spec.recipe import Reward
from engine.spec.supervised import Demonstrations
from engine.spec.trajectory import Segment, StopReason, Task, Trajectory


class ScriptedEnvironment(Environment, Demonstrator, Protocol):
    """An environment that can play its own tasks."""


@dataclass(frozen=True, slots=True)
class DemonstrationWriter:
    """Writes what a demonstrator does as the trajectories of a policy that does the same."""

    environment: ScriptedEnvironment
    renderer: Renderer
    reward: Reward
    seed: int
    context: Context | None = None
    """It says what stands before the opening; nothing leaves the context of a demonstration."""

    def demonstrations(self, wanted: Demonstrations) -> Iterator[Trajectory]:
        """``wanted.count`` trajectories; the i-th depends on (seed, i) alone."""
        tasks = self.environment.tasks("train")
        for number in range(wanted.count):
            rng = Random(derived_seed("demonstration", self.seed, number))
            task = tasks[rng.randrange(len(tasks))]
            script = self.environment.script(task, _manner(wanted, rng), rng)
            yield self._trajectory(task, script, number)

    def solution(self, number: int) -> Trajectory:
        """Return how a demonstrator solves training task ``number``, always alike, as ``solution-<task's id>``."""
        task = self.environment.tasks("train")[number]
        script = self.environment.script(task, "solve", Random(derived_seed("solution", self.seed, number)))
        solved = self._trajectory(task, script, prompt=0)
        return solved.model_copy(update={"id": f"solution-{task.id}"})

    def _trajectory(self, task: Task, script: Script, prompt: int) -> Trajectory:
        segments = self.segments(task, script)
        last = script.turns[-1]
        answered, success = last.message.answers, script.rewards.success
        rewards = rewards_of(
            self.reward,
            success=success,
            turns=[turn for segment in segments for turn in segment.turns],
            step=0,
            components=script.rewards.components,
        )
        return Trajectory(
            id=f"demonstration-{prompt}-0",
            purpose="demonstration",
            prompt=prompt,
            member=0,
            sampled_at_version=-1,
            task=task,
            segments=segments,
            stop_reason=_stop_reason(script),
            answer=last.message.content if answered else None,
            success=success,
            reward=sum(rewards.values()),
            rewards=rewards,
        )

    def segments(self, task: Task, script: Script) -> list[Segment]:
        """The script in the ids of a policy that means what its demonstrator says."""
        tools = [*self.environment.tools(task), *context_tools(self.context)]
        transcript = Transcript(self.renderer, instructed(self.context, script.opening), tools)
        for number, step in enumerate(script.turns, start=1):
            ids = self.renderer.write(step.message, tools)
            turn = transcript.turn(ids, logprobs=[0.0] * len(ids), policy_versions=[-1] * len(ids))
            marks = {"tool_calls": list(step.observation.calls), "answered": step.message.answers}
            transcript.wrote(turn.model_copy(update=marks))
            if number < len(script.turns):
                transcript.observed(self.renderer.parse(ids, tools), step.observation.messages)
        return transcript.segments


def demonstration_writer_for(
    environment: Environment, renderer: Renderer, reward: Reward, *, seed: int, context: Context | None = None
) -> DemonstrationWriter:
    """Raises TypeError for an environment without demonstrator, with which no run begins that needs one."""
    if not isinstance(environment, Demonstrator):
        raise TypeError(f"{type(environment).__name__} has no demonstrator")
    return DemonstrationWriter(environment, renderer, reward, seed, context)


def _manner(wanted: Demonstrations, rng: Random) -> Manner:
    if rng.random() < wanted.wrong_fraction:
        return "guess"
    return "repair" if rng.random() < wanted.tool_error_fraction else "solve"


def _stop_reason(script: Script) -> StopReason:
    last = script.turns[-1]
    if last.message.answers:
        return "answered"
    return "done" if last.observation.done else "turn-limit"
