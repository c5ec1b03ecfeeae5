"""Where a run's policy comes from: what ``spec.model`` names, found on this machine.

    builtin      random weights of the run's seed
    pretrained   a folder below the models folder, or by its absolute path
    checkpoint   the model of another run, as one of its checkpoints has it

No torch: the command line and rollout workers ask here too.
"""

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from engine.models.catalog import OF_TEAMS, catalog_folder
from engine.models.refusal import ModelFolderRefused
from engine.spec.model import BuiltinModel, CheckpointModel, Model, PretrainedModel
from engine.spec.model_files import CatalogFolder
from engine.spec.problems import Problem

CHECKPOINT = re.compile(r"step-(\d{6,})")
OVERRIDES = ("context_tokens", "dtype", "attention", "lora", "gradient_checkpointing", "microbatch_tokens")
"""What a warm start may change of a pretrained model; of a built-in one it may change the context alone."""
_MODEL: TypeAdapter[BuiltinModel | PretrainedModel | CheckpointModel] = TypeAdapter(Model)


@dataclass(frozen=True, slots=True)
class ModelOrigin:
    """What a policy begins as."""

    model: BuiltinModel | PretrainedModel
    """With the folder's absolute path where it is pretrained."""
    weights: Path | None = None
    """The folder with the weights; None: they are random."""
    adapter: Path | None = None
    """An adapter in the form of peft that is added into the weights first."""

    @property
    def context_tokens(self) -> int:
        return self.model.context_tokens

    @property
    def drops_in_updates(self) -> bool:
        """Return whether an update computes with dropout, which sampling and scoring never do."""
        return isinstance(self.model, PretrainedModel) and self.model.lora is not None and self.model.lora.dropout > 0


def home() -> Path:
    return Path(os.environ.get("PALESTRA_HOME", ".palestra"))


def models_folder() -> Path:
    """``PALESTRA_MODELS``, by default ``models`` of the home."""
    return Path(os.environ.get("PALESTRA_MODELS", home() / "models"))


def model_origin(model: Model) -> ModelOrigin:
    """Raises ModelFolderRefused where this machine does not have what the spec names."""
    match model:
        case BuiltinModel():
            return ModelOrigin(model)
        case PretrainedModel():
            folder = folder_of(model)
            return ModelOrigin(model.model_copy(update={"path": str(folder)}), folder)
        case CheckpointModel():
            return _origin_of_checkpoint(model)


def folder_of(model: PretrainedModel) -> Path:
    """Return where the model lies.  Raises ModelFolderRefused for a relative path out of the models folder."""
    if model.catalog is not None:
        raise _refused(
            "model.catalog",
            model.catalog,
            "there is no catalog of models here: the service has it",
            "launch the run there, or set model.path to the model's folder",
        )
    if model.hub is not None:
        raise _refused(
            "model.hub",
            model.hub,
            "models are not downloaded by a run",
            f"download it first (hf download {model.hub} --local-dir {models_folder() / model.hub.split('/')[1]}) "
            f"and set model.path",
        )
    assert model.path is not None  # a pretrained model comes from exactly one place
    path = Path(model.path)
    if path.is_absolute():
        return path
    root = models_folder().resolve()
    found = (root / path).resolve()
    if not found.is_relative_to(root):
        raise _refused("model.path", model.path, f"leads out of {root}", "give the path of a folder in it")
    return found


def pinned(model: Model, *, anywhere: bool, catalog: CatalogFolder | None = None) -> Model:
    """The model with what "the newest" and relative paths mean at this moment, so that a resumed run means the same.

    ``anywhere`` says whether absolute paths are taken: on the command line, whose user may read what she may read.
    ``catalog`` is what ``model.catalog`` means, of a run that the service launched; no other way leads into the folder
    of the catalog there.  A judge's model is found in the same way.  Raises ModelFolderRefused.
    """
    named = {"path": getattr(model, "path", None), "run": getattr(model, "run", None)}
    for field, value in named.items():
        if value is not None and not anywhere and Path(value).is_absolute():
            raise _refused(
                f"model.{field}", value, "is an absolute path", "give one below the models folder or the home"
            )
    if isinstance(model, PretrainedModel) and model.catalog is not None and catalog is not None:
        folder = catalog_folder(models_folder().resolve(), catalog)
        return model.model_copy(update={"path": str(folder), "catalog": None})
    if isinstance(model, PretrainedModel):
        folder = folder_of(model)
        if not anywhere and any(folder.is_relative_to((models_folder() / name).resolve()) for name in OF_TEAMS):
            raise _refused(
                "model.path", model.path, "what lies there belongs to teams", 'set model.catalog = "name@version"'
            )
        return model.model_copy(update={"path": str(folder)})
    if isinstance(model, CheckpointModel):
        checkpoint = _checkpoint_of(model)
        match = CHECKPOINT.fullmatch(checkpoint.name)
        assert match is not None
        return model.model_copy(update={"run": str(checkpoint.parent.parent), "step": int(match[1])})
    return model


def _origin_of_checkpoint(model: CheckpointModel) -> ModelOrigin:
    checkpoint = _checkpoint_of(model)
    before = _model_of(checkpoint)
    given = {name: getattr(model, name) for name in OVERRIDES if getattr(model, name) is not None}
    made_of = model_origin(before)
    weights = checkpoint / "model"
    if isinstance(made_of.model, BuiltinModel):
        if useless := sorted(given.keys() - {"context_tokens"}):
            raise _refused(
                f"model.{useless[0]}",
                given[useless[0]] if useless[0] != "lora" else "set",
                "the checkpoint is of a built-in model, which has no such field",
                "remove it",
            )
        return ModelOrigin(made_of.model.model_copy(update=given), weights)
    continued = made_of.model.model_copy(update={"lora": None, **given})
    if (weights / "adapter_config.json").is_file():
        return ModelOrigin(continued, made_of.weights, adapter=weights)
    return ModelOrigin(continued.model_copy(update={"path": str(weights)}), weights)


def _checkpoint_of(model: CheckpointModel) -> Path:
    folder = run_folder(model.run) / "checkpoints"
    try:
        matches = [CHECKPOINT.fullmatch(path.name) for path in folder.iterdir()]
    except OSError as error:
        raise _refused(
            "model.run", model.run, f"{folder} cannot be read: {error.strerror}", "give the id or the folder of a run"
        ) from error
    steps = sorted(int(match[1]) for match in matches if match)
    if not steps:
        raise _refused("model.run", model.run, f"{folder} holds no checkpoint", "give a run that has one")
    if model.step is not None and model.step not in steps:
        shown = ", ".join(map(str, steps))
        raise _refused("model.step", model.step, "the run has no checkpoint of this step", f"use one of: {shown}")
    return folder / f"step-{steps[-1] if model.step is None else model.step:06d}"


def run_folder(run: str) -> Path:
    """By an absolute path, an id of the service's, or the name of a run of the command line."""
    path = Path(run)
    if path.is_absolute():
        return path
    for root in (Path(os.environ.get("PALESTRA_RUNS", home() / "runs")), home() / "engine"):
        found = (root / path).resolve()
        if found.is_relative_to(root.resolve()) and found != root.resolve() and found.is_dir():
            return found
    raise _refused("model.run", run, f"there is no such run in {home()}", "give the id or the folder of a run")


def _model_of(checkpoint: Path) -> Any:
    try:
        document = json.loads((checkpoint / "state.json").read_text())["spec"]["model"]
        return _MODEL.validate_python(document if "kind" in document else {"kind": "builtin", **document})
    except (OSError, ValueError, KeyError, TypeError, ValidationError) as error:
        raise _refused(
            "model.run", checkpoint, f"its state.json says no model that is known ({type(error).__name__})",
            "give another checkpoint",
        ) from error  # fmt: skip


def _refused(field: str, value: object, message: str, remedy: str) -> ModelFolderRefused:
    return ModelFolderRefused(Problem(field, value if isinstance(value, int) else str(value), message, remedy))
