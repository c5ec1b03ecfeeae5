"""A recipe's cold start is one of its supervised stages; the specs of runs are written again in that form."""

from importlib import import_module
from typing import Any

from django.db import migrations


def forward(apps: Any, schema_editor: Any) -> None:
    import_module("migrations.experiments.0002_stages").rewrite(apps.get_model("runs", "Run"))


class Migration(migrations.Migration):
    dependencies = [("runs", "0007_model_version"), ("experiments", "0002_stages")]

    operations = [migrations.RunPython(forward, migrations.RunPython.noop)]
