"""The presets as a reader chooses among them: by family, each with its source."""

from engine.spec.presets import FAMILIES, Preset, preset, preset_names


def preset_families() -> list[tuple[str, list[Preset]]]:
    """In the order of FAMILIES; inside of one in alphabetical order."""
    every = [preset(name) for name in preset_names()]
    return [(family, [one for one in every if one.family == family]) for family in FAMILIES]


def preset_or_none(name: str) -> Preset | None:
    return preset(name) if name in preset_names() else None
