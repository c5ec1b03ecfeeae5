"""``python -m engine recipes``: what there is, and what each is made of."""

import json
import tomllib
from typing import Any

from engine.launch.preflight import BadSpec
from engine.spec.knobs import Knob, knobs_of
from engine.spec.presets import FAMILIES, Preset, preset, preset_names
from engine.spec.problems import Problem
from engine.spec.run import RunSpec
from engine.spec.toml import toml_of


def listed(*, as_json: bool) -> str:
    """All presets, family by family."""
    presets = [preset(name) for name in preset_names()]
    if as_json:
        return json.dumps([recipe.model_dump(mode="json") for recipe in presets], indent=2)
    width = max(len(recipe.name) for recipe in presets)
    lines = []
    for family in FAMILIES:
        members = [recipe for recipe in presets if recipe.family == family]
        lines += [family, *(f"  {recipe.name:<{width}}  {recipe.about}  [{recipe.source}]" for recipe in members), ""]
    return "\n".join([*lines, "python -m engine recipes show NAME  prints the knobs of one"])


def shown(name: str, *, as_json: bool) -> str:
    """One preset: its source, and every knob with value, default and range."""
    one = _known(name)
    knobs = knobs_of(one)
    if as_json:
        return json.dumps(one.model_dump(mode="json") | {"knobs": [knob.as_dict() for knob in knobs]}, indent=2)
    lines = [f"{one.name}: {one.about}", f"source: {one.source}", ""]
    lines += [line for knob in knobs for line in _lines_of(knob)]
    if one.paper:
        lines += ["", "beside the recipe, the source says (not applied; recipes show NAME --run writes the schedule):"]
        lines += [f"  {key} = {json.dumps(value)}" for key, value in one.paper.items()]
    return "\n".join([*lines, "", "* set by the preset"])


def as_run(name: str) -> str:
    """A whole run in TOML that begins with the preset and with schedule and evaluation of its source."""
    one = _known(name)
    tables = {"schedule": one.paper_schedule, "evaluation": one.paper_evaluation}
    document = {
        "name": one.name,
        "recipe": {"preset": one.name},
        **{table: values for table, values in tables.items() if values},
    }
    text = f"# {one.about} ({one.source})\n{toml_of(document)}"
    RunSpec.model_validate(tomllib.loads(text))  # what is printed here must be accepted there
    return text


def _lines_of(knob: Knob) -> list[str]:
    mark = "*" if knob.is_set else " "
    default = "" if knob.value == knob.default else f"  default {_text(knob.default)}"
    return [
        f"{mark} {knob.path} = {_text(knob.value)}{default}  ({knob.range})",
        *([f"      {knob.help}"] if knob.help else []),
    ]


def _text(value: Any) -> str:
    return "absent" if value is None else json.dumps(value)


def _known(name: str) -> Preset:
    if name not in preset_names():
        remedy = f"use one of: {', '.join(preset_names())}"
        raise BadSpec([str(Problem("preset", name, "there is no preset of this name", remedy))])
    return preset(name)
