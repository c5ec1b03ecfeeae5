"""``manage.py publish_environment``: what the page and the API do with an environment in a file."""

from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from webapp.accounts.management.members import member_of
from webapp.catalog.environment_versions import environment_of_text
from webapp.catalog.services import publish_environment
from webapp.refusals import Refused


class Command(BaseCommand):
    help = "Publish the next version of an environment from a TOML file with a table [environment]."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("name", help="of the environment; a new version where there is one of the name")
        parser.add_argument("file", type=Path, help="TOML, as a run has it under [environment]")
        parser.add_argument("--description", default="")
        parser.add_argument("--team", required=True, help="the team's short name, as in its address")
        parser.add_argument("--by", required=True, help="the e-mail of an owner or member, for the audit log")

    def handle(self, *_: Any, **options: Any) -> None:
        team, user = member_of(options["team"], options["by"])
        try:
            environment = environment_of_text(_text(options["file"]))
            described = {"acting_user": user, "description": options["description"]}
            version = publish_environment(team, options["name"], environment, **described)
        except Refused as refusal:
            raise CommandError("\n".join(map(str, refusal.problems)) or refusal.title) from refusal
        self.stdout.write(f"{version} is published")


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(f"{path} cannot be read: {error}") from error
