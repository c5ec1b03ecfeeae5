"""An index of what a run says of its lanes, so that a page finds the newest without reading the log."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("runs", "0008_stages")]

    operations = [
        migrations.AddIndex(
            model_name="event",
            index=models.Index(
                condition=models.Q(("kind__in", ["lanes", "started"])), fields=["run", "step"], name="event_lanes"
            ),
        ),
    ]
