"""How many alerts quarantined a trajectory; rows that were there before have none."""

from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('trajectories', '0002_changes'),
    ]

    operations = [
        migrations.AddField(
            model_name='trajectory',
            name='alerts',
            field=models.IntegerField(db_default=0, default=0),
        ),
    ]
