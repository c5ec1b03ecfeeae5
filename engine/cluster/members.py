"""The learner that a spec asks for."""

from collections.abc import Iterator
from pathlib import Path

from engine.rollout.demonstrations import demonstration_writer_for
from engine.spec.run import RunSpec
from engine.spec.trajectory import Trajectory
from engine.training.learner import Learner


def learner_for(spec: RunSpec, recordings: Path | None = None) -> Learner:
    """A learner that knows how to ask the environment for demonstrations.  Raises what ``Learner`` raises."""

    def scripted() -> Iterator[Trajectory]:
        recipe = spec.recipe
        assert recipe.cold_start is not None, "a learner asks for demonstrations only if the recipe has a cold start"
        return demonstration_writer_for(spec).demonstrations(recipe.cold_start)

    return Learner(spec, scripted, recordings)
