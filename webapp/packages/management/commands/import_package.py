"""``manage.py import_package``: what the page and the API do with a package below the import root."""

import time
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from pydantic import ValidationError

from engine.spec.package_check import PackageCheck
from engine.spec.problems import Problem, problems_in
from webapp.accounts.management.members import member_of
from webapp.catalog.imports import import_package
from webapp.catalog.models import PackageVersion
from webapp.catalog.package_versions import publish_package
from webapp.refusals import Refused


class Command(BaseCommand):
    help = "Import an environment package from below the import root (PALESTRA_IMPORTS), have it checked, publish it."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("name", help="of the package; a new version where there is one of the name")
        parser.add_argument("folder", help="a folder with a pyproject.toml and src, a .tar of one, or a wheel")
        parser.add_argument("--team", required=True, help="the team's short name, as in its address")
        parser.add_argument("--by", required=True, help="the e-mail of an owner or member, for the audit log")
        parser.add_argument("--entry", help="package.module:Name (default: its only entry point)")
        parser.add_argument("--taskset", help="module:Class of a taskset of verifiers v1, which it has or needs")
        parser.add_argument("--env-id", dest="env_id", help="the name of an environment of GEM, which it needs")
        parser.add_argument("--options", help="what the environment is called with: a JSON object")
        parser.add_argument("--check", action="store_true", help="have it played")
        parser.add_argument("--wait", action="store_true", help="until it is stored, and checked if it is")
        parser.add_argument("--publish", action="store_true", help="after a check that found no fault; it waits for it")

    def handle(self, *_: Any, **options: Any) -> None:
        team, user = member_of(options["team"], options["by"])
        given = {name: options[name] for name in ("entry", "taskset", "env_id", "options") if options[name] is not None}
        try:
            check = PackageCheck.model_validate(given) if given or options["check"] or options["publish"] else None
            version = import_package(team, options["name"], options["folder"], check, acting_user=user)
            self.stdout.write(f"package-version {version.id}: {version.state}")
            if options["wait"] or options["publish"]:
                self._wait(version)
            if options["publish"]:
                self.stdout.write(f"{publish_package(version, acting_user=user)} is published")
        except ValidationError as error:
            raise CommandError("\n".join(map(str, problems_in(error, PackageCheck)))) from error
        except Refused as refusal:
            raise CommandError("\n".join(map(str, refusal.problems)) or refusal.title) from refusal

    def _wait(self, version: PackageVersion) -> None:
        while version.is_unfinished:
            time.sleep(1)
            version.refresh_from_db()
        if version.problem is not None:
            faults = [str(Problem(**problem)) for problem in version.problems]
            raise CommandError("\n".join(faults) or str(Problem(**version.problem)))
        found = f", {len(version.found.faults)} faults" if version.found else ""
        self.stdout.write(f"package-version {version.id}: {version.state}{found}")
