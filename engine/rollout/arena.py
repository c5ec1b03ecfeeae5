"""What the episodes of a worker share."""

from dataclasses import dataclass

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
