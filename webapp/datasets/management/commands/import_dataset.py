"""``manage.py import_dataset``: what the page and the API do with a folder below the import root."""

import time
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from pydantic import ValidationError

from engine.spec.dataset_preparation import Preparation
from engine.spec.problems import Problem, problems_in
from engine.spec.toml_document import toml_document
from webapp.accounts.management.members import member_of
from webapp.catalog.imports import import_dataset
from webapp.catalog.models import DatasetVersion
from webapp.refusals import Refused


class Command(BaseCommand):
    help = "Import a dataset from a file or a folder below the import root (PALESTRA_IMPORTS)."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("name", help="of the dataset; a new version where there is one of the name")
        parser.add_argument("folder", help="a folder, or one file, below the import root")
        parser.add_argument("--team", required=True, help="the team's short name, as in its address")
        parser.add_argument("--by", required=True, help="the e-mail of an owner or member, for the audit log")
        parser.add_argument("--preparation", type=Path, help="a TOML file: mapping, splitting, duplicates")
        parser.add_argument("--wait", action="store_true", help="until a worker has published or refused it")

    def handle(self, *_: Any, **options: Any) -> None:
        team, user = member_of(options["team"], options["by"])
        preparation = None if options["preparation"] is None else _preparation(options["preparation"])
        try:
            version = import_dataset(team, options["name"], options["folder"], preparation, acting_user=user)
        except Refused as refusal:
            raise CommandError("\n".join(map(str, refusal.problems)) or refusal.title) from refusal
        self.stdout.write(f"dataset-version {version.id}: {version.state}")
        if options["wait"]:
            self._wait(version)

    def _wait(self, version: DatasetVersion) -> None:
        while version.is_unfinished:
            time.sleep(1)
            version.refresh_from_db()
        if version.problem is not None:
            raise CommandError(str(Problem(**version.problem)))
        self.stdout.write(f"{version}: {version.state}, {version.rows} rows")


def _preparation(file: Path) -> Preparation:
    try:
        return Preparation.model_validate(toml_document(file.read_text()))
    except ValidationError as error:
        raise CommandError("\n".join(f"{file}: {problem}" for problem in problems_in(error, Preparation))) from error
    except (OSError, ValueError) as error:
        raise CommandError(f"{file} cannot be read as TOML: {error}") from error
