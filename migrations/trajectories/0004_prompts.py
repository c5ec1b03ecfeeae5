"""A trajectory is no longer named by its step: which prompt, sampled by which version, trained on at which step.

Rows of version 0.2 keep their ids.  Their prompts are numbered as ``engine/spec/files_of_0_2.py`` numbers them in their
documents, which stay as they were written.  It can be undone only where there is no row.
"""

from django.db import migrations, models

FROM_STEPS = """
UPDATE trajectories_trajectory AS it SET
    prompt = step::bigint * 1000000 + "group",
    sampled_at_version = CASE purpose WHEN 'train' THEN step - 1 WHEN 'demonstration' THEN -1 ELSE step END,
    trained_at_step = coalesce(
        (
            SELECT settled_step FROM security_quarantine AS held
            WHERE held.run_id = it.run_id AND held.trajectory_id = it.trajectory_id AND held.outcome = 'trained-on'
        ),
        CASE WHEN purpose = 'train' AND (masked < turns OR turns = 0) THEN step END
    )
"""
"""One statement: rows that a transaction changed twice await a check of their keys, and such a table is not altered."""


class Migration(migrations.Migration):
    dependencies = [("trajectories", "0003_alerts"), ("security", "0003_ended_runs")]

    operations = [
        migrations.RemoveIndex("trajectory", "trajectory_by_place"),
        migrations.RenameField("trajectory", "index", "member"),
        migrations.AddField("trajectory", "prompt", models.BigIntegerField(null=True)),
        migrations.AddField("trajectory", "sampled_at_version", models.IntegerField(null=True)),
        migrations.AddField("trajectory", "trained_at_step", models.IntegerField(null=True)),
        migrations.RunSQL(FROM_STEPS, migrations.RunSQL.noop),
        migrations.AlterField("trajectory", "prompt", models.BigIntegerField()),
        migrations.AlterField("trajectory", "sampled_at_version", models.IntegerField()),
        migrations.RemoveField("trajectory", "step"),
        migrations.RemoveField("trajectory", "group"),
        migrations.AddIndex(
            "trajectory", models.Index(fields=["run", "purpose", "prompt", "member"], name="trajectory_by_prompt")
        ),
        migrations.AddIndex(
            "trajectory", models.Index(fields=["run", "sampled_at_version"], name="trajectory_by_version")
        ),
        migrations.AddIndex(
            "trajectory",
            models.Index(
                condition=models.Q(("trained_at_step__isnull", False)),
                fields=["run", "trained_at_step"],
                name="trajectory_trained",
            ),
        ),
    ]
