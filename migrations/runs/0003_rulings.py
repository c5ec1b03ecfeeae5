"""What paused a run, and the number of the last ruling about one of its trajectories."""

from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('runs', '0002_run_doubts'),
    ]

    operations = [
        migrations.AddField(
            model_name='run',
            name='desired_because',
            field=models.TextField(blank=True, db_default='', default=''),
        ),
        migrations.AddField(
            model_name='run',
            name='rulings',
            field=models.PositiveIntegerField(db_default=0, default=0),
        ),
    ]
