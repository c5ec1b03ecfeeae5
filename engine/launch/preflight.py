"""How a run file becomes a spec without problems, and whether a spec may go on from a checkpoint."""

import tomllib
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from engine.loop.checkpoint import CheckpointError, Checkpoints
from engine.models.origin import pinned
from engine.models.refusal import ModelFolderRefused
from engine.spec.judge import OF_THE_RUN
from engine.spec.model import CheckpointModel, Model
from engine.spec.model_files import CatalogFolder
from engine.spec.problems import Problem, problems_in
from engine.spec.resumption import forbidden_changes
from engine.spec.run import RunSpec


class BadSpec(Exception):
    """One line per problem, each naming field, value and remedy."""

    def __init__(self, lines: list[str]) -> None:
        super().__init__("\n".join(lines))
        self.lines = lines


def spec_from_file(path: Path) -> RunSpec:
    """Raises BadSpec."""
    try:
        text = path.read_text("utf-8-sig")
    except FileNotFoundError:
        raise BadSpec([f"{path}: there is no such file; give the path of a run's TOML file"]) from None
    except (OSError, UnicodeDecodeError) as error:
        raise BadSpec([f"{path}: cannot be read: {error}; give a run's TOML file, in UTF-8"]) from error
    try:
        return RunSpec.model_validate(tomllib.loads(text))
    except ValidationError as error:
        raise BadSpec([f"{path}: {problem}" for problem in problems_in(error, RunSpec)]) from error
    except RecursionError:
        raise BadSpec([f"{path}: nested too deeply; no run's field lies deeper than a few tables"]) from None
    except ValueError as error:  # a TOMLDecodeError, or a number of so many digits that Python takes it for an attack
        raise BadSpec([f"{path}: not TOML: {error}; mend that line"]) from error


def with_pinned_model(
    spec: RunSpec,
    run_dir: Path | None,
    *,
    named_in: Path,
    anywhere: bool,
    catalog: CatalogFolder | None = None,
    judge: CatalogFolder | None = None,
) -> RunSpec:
    """The spec with the model's folder and checkpoint, and its judge's folder, as they are meant now, or as the run in
    ``run_dir`` meant them.

    ``anywhere`` takes absolute paths too; ``catalog`` is what a launch document says of ``model.catalog``, ``judge``
    what it says of ``resources.judge.catalog``.  Raises BadSpec, which names the file ``named_in``.
    """
    before = None if run_dir is None else _model_before(run_dir)
    model = spec.model
    if isinstance(model, CheckpointModel) and isinstance(before, CheckpointModel) and model.step is None:
        model = model.model_copy(update={"step": before.step})
    try:
        found = spec.model_copy(update={"model": pinned(model, anywhere=anywhere, catalog=catalog)})
    except ModelFolderRefused as unusable:
        raise BadSpec([f"{named_in}: {unusable.problem}"]) from unusable
    return _with_pinned_judge(found, named_in=named_in, anywhere=anywhere, catalog=judge)


def _with_pinned_judge(spec: RunSpec, *, named_in: Path, anywhere: bool, catalog: CatalogFolder | None) -> RunSpec:
    judge = spec.resources.judge
    if judge is None:
        return spec
    try:
        model: Any = pinned(judge.model, anywhere=anywhere, catalog=catalog)
    except ModelFolderRefused as unusable:
        problem = unusable.problem.renamed("model", OF_THE_RUN)
        raise BadSpec([f"{named_in}: {problem}"]) from unusable
    at = judge.model_copy(update={"path": model.path, "catalog": None})
    return spec.model_copy(update={"resources": spec.resources.model_copy(update={"judge": at})})


def _model_before(run_dir: Path) -> Model | None:
    """The model of the run that the folder holds, if it holds one."""
    folder = run_dir / "checkpoints"
    if not folder.is_dir():
        return None
    try:
        state = Checkpoints(folder, keep=1).newest().state
    except (OSError, CheckpointError) as error:
        raise BadSpec([f"{run_dir}: {error}"]) from error
    return None if state is None else state.spec.model


def differing_fields(old: RunSpec, new: RunSpec) -> list[Problem]:
    """Return why ``new`` cannot go on from a checkpoint of ``old``: it is the same run, on whatever it runs."""
    remedy = "give the old value, or start afresh in another --run-dir"
    return [
        Problem(field, after, f"the checkpoint was made with {before!r}", remedy)
        for field, before, after in forbidden_changes(old, new)
    ]
