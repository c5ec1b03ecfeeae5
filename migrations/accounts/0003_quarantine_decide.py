"""In the audit log a review decision is made: the verb ``quarantine.rule`` is ``quarantine.decide``."""

from django.db import migrations

_RENAME = "UPDATE accounts_auditentry SET verb = '{}' WHERE verb = '{}'"


class Migration(migrations.Migration):
    dependencies = [("accounts", "0002_idempotent_response")]

    operations = [
        migrations.RunSQL(
            _RENAME.format("quarantine.decide", "quarantine.rule"),
            _RENAME.format("quarantine.rule", "quarantine.decide"),
        )
    ]
