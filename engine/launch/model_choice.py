"""A model or a checkpoint that is sampled outside of a run: whoever talks with it, or is served it, loads it so."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from engine.launch.preflight import BadSpec
from engine.loop.generator_requirements import lacking_in_generator
from engine.loop.model_requirements import lacking_in_model
from engine.loop.state import RunState
from engine.models.catalog import compare_with_manifest
from engine.models.folder import opened_folder
from engine.models.origin import model_origin, pinned
from engine.models.pretrained_tokenizer import PretrainedTokenizer
from engine.models.refusal import ModelFolderRefused
from engine.models.tokenizer import tokenizer_for
from engine.rollout.renderers.characters import CharacterRenderer
from engine.rollout.renderers.chat import ChatRenderer
from engine.rollout.renderers.contract import Renderer
from engine.spec.impossible import AS_STORED
from engine.spec.judge_requirements import endpoints_in
from engine.spec.mixture import sandboxes_of
from engine.spec.model import BuiltinModel, CheckpointModel, PretrainedModel
from engine.spec.model_files import CatalogFolder
from engine.spec.problems import Problem, problems_in
from engine.spec.recipe import Recipe
from engine.spec.run import Evaluation, RunSpec

USUAL_CONTEXT = 4096
"""The tokens of a folder's context, where neither the model nor the caller says less."""


@dataclass(frozen=True, slots=True)
class ModelChoice:
    """One of ``folder`` and ``run`` is set."""

    folder: Path | None = None
    run: str | None = None
    """Its folder, also a relative one, its id, or its name below the home."""
    step: int | None = None
    """The step of the run's checkpoint; None: the newest."""
    context_tokens: int | None = None
    catalog: CatalogFolder | None = None
    """The version whose files ``folder`` holds; they are compared with its manifest before anything is loaded."""


@dataclass(frozen=True, slots=True)
class ChosenModel:
    model: PretrainedModel | CheckpointModel
    before: RunSpec | None
    """The spec of the checkpoint's run."""


def chosen_model(choice: ModelChoice) -> ChosenModel:
    """Raises BadSpec."""
    try:
        if choice.run is not None:
            model: Any = pinned(CheckpointModel(run=_run_of(choice.run), step=choice.step), anywhere=True)
            before = _spec_of_checkpoint(model)
            return ChosenModel(model.model_copy(update={"context_tokens": choice.context_tokens}), before)
        assert choice.folder is not None  # one of the two is set
        if choice.catalog is not None:
            compare_with_manifest(choice.folder, choice.catalog)
        return ChosenModel(_model_of_folder(choice.folder.resolve(), choice.context_tokens), None)
    except ModelFolderRefused as unusable:
        raise BadSpec([str(unusable.problem)]) from unusable
    except ValidationError as error:
        raise BadSpec([f"--run {choice.run}: {error.errors(include_url=False)[0]['msg']}"]) from error


def spec_of_model(chosen: ChosenModel, played: RunSpec, *, name: str, slots: int, threads: int | None) -> RunSpec:
    """The run that sampling the model would be.  ``played``: whose environment and data set it has.  Raises BadSpec."""
    resources = played.resources if chosen.before is None else chosen.before.resources
    asked = [endpoint for _, endpoint in endpoints_in(played.environment, "environment")]
    few = {
        "kv_slots": slots,
        "decoders": min(resources.decoders, slots),
        "sandboxes": max(1, len(sandboxes_of(played.environment))),
        "rollout_workers": 1,
        "threads": threads or resources.threads,
        # Nobody starts it: it stands there where what scores the environment names it.
        "judge": played.resources.judge if any(endpoint.is_of_the_run for endpoint in asked) else None,
    }
    try:
        return RunSpec(
            name=name,
            environment=played.environment,
            dataset=played.dataset,
            model=chosen.model,
            recipe=Recipe.model_validate({"preset": "evaluate"}),
            resources=resources.model_copy(update=few),
            evaluation=Evaluation(tasks=1, interim_tasks=1),
        )
    except ValidationError as error:
        raise BadSpec([str(problem) for problem in problems_in(error, RunSpec)]) from error


def lacking_for_model(spec: RunSpec, *, with_tools: bool) -> list[Problem]:
    """What this machine does not have, or has no room for, to sample the spec's model."""
    return lacking_in_model(spec, with_trainer=False, with_tools=with_tools) or lacking_in_generator(spec)


def renderers_of(spec: RunSpec) -> Callable[[str], Renderer]:
    """By the choice of ``Sampling.reasoning``; the tokenizer is read once.  They raise ModelFolderRefused."""
    origin = model_origin(spec.model)
    if isinstance(model := origin.model, BuiltinModel):
        tokenizer, usual = tokenizer_for(model.vocabulary), spec.environment.reasoning
        chosen = {"on": True, "off": False, "auto": usual}
        return lambda reasoning: CharacterRenderer(tokenizer, reasoning=chosen[reasoning])
    assert origin.weights is not None  # a pretrained model has a folder
    read = PretrainedTokenizer(origin.weights)

    @cache
    def renderer(reasoning: str) -> Renderer:
        choice: Any = model.reasoning if reasoning == "auto" else reasoning
        return ChatRenderer(read, tool_calls=model.tool_calls, reasoning=choice)

    return renderer


def _run_of(named: str) -> str:
    """A run's folder by its absolute path; what is no such folder is looked for below the home."""
    folder = Path(named)
    return str(folder.resolve()) if (folder / "checkpoints").is_dir() else named


def _spec_of_checkpoint(model: CheckpointModel) -> RunSpec:
    """Raises BadSpec."""
    file = Path(model.run) / "checkpoints" / f"step-{model.step:06d}" / "state.json"
    try:
        return RunState.model_validate_json(file.read_bytes(), context=AS_STORED).spec
    except (OSError, ValidationError) as error:
        raise BadSpec([f"{file}: cannot be read ({type(error).__name__}); give another --step"]) from error


def _model_of_folder(folder: Path, context_tokens: int | None) -> PretrainedModel:
    longest = opened_folder(folder).longest_context or USUAL_CONTEXT
    return PretrainedModel(path=str(folder), context_tokens=context_tokens or min(longest, USUAL_CONTEXT))
