"""Alerts of ended runs, turns of alerts, what became of quarantined trajectories, and groups of alike alerts."""

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('runs', '0003_rulings'),
        ('security', '0001_initial'),
    ]

    operations = [
        migrations.CreateModel(
            name='AlertedTurn',
            fields=[
                ('pk', models.CompositePrimaryKey('run_id', 'trajectory_id', 'turn', blank=True, editable=False, primary_key=True, serialize=False)),
                ('run', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='alerted_turns', to='runs.run')),
                ('trajectory_id', models.CharField(max_length=100)),
                ('turn', models.IntegerField()),
                ('wrote', models.TextField()),
                ('call', models.TextField()),
                ('output', models.TextField(null=True)),
                ('error_class', models.CharField(blank=True, max_length=40)),
                ('at', models.DateTimeField()),
            ],
        ),
        migrations.RemoveConstraint(
            model_name='alert',
            name='alert_state_is_known',
        ),
        migrations.AddField(
            model_name='quarantine',
            name='outcome',
            field=models.CharField(blank=True, db_default='', default='', max_length=16),
        ),
        migrations.AddField(
            model_name='quarantine',
            name='settled',
            field=models.JSONField(null=True),
        ),
        migrations.AddField(
            model_name='quarantine',
            name='settled_step',
            field=models.IntegerField(null=True),
        ),
        migrations.AlterField(
            model_name='alert',
            name='state',
            field=models.CharField(choices=[('open', 'Open'), ('acknowledged', 'Acknowledged'), ('run-ended', 'Run ended')], default='open', max_length=12),
        ),
        migrations.AddIndex(
            model_name='alert',
            index=models.Index(fields=['run', 'rule', 'subject', '-id'], name='alert_alike'),
        ),
        migrations.AddConstraint(
            model_name='alert',
            constraint=models.CheckConstraint(condition=models.Q(('state__in', ['open', 'acknowledged', 'run-ended'])), name='alert_state_is_known'),
        ),
    ]
