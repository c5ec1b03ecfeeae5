"""Presets over REST: the same for everybody, with every knob of each."""

from typing import Any

from django.http import Http404, HttpRequest
from ninja import Router, Schema

from engine.spec.knobs import Knob, knobs_of
from engine.spec.presets import Preset, preset, preset_names
from webapp.editor.presets import preset_families

router = Router(tags=["recipes"])


class PresetOut(Schema):
    name: str
    about: str
    source: str
    """The paper, with section, equation or table."""
    family: str
    recipe: dict[str, Any]
    """As its file has it.  A run takes it with ``{"recipe": {"preset": name}}`` and may override any of it."""

    @classmethod
    def of(cls, one: Preset) -> "PresetOut":
        return cls(name=one.name, about=one.about, source=one.source, family=one.family, recipe=one.recipe)


class PresetDetail(PresetOut):
    paper: dict[str, Any]
    """What the source says beside the recipe; never applied by itself."""
    knobs: list[Knob]


@router.get("/recipes", response=list[PresetOut], operation_id="list_recipes")
def recipes(request: HttpRequest) -> list[PresetOut]:
    """All presets, family by family."""
    return [PresetOut.of(choice.preset) for _, choices in preset_families() for choice in choices]


@router.get("/recipes/{name}", response=PresetDetail, operation_id="get_recipe")
def recipe(request: HttpRequest, name: str) -> PresetDetail:
    """One preset with every knob of its recipe: value, default, range, meaning."""
    if name not in preset_names():
        raise Http404
    one = preset(name)
    return PresetDetail(**PresetOut.of(one).dict(), paper=one.paper, knobs=knobs_of(one))
