from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("runs", "0004_environment_of_run")]

    operations = [
        migrations.RenameField("run", "doubts", "missed_heartbeats"),
        migrations.RenameField("run", "pulse", "heartbeat"),
    ]
