"""A checkpoint is served as ``team/runs/7@10``: ``team/run-7@10`` may be a version of a model called ``run-7``."""

from django.db import migrations

_RENAME = "UPDATE serving_servingkey SET model_name = regexp_replace(model_name, '{}', '{}') WHERE run_id IS NOT NULL"


class Migration(migrations.Migration):
    dependencies = [("serving", "0001_initial")]

    operations = [
        migrations.RunSQL(_RENAME.format("/run-([0-9]+@)", r"/runs/\1"), _RENAME.format("/runs/([0-9]+@)", r"/run-\1"))
    ]
