"""``manage.py egress_policy``: what the page and the API say of a policy and of connections."""

from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from engine.spec.toml import toml_of
from webapp.egress import services
from webapp.egress.presets import PRESETS
from webapp.refusals import Invalid


class Command(BaseCommand):
    help = "Check an egress policy (TOML), and say whether connections would pass it and by which rule."

    def add_arguments(self, parser: ArgumentParser) -> None:
        which = parser.add_mutually_exclusive_group(required=True)
        which.add_argument("--file", type=Path, help="the policy, as TOML")
        which.add_argument("--preset", choices=sorted(PRESETS), help="a policy to begin with")
        parser.add_argument("--connect", action="append", default=[], metavar="HOST:PORT", help="may be repeated")
        parser.add_argument("--scheme", choices=["tls", "http", "other"], default="tls", help="of the first bytes")
        parser.add_argument("--method", default="GET", help="of plain HTTP")

    def handle(self, *_: Any, **options: Any) -> None:
        try:
            policy = PRESETS[options["preset"]].policy if options["preset"] else services.policy_of_text(_text(options))
            answers = [services.tried(policy, _connection(to, options)) for to in options["connect"]]
        except Invalid as refusal:
            raise CommandError("\n".join(map(str, refusal.problems))) from refusal
        if not answers:
            self.stdout.write(toml_of(services.as_document(policy)), ending="")
        for answer in answers:
            to = f"{answer.connection.to}:{answer.connection.port}"
            self.stdout.write(f"{to}: {'passes' if answer.passes else 'denied'}: {answer.deciding.sentence}")


def _text(options: dict[str, Any]) -> str:
    try:
        return str(options["file"].read_text())
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(f"{options['file']} cannot be read: {error}") from error


def _connection(to: str, options: dict[str, Any]) -> services.Connection:
    host, _, port = to.rpartition(":")
    given = {"to": host.strip("[]"), "port": port, "scheme": options["scheme"], "method": options["method"]}
    return services.connection_of(given)
