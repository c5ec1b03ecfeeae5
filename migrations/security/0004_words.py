"""``box`` is ``sandbox``, and a ruling is a review decision."""

import django.db.models.deletion
from django.db import migrations, models

_RENAME = "ALTER TABLE security_egressrecord RENAME COLUMN {} TO {}"
_CONSTRAINT = "ALTER TABLE security_quarantine RENAME CONSTRAINT {} TO {}"
_HAS_ITS_DECISION = models.Q(number=None, state="pending") | models.Q(
    number__isnull=False, state__in=("benign", "malicious")
)


class Migration(migrations.Migration):
    dependencies = [("security", "0003_ended_runs"), ("runs", "0006_words")]

    operations = [
        migrations.SeparateDatabaseAndState(
            # A composite key names its columns, and RenameField does not rename them there.
            database_operations=[migrations.RunSQL(_RENAME.format("box", "sandbox"), _RENAME.format("sandbox", "box"))],
            state_operations=[
                migrations.RemoveField("egressrecord", "pk"),
                migrations.RenameField("egressrecord", "box", "sandbox"),
                migrations.AddField("egressrecord", "pk", models.CompositePrimaryKey(
                        "run_id", "sandbox", "seq", blank=True, editable=False, primary_key=True, serialize=False
                    )),
            ],
        ),
        migrations.RenameField("alert", "box", "sandbox"),
        migrations.RenameField("quarantine", "ruled_by", "decided_by"),
        migrations.RenameField("quarantine", "ruled_at", "decided_at"),
        migrations.RenameIndex("quarantine", old_name="quarantine_by_ruling", new_name="quarantine_by_review_decision"),
        migrations.SeparateDatabaseAndState(
            database_operations=[
                migrations.RunSQL(
                    _CONSTRAINT.format("quarantine_has_its_ruling", "quarantine_has_its_review_decision"),
                    _CONSTRAINT.format("quarantine_has_its_review_decision", "quarantine_has_its_ruling"),
                )
            ],
            state_operations=[
                migrations.RemoveConstraint("quarantine", "quarantine_has_its_ruling"),
                migrations.AddConstraint(
                    "quarantine",
                    models.CheckConstraint(condition=_HAS_ITS_DECISION, name="quarantine_has_its_review_decision"),
                ),
            ],
        ),
        migrations.RenameModel("Ruling", "ReviewDecision"),
        migrations.RenameIndex(
            "reviewdecision", old_name="ruling_history_of_one", new_name="review_decision_history_of_one"
        ),
        migrations.AlterField(
            "reviewdecision",
            "run",
            models.ForeignKey(
                db_index=False,
                on_delete=django.db.models.deletion.CASCADE,
                related_name="review_decision_history",
                to="runs.run",
            ),
        ),
    ]
