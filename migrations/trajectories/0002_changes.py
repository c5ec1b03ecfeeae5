"""What was changed about a trajectory, as columns; rows that were there before have no changes."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("runs", "0002_run_doubts"), ("trajectories", "0001_initial")]

    operations = [
        migrations.AlterField("trajectory", "purpose", models.CharField(max_length=20)),
        *(
            migrations.AddField("trajectory", name, models.IntegerField(default=0, db_default=0))
            for name in ("changes", "repaired", "prefilled", "masked")
        ),
        migrations.AddIndex(
            "trajectory",
            models.Index(
                condition=models.Q(("changes__gt", 0), ("masked__gt", 0), _connector="OR"),
                fields=["run", "-seq"],
                name="trajectory_changed",
            ),
        ),
    ]
