"""``manage.py bootstrap``: the sample user, team and experiment; prints what there is as JSON."""

import json
from typing import Any

from django.core.management.base import BaseCommand

from webapp.experiments.sample import ensure_sample


class Command(BaseCommand):
    help = "Make the first user, team and sample experiment unless they exist.  The password is printed once."

    def handle(self, **_options: Any) -> None:
        sample = ensure_sample()
        summary = {
            "created": sample.password is not None,
            "email": sample.owner.email,
            "password": sample.password,
            "team": sample.team.slug,
            "experiment_id": str(sample.experiment.id),
        }
        self.stdout.write(json.dumps(summary))
