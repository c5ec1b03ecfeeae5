"""A recipe's cold start is one of its supervised stages; specs are written again in that form."""

from typing import Any

from django.db import migrations

DEMONSTRATIONS = {
    "demonstrations": "count", "wrong_fraction": "wrong_fraction", "tool_error_fraction": "tool_error_fraction",
}  # fmt: skip


def stages_of(cold_start: Any) -> Any:
    """A cold start of 0 steps was none."""
    if not isinstance(cold_start, dict) or cold_start.get("steps") == 0:
        return []
    rest = {name: value for name, value in cold_start.items() if name not in DEMONSTRATIONS and name != "recorded"}
    recorded = cold_start.get("recorded")
    made = {DEMONSTRATIONS[name]: value for name, value in cold_start.items() if name in DEMONSTRATIONS}
    data = {"kind": "demonstrations", **made} if recorded is None else {"kind": "recordings", "file": recorded}
    return [{"data": data, **rest}]


def rewrite(model: Any) -> None:
    for row in model.objects.filter(spec__recipe__has_key="cold_start").iterator():
        recipe = dict(row.spec["recipe"])
        stages = stages_of(recipe.pop("cold_start"))
        model.objects.filter(pk=row.pk).update(spec=row.spec | {"recipe": recipe | {"stages": stages}})


def forward(apps: Any, schema_editor: Any) -> None:
    rewrite(apps.get_model("experiments", "Experiment"))


class Migration(migrations.Migration):
    dependencies = [("experiments", "0001_initial")]

    operations = [migrations.RunPython(forward, migrations.RunPython.noop)]
