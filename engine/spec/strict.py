"""The one base class of everything that is published: unknown fields are errors."""

from pydantic import BaseModel, ConfigDict


class Strict(BaseModel):
    """Rejects unknown fields, is frozen, and keeps the docstring under a field as its description."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True, allow_inf_nan=False)
