"""A run's ``review_decisions``; stored events name their ``sandbox``, ``origin`` and ``decision`` as events do today."""

from django.db import migrations

_EGRESS = """
UPDATE runs_event SET body = body - '{box}' - '{place}' || jsonb_build_object(
    '{sandbox}', body->'{box}', '{origin}', body->'{place}', 'records', (
        SELECT coalesce(jsonb_agg(record - '{verdict}' || jsonb_build_object(
            '{decision}', record->'{verdict}',
            'attempt', (record->'attempt') - '{box}' || jsonb_build_object('{sandbox}', record#>'{{attempt,{box}}}')
        ) ORDER BY number), '[]')
        FROM jsonb_array_elements(body->'records') WITH ORDINALITY AS given (record, number)
    )
) WHERE kind = 'egress' AND body ? '{box}'
"""
_ALERT = """
UPDATE runs_event SET body = body - '{place}' || jsonb_build_object(
    '{origin}', body->'{place}',
    'finding', (body->'finding') - '{box}' || jsonb_build_object('{sandbox}', body#>'{{finding,{box}}}')
) WHERE kind = 'alert' AND body->'finding' ? '{box}'
"""
_TURN = """
UPDATE runs_event SET body = body - '{place}' || jsonb_build_object('{origin}', body->'{place}')
WHERE kind = 'turn' AND body ? '{place}'
"""
_FORWARD = {"box": "box", "sandbox": "sandbox", "place": "place", "origin": "origin"} | {
    "verdict": "verdict",
    "decision": "decision",
}
_BACKWARD = {"box": "sandbox", "sandbox": "box", "place": "origin", "origin": "place"} | {
    "verdict": "decision",
    "decision": "verdict",
}


class Migration(migrations.Migration):
    dependencies = [("runs", "0005_heartbeats")]

    operations = [
        migrations.RenameField("run", "rulings", "review_decisions"),
        *(
            migrations.RunSQL(statement.format(**_FORWARD), statement.format(**_BACKWARD))
            for statement in (_EGRESS, _ALERT, _TURN)
        ),
    ]
