"""An experiment is found by its spec: what it was begun with said nothing more after the first change."""

from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("experiments", "0002_stages")]

    operations = [
        migrations.RemoveField("experiment", "dataset"),
        migrations.RemoveField("experiment", "environment"),
    ]
