"""Who speaks in the model's place, to try an environment: its own solution, nobody, or a script.

What they say goes the way of what a model says, through the renderer, the session and the sandbox, and is scored alike.
"""

from collections.abc import Sequence
from random import Random

from engine.environments.contract import Demonstrator, Environment, ReferenceAnswers
from engine.environments.mixture import MixtureEnvironment
from engine.rollout.renderers.contract import Parsed, Renderer
from engine.rollout.requests import EpisodeRequest
from engine.seeds import derived_seed
from engine.spec.generation import Generated, GenerateRequest
from engine.spec.message import AssistantMessage, ToolSchema
from engine.spec.trajectory import Task

ENDLESS = 2**40
"""The context of who is no model."""
NOTHING = AssistantMessage("")


class PlayedTurns:
    """A ``TextGenerator`` whose turns were decided ahead; after the last one it answers with nothing.

    Its log-probs are 0 and its policy version is -1, as those of a demonstration: no policy has sampled them.
    """

    def __init__(self, renderer: Renderer, tools: Sequence[ToolSchema], turns: Sequence[AssistantMessage]) -> None:
        self._renderer, self._tools, self._left = renderer, tools, list(turns)
        self.last = Parsed(NOTHING, 0)
        """What it means by the ids that it gave last; a small vocabulary may not hold all of its characters."""

    async def generate(self, request: GenerateRequest) -> Generated:
        """Raises ValueError for a turn that the run's renderer cannot write."""
        message = self._left.pop(0) if self._left else NOTHING
        ids = tuple(self._renderer.write(message, self._tools))
        self.last = Parsed(message, 0)
        return Generated(ids, (0.0,) * len(ids), (-1,) * len(ids), "stop")

    async def rewind(self, session: str, tokens: int) -> None:
        """Nothing is kept of what stands before a turn."""

    async def release(self, session: str) -> None:
        """Nothing is held."""


def turns_of(request: EpisodeRequest, environment: Environment, task: Task) -> Sequence[AssistantMessage]:
    """What the request's player says, turn by turn; empty: it answers with nothing at once."""
    match request.player:
        case "oracle":
            return solution_of(environment, task) or ()
        case "script":
            return request.script
        case _:
            return ()


def solution_of(environment: Environment, task: Task) -> Sequence[AssistantMessage] | None:
    """How the environment itself solves the task; None where it does not know."""
    if isinstance(environment, MixtureEnvironment):
        environment, task = environment.own(task)
    if isinstance(environment, Demonstrator):
        script = environment.script(task, "solve", Random(derived_seed("oracle", task.id)))
        return [turn.message for turn in script.turns]
    answer = environment.reference_answer(task) if isinstance(environment, ReferenceAnswers) else None
    return None if answer is None else [AssistantMessage(answer)]
