"""``manage.py reset_password EMAIL``: a new one-time password for somebody who lost theirs."""

import json
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from webapp.accounts.models import User
from webapp.accounts.services import one_time_password


class Command(BaseCommand):
    help = "Give a user a new one-time password and print it once, as JSON.  All their sessions end."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("email")

    def handle(self, *, email: str, **_options: Any) -> None:
        user = User.objects.filter(email=email.strip().lower()).first()
        if user is None:
            raise CommandError(f"there is no user {email}")
        password = one_time_password()
        user.set_password(password)
        user.must_change_password = True
        user.save(update_fields=["password", "must_change_password"])
        self.stdout.write(json.dumps({"email": user.email, "password": password}))
