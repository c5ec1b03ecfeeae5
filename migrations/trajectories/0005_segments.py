"""A row says how many segments its trajectory has.  What is stored has one: nothing made more before."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("trajectories", "0004_prompts")]

    operations = [
        migrations.AddField("trajectory", "segments", models.IntegerField(default=1, db_default=1)),
    ]
