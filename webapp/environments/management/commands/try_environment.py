"""``manage.py try_environment``: what the page and the API do with a published environment."""

from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from pydantic import ValidationError

from engine.spec.problems import problems_in
from webapp.accounts.management.members import member_of
from webapp.catalog.environment_versions import environment_of
from webapp.catalog.models import Environment
from webapp.refusals import Refused
from webapp.runs.tries import EnvironmentTry, begin_try


class Command(BaseCommand):
    help = "Play some tasks of a published environment by its own solution, by nobody, by a script or by a model."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("name", help="of the environment")
        parser.add_argument("--number", type=int, help="of its version (default: the newest)")
        parser.add_argument("--players", default="oracle,nop", help="of oracle, nop, script, model; with commas")
        parser.add_argument("--tasks", default="10", help="held-out tasks, from the first one (default: 10)")
        parser.add_argument("--script", type=Path, help="a file with a JSON object a line: a call, or an answer")
        parser.add_argument("--dataset", help="name@version, where it asks what a dataset holds")
        parser.add_argument("--model", help="name@version, of the player model")
        parser.add_argument("--team", required=True, help="the team's short name, as in its address")
        parser.add_argument("--by", required=True, help="the e-mail of an owner or member, for the audit log")

    def handle(self, *_: Any, **options: Any) -> None:
        team, user = member_of(options["team"], options["by"])
        versions = Environment.objects.filter(team=team, name=options["name"], deleted_at=None).order_by("-version")
        if options["number"] is not None:
            versions = versions.filter(version=options["number"])
        version = versions.first()
        if version is None:
            raise CommandError(f"{team.slug} has no such version of {options['name']}")
        try:
            environment = environment_of({"environment": version.spec})
            run = begin_try(team, environment, _wanted(options), acting_user=user, name=str(version))
        except Refused as refusal:
            raise CommandError("\n".join(map(str, refusal.problems)) or refusal.title) from refusal
        self.stdout.write(f"{version} is being tried by run {run.number} ({run.id})")


def _wanted(options: dict[str, Any]) -> EnvironmentTry:
    given = {name: options[name] for name in ("tasks", "dataset", "model") if options[name] is not None}
    try:
        script = "" if options["script"] is None else options["script"].read_text()
        return EnvironmentTry.model_validate({**given, "players": options["players"].split(","), "script": script})
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(f"{options['script']} cannot be read: {error}") from error
    except ValidationError as error:
        raise CommandError("\n".join(map(str, problems_in(error, EnvironmentTry)))) from error
