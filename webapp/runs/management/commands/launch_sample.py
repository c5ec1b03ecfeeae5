"""``manage.py launch_sample``: queue a run of the sample experiment, or of a TOML file."""

import json
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from pydantic import ValidationError

from engine.spec.problems import problems_in
from engine.spec.run import RunSpec
from engine.spec.toml_document import toml_document
from webapp.experiments.sample import ensure_sample
from webapp.runs.services import submit_run


class Command(BaseCommand):
    help = "Queue a run of the sample experiment and print its id as JSON."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--seed", type=int, help="instead of the spec's own")
        parser.add_argument("--spec", type=Path, help="a TOML file with another RunSpec")

    def handle(self, *, seed: int | None, spec: Path | None, **_options: Any) -> None:
        sample = ensure_sample()
        document = sample.experiment.spec if spec is None else _read(spec)
        run_spec = _validated(document if seed is None else document | {"seed": seed})
        experiment = sample.experiment if spec is None else None
        run = submit_run(sample.team, run_spec, acting_user=sample.owner, experiment=experiment)
        self.stdout.write(json.dumps({"run": str(run.id), "number": run.number, "path": f"/runs/{run.id}/"}))


def _read(path: Path) -> dict[str, Any]:
    try:
        return toml_document(path.read_text())
    except OSError as error:
        raise CommandError(f"cannot read {path}: {error.strerror}", returncode=2) from None
    except ValueError as error:  # BadToml, or bytes that are no UTF-8
        raise CommandError(f"{path} is not TOML: {error}", returncode=2) from None


def _validated(document: dict[str, Any]) -> RunSpec:
    try:
        return RunSpec.model_validate(document)
    except ValidationError as error:
        raise CommandError("\n".join(str(problem) for problem in problems_in(error, RunSpec)), returncode=2) from None
