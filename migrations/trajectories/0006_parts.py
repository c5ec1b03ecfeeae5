"""A row says which part of its run's mixture its trajectory was played in."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("trajectories", "0005_segments")]

    operations = [
        migrations.AddField("trajectory", "part", models.CharField(max_length=40, default="", db_default="")),
    ]
