"""Presets: recipes by name, each a TOML file in ``engine/spec/presets``.

about, source, family      for the reader
[recipe]                   the recipe itself
[paper]                    what the source says beside it: told by ``recipes show``, never applied silently
[paper.schedule]           its schedule, for ``recipes show --run``
[paper.evaluation]         how it samples in evaluation, for the same
"""

import tomllib
from functools import cache
from importlib import resources
from typing import Any

from pydantic_core import PydanticCustomError

from engine.spec.strict import Strict

FAMILIES = (
    "Group and batch baselines",
    "Other objectives and credit",
    "CLEANER",
    "SPEAR",
    "AgentEvolver",
    "ALE",
    "The papers' tables",
    "Measuring",
)
"""They stand in the order in which a list shows them."""


class Preset(Strict):
    name: str
    about: str
    source: str
    """The paper, with section, equation or table."""
    family: str
    """It names whose idea the preset is: one of FAMILIES."""
    recipe: dict[str, Any]
    paper: dict[str, Any] = {}

    @property
    def paper_schedule(self) -> dict[str, Any]:
        return dict(self.paper.get("schedule", {}))

    @property
    def paper_evaluation(self) -> dict[str, Any]:
        return dict(self.paper.get("evaluation", {}))


@cache
def preset_names() -> tuple[str, ...]:
    """Return the names in alphabetical order."""
    files = resources.files("engine.spec").joinpath("presets").iterdir()
    return tuple(sorted(file.name.removesuffix(".toml") for file in files if file.name.endswith(".toml")))


@cache
def preset(name: str) -> Preset:
    """Raises PydanticCustomError, which names what there is, for an unknown name."""
    if name not in preset_names():
        shown = ascii(name)[1:-1]  # pydantic cannot show half a surrogate pair, which JSON can carry
        raise PydanticCustomError(
            "unknown_preset",
            "there is no preset '{name}'",
            {"field": "preset", "value": shown, "name": shown, "remedy": f"use one of: {', '.join(preset_names())}"},
        )
    text = resources.files("engine.spec").joinpath("presets", f"{name}.toml").read_text()
    return Preset(name=name, **tomllib.loads(text))
