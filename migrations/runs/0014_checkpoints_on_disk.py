"""A checkpoint knows whether it is on the disk; so far all but the newest ``schedule.keep_checkpoints`` are not."""

from django.db import migrations, models

_REMOVED = """
UPDATE runs_checkpoint checkpoint SET on_disk = false
FROM (
    SELECT id, run_id, row_number() OVER (PARTITION BY run_id ORDER BY step DESC) AS place FROM runs_checkpoint
) ranked JOIN runs_run run ON run.id = ranked.run_id
WHERE checkpoint.id = ranked.id AND place > (run.spec #>> '{schedule,keep_checkpoints}')::int
"""


class Migration(migrations.Migration):
    dependencies = [("runs", "0013_judge_version")]

    operations = [
        migrations.AddField("checkpoint", "on_disk", models.BooleanField(db_default=True, default=True)),
        migrations.RunSQL(_REMOVED, migrations.RunSQL.noop),
    ]
