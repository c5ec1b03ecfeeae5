"""``false`` for what may be absent: TOML has no null, and leaving a value out means its default or its preset's."""

from typing import Any, get_args

from pydantic import BaseModel


def absent_where_false(given: Any, model: type[BaseModel]) -> Any:
    """``given`` with None in place of each ``false`` that stands where the model takes None and no boolean."""
    if not isinstance(given, dict):
        return given
    return {name: _read(value, model, name) for name, value in given.items()}


def _read(value: Any, model: type[BaseModel], name: str) -> Any:
    info = model.model_fields.get(str(name))
    if info is None:
        return value
    if value is False:
        kinds = get_args(info.annotation)
        return None if type(None) in kinds and bool not in kinds else value
    candidates = _models_in(info.annotation)
    if isinstance(value, list | tuple) and candidates:
        return [absent_where_false(row, _meant(row, candidates)) if isinstance(row, dict) else row for row in value]
    if not isinstance(value, dict) or not candidates:
        return value
    return absent_where_false(value, _meant(value, candidates))


def _meant(value: dict[str, Any], candidates: list[type[BaseModel]]) -> type[BaseModel]:
    """The variant whose ``kind`` or ``id`` the table has; the first one where it has none."""
    for tag in ("kind", "id"):
        for model in candidates:
            if tag in value and tag in model.model_fields and model.model_fields[tag].default == value[tag]:
                return model
    return candidates[0]


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for argument in get_args(annotation) for model in _models_in(argument)]
