"""``manage.py serving_key``: what the page and the API do with serving keys."""

from argparse import ArgumentParser
from typing import Any
from uuid import UUID

from django.core.management.base import BaseCommand, CommandError

from webapp.accounts.management.members import member_of
from webapp.accounts.models import Team
from webapp.catalog.models import ModelVersion
from webapp.catalog.stored_versions import is_number
from webapp.refusals import Refused
from webapp.runs.models import Run
from webapp.serving import services
from webapp.serving.models import ServingKey


class Command(BaseCommand):
    help = "Make a key for a model's version or a run's checkpoint, list a team's keys, or revoke one."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--team", required=True, help="the team's short name, as in its address")
        parser.add_argument("--by", required=True, help="the e-mail of an owner or member, for the audit log")
        what = parser.add_mutually_exclusive_group(required=True)
        what.add_argument("--model", metavar="NAME@NUMBER", help="make a key for this version")
        what.add_argument("--run", type=int, metavar="NUMBER", help="make a key for a checkpoint of this run")
        what.add_argument("--list", action="store_true", help="say which keys there are")
        what.add_argument("--revoke", type=UUID, metavar="ID", help="let this key open nothing any more")
        parser.add_argument("--step", type=int, help="of the run's checkpoint (default: its newest)")
        parser.add_argument("--name", default="command line", help="what will use the key")
        parser.add_argument("--requests-per-minute", type=int, default=60)
        parser.add_argument("--parallel", type=int, default=4, help="answers at once (default: 4)")
        parser.add_argument("--tokens-per-day", type=int, help="read and sampled (default: no limit)")
        parser.add_argument("--expires-in-days", type=int, help="default: never")

    def handle(self, *_: Any, **options: Any) -> None:
        team, user = member_of(options["team"], options["by"])
        if options["list"]:
            for key in ServingKey.objects.filter(team=team).order_by("created_at"):
                self.stdout.write(f"{key.id} {key.model_name} {key}{' revoked' if key.revoked_at else ''}")
            return
        try:
            if options["revoke"]:
                services.revoke_serving_key(_key(team, options["revoke"]), acting_user=user)
                return
            limits = services.KeyLimits(
                options["requests_per_minute"], options["parallel"], options["tokens_per_day"],
                options["expires_in_days"],
            )  # fmt: skip
            if options["model"]:
                version = _version(team, options["model"])
                created = services.serve_version(version, options["name"], limits, acting_user=user)
            else:
                run = _run(team, options["run"])
                created = services.serve_checkpoint(run, options["step"], options["name"], limits, acting_user=user)
        except Refused as refusal:
            raise CommandError("\n".join(map(str, refusal.problems)) or refusal.title) from refusal
        self.stdout.write(f"serving-key {created.key.id}: {created.key.model_name}\n{created.text}")


def _key(team: Team, id_: UUID) -> ServingKey:
    if (key := ServingKey.objects.filter(team=team, id=id_).first()) is None:
        raise CommandError(f"--revoke = {id_}: the team has no such key; --list names them")
    return key


def _version(team: Team, named: str) -> ModelVersion:
    name, _, number = named.partition("@")
    of_name = ModelVersion.objects.filter(model__team=team, model__name=name).select_related("model__team")
    version = of_name.filter(number=int(number)).first() if is_number(number) else None
    if version is None:
        raise CommandError(f"--model = {named}: the team has no such version; give it as name@number")
    return version


def _run(team: Team, number: int) -> Run:
    if (run := Run.objects.filter(team=team, number=number).select_related("team").first()) is None:
        raise CommandError(f"--run = {number}: the team has no such run; give the number of one")
    return run
