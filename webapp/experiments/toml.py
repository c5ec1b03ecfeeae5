"""Writes a RunSpec as TOML, in the order of its fields, so that a person can read and edit it.

Reading is ``tomllib``'s.  What TOML has no word for (null) is left out, or ``false`` where leaving it
out would mean something else.
"""

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

from engine.spec.run import RunSpec
from engine.spec.toml import toml_of
from webapp.experiments.baseline import baseline_of, beneath
from webapp.experiments.schema import asks_of


def as_toml(document: dict[str, Any]) -> str:
    return toml_of(_without_null(document, RunSpec, baseline_of(document)))


def _without_null(table: Mapping[str, Any], model: type[BaseModel], baseline: Mapping[str, Any]) -> dict[str, Any]:
    asks = asks_of(model)
    kept: dict[str, Any] = {}
    for name, value in table.items():
        ask, unsaid = asks.get(name), baseline.get(name)
        if value is None:
            if ask is not None and ask.may_be_absent and unsaid is not None:
                kept[name] = False
        elif ask is not None and ask.models and isinstance(value, dict):
            kept[name] = _without_null(value, ask.model_for(value), beneath(ask, value, unsaid))
        else:
            kept[name] = value
    return kept
