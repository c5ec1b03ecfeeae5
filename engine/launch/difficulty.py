"""``python -m engine difficulty``: a run that ends once it knows how hard its training tasks are.

It is a run like any other, with checkpoint, events and sandboxes that are watched; so it can be stopped at any time,
and the same command goes on where it stopped.
"""

import os
from pathlib import Path

from pydantic import ValidationError

from engine.disk import write_durably
from engine.launch import exit_codes
from engine.launch.preflight import BadSpec, spec_from_file
from engine.launch.train import carry_out, default_run_dir
from engine.loop.difficulty import NAME
from engine.spec.credit import ReinforcePlusPlus
from engine.spec.objective import Clipped
from engine.spec.problems import problems_in
from engine.spec.run import RunSpec
from engine.spec.selection import Difficulty


def measure_difficulty(file: Path, *, rollouts: int, out: Path, run_dir: Path | None, in_process: bool) -> int:
    """Write the table to ``out`` as a whole or not at all, and return the exit code.

    Raises BadSpec before anything is started or written.
    """
    _refuse_unwritable(out)
    spec = with_difficulty(spec_from_file(file), rollouts)
    folder = run_dir or default_run_dir(f"{spec.name}-difficulty")
    again = f"python -m engine difficulty {file} --rollouts {rollouts} --out {out} --run-dir {folder}"
    again += " --in-process" if in_process else ""
    code = carry_out(
        spec,
        file=file,
        folder=folder,
        resume=(folder / "spool").exists(),
        in_process=in_process,
        json_file=None,
        again=again,
        measures_only=True,
    )
    if code == exit_codes.ENDED:
        write_durably(out, (folder / NAME).read_bytes())
        print(f"table: {out}")
    return code


def with_difficulty(spec: RunSpec, rollouts: int) -> RunSpec:
    """The spec with a filter that measures; the bounds are those of the spec's own, if it has one.

    A filter is of RL: a recipe without gets the RL that asks least of the rest of the run.  Raises BadSpec.
    """
    own = spec.recipe.selection.difficulty or Difficulty()
    try:
        difficulty = Difficulty(rollouts=rollouts, above=own.above, below=own.below)
    except ValidationError as error:
        raise BadSpec([f"--{problem}" for problem in problems_in(error, Difficulty)]) from error
    document = spec.model_dump()
    document["recipe"]["selection"]["difficulty"] = difficulty
    if not spec.recipe.reinforces:
        document["recipe"] |= {"objective": Clipped(), "credit": ReinforcePlusPlus()}
        document["evaluation"] |= {"players": ["model"], "script": ""}
    try:
        return RunSpec.model_validate(document)
    except ValidationError as error:
        raise BadSpec([str(problem) for problem in problems_in(error, RunSpec)]) from error


def _refuse_unwritable(out: Path) -> None:
    if out.exists():
        raise BadSpec([f"--out {out} exists already: remove it, or name another file"])
    if not os.access(out.parent, os.W_OK):
        raise BadSpec([f"--out {out} cannot be written; name a file in a folder that exists and is yours"])
