"""Open alerts of runs that have ended wait for nobody."""

from django.db import migrations

_FORWARD = """
UPDATE security_alert SET state = 'run-ended' FROM runs_run AS run
WHERE security_alert.state = 'open' AND run.id = security_alert.run_id
  AND run.state IN ('succeeded', 'failed', 'cancelled')
"""
_BACKWARD = "UPDATE security_alert SET state = 'open' WHERE state = 'run-ended'"


class Migration(migrations.Migration):

    dependencies = [
        ('security', '0002_decisions'),
    ]

    operations = [migrations.RunSQL(_FORWARD, _BACKWARD)]
