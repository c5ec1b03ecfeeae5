"""What the episodes of a worker share."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from engine.environments.contract import Environment, Sandboxes
from engine.rollout.policy_session import PolicySession
from engine.rollout.renderers.contract import Renderer
from engine.rollout.requests import EpisodeRequest
from engine.rollout.sandbox_monitor import SandboxMonitor
from engine.spec.agent import AgentProgram
from engine.spec.context import Context
from engine.spec.exploration import Purification
from engine.spec.generation import TextGenerator
from engine.spec.recipe import Reward
from engine.spec.trajectory import Task


@dataclass(frozen=True, slots=True)
class ArenaPart:
    """What is its own of a part of an environment."""

    renderer: Renderer
    sandboxes: Sandboxes
    monitor: SandboxMonitor | None
    max_turns: int
    max_turn_tokens: int
    agent: AgentProgram | None


@dataclass(frozen=True, slots=True)
class Arena:
    """A world, a policy, and how far an episode may go."""

    environment: Environment
    renderer: Renderer
    generator: TextGenerator
    sandboxes: Sandboxes
    reward: Reward
    max_turns: int
    max_turn_tokens: int
    context_tokens: int
    purification: Purification | None = None
    """How the episodes that ask for it are purified."""
    context: Context | None = None
    """What of an episode the policy has before it; None: all of it."""
    monitor: SandboxMonitor | None = None
    """It watches the sandboxes; None: nobody does."""
    agent: AgentProgram | None = None
    """It plays the episodes; None: the policy itself does, turn by turn."""
    parts: Mapping[str, ArenaPart] = field(default_factory=dict)
    """By the names of the environment's parts, if it has some."""

    def of_task(self, task: Task) -> "Arena":
        """The arena in which the episodes of a task are played: that of the task's part."""
        if task.part is None:
            return self
        part = self.parts[task.part]
        return replace(
            self,
            renderer=part.renderer,
            sandboxes=part.sandboxes,
            monitor=part.monitor,
            max_turns=part.max_turns,
            max_turn_tokens=part.max_turn_tokens,
            agent=part.agent,
            parts={},
        )

    def policy_session(self, request: EpisodeRequest) -> PolicySession:
        """A session with the generator, in which the policy is sampled as the request has it."""
        return PolicySession(
            self.generator,
            request.id,
            stop_ids=self.renderer.stop_ids,
            max_turn_tokens=self.max_turn_tokens,
            context_tokens=self.context_tokens,
            temperature=request.temperature,
            logprob_temperature=request.logprob_temperature,
            truncation=request.truncation,
            logprobs_truncated=request.logprobs_truncated,
        )
