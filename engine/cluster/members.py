"""The learner and the trainer that a spec asks for, put together of their parts."""

from collections.abc import Iterator
from pathlib import Path

import torch

from engine.environments.registry import environment_for
from engine.failures import NO_GPU, RunFailed
from engine.models.origin import model_origin
from engine.models.vocabulary import tokens_of
from engine.rollout.demonstrations import demonstration_writer_for
from engine.rollout.renderers.registry import renderer_for
from engine.rollout.stage_documents import line_reader
from engine.spec.run import RunSpec
from engine.spec.supervised import Demonstrations, Stage
from engine.spec.trajectory import Trajectory
from engine.training.backends.ranks import Leader
from engine.training.backends.registry import trainer_backend
from engine.training.critic import critic_for
from engine.training.examples import LineReader
from engine.training.learner import Learner
from engine.training.recordings import recordings_folder
from engine.training.stages import StageSources, SupervisedStages
from engine.training.trainer import Trainer, longest_response_tokens


def learner_for(spec: RunSpec, recordings: Path | None = None, leader: Leader | None = None) -> Learner:
    """A learner whose supervised stages know where their data come from.

    ``recordings`` is the folder below which the files of stages lie, by default that of the environment; ``leader``
    leads the trainer's ranks, where it has more than one.

    Raises BadRecording if a stage names a file that cannot be learned from, RunFailed if the device is missing, and
    RankLost.
    """
    if spec.resources.device == "cuda" and not torch.cuda.is_available():
        raise RunFailed(NO_GPU)
    stages = SupervisedStages(
        spec.recipe.stages,
        _sources(spec, recordings or recordings_folder()),
        model=spec.model,
        context=model_origin(spec.model).context_tokens,
        seed=spec.seed,
    )
    trainer = trainer_for(spec, leader)
    network, minibatch = trainer.backend.value_network, spec.schedule.minibatch_trajectories
    return Learner(
        spec.recipe,
        tokens_of(spec.model),
        trainer,
        critic_for(spec.recipe, network, minibatch=minibatch),
        stages=stages,
        threads=spec.resources.threads,
        sends_adapter=spec.resources.sends_adapter_of(spec.model),
    )


def leader_for(spec: RunSpec) -> Leader:
    """The leader of the run's ranks, which waits for the others as long as a phase may last."""
    return Leader(spec.model, spec.resources, seed=spec.seed, timeout_s=spec.schedule.stall_timeout_s)


def trainer_for(spec: RunSpec, leader: Leader | None = None) -> Trainer:
    """A trainer over the backend and the first weights of the run."""
    context_tokens = model_origin(spec.model).context_tokens
    return Trainer(
        trainer_backend(spec.model, spec.resources, seed=spec.seed, leader=leader),
        spec.recipe,
        spec.schedule,
        longest_response_tokens=longest_response_tokens(spec.environment, context_tokens=context_tokens),
        seed=spec.seed,
        drops=model_origin(spec.model).drops_in_updates,
    )


def _sources(spec: RunSpec, folder: Path) -> StageSources:
    def demonstrations(wanted: Demonstrations) -> Iterator[Trajectory]:
        environment = environment_for(spec.environment, spec.dataset)
        renderer = renderer_for(spec.model, spec.environment)
        writer = demonstration_writer_for(
            environment, renderer, spec.recipe.reward, seed=spec.seed, context=spec.recipe.context
        )
        return writer.demonstrations(wanted)

    def reader(stage: Stage) -> LineReader:
        return line_reader(stage, spec.model, renderer_for(spec.model, spec.environment))

    return StageSources(demonstrations, reader, folder)
