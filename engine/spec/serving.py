"""What is served to whom outside of training, and what becomes of it: the file that a server of models reads, and the
lines that it writes."""

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, StringConstraints, model_validator

from engine.spec.model_files import CatalogFolder
from engine.spec.strict import Strict

Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._@/-]*$", max_length=200)]
Digest = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]


class ServedModel(Strict):
    """A model under the name by which callers ask for it.  One of ``folder`` and ``run`` is given."""

    name: Name
    folder: Path | None = None
    """A model's folder."""
    run: str | None = None
    """A run: its folder, its id, or its name below the home."""
    step: int | None = Field(default=None, ge=0)
    """The step of the run's checkpoint; absent: the newest when the model is loaded."""
    context_tokens: int | None = Field(default=None, ge=16)
    """The tokens of a call at most, read and sampled; absent: the model's own, 4,096 at most for a folder."""
    catalog: CatalogFolder | None = None
    """The version whose files ``folder`` holds; others are refused."""

    @model_validator(mode="after")
    def _is_one(self) -> Self:
        if (self.folder is None) == (self.run is None):
            raise ValueError(f"models.{self.name}: give either a folder or a run")
        return self


class ServedKey(Strict):
    """A key and its limits.  The key itself stands nowhere."""

    id: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9-]{1,64}$")]
    """By which its usage is recorded."""
    sha256: Digest
    """The digest of the key."""
    model: Name
    """The one that it opens."""
    expires_at: float | None = None
    """The time, in seconds since 1970, from which it opens nothing."""
    requests_per_minute: int = Field(default=60, ge=1, le=100_000)
    parallel: int = Field(default=4, ge=1, le=256)
    """Choices that are sampled at once."""
    tokens_per_day: int | None = Field(default=None, ge=1, le=10**12)
    """Tokens read and sampled from midnight to midnight UTC; absent: no limit."""


class ServedFile(Strict):
    """All that a server is told.  It reads the file again when it changes."""

    models: list[ServedModel]
    keys: list[ServedKey]

    @model_validator(mode="after")
    def _fits(self) -> Self:
        names = [model.name for model in self.models]
        for field, values in (
            ("models.name", names),
            ("keys.id", [key.id for key in self.keys]),
            ("keys.sha256", [key.sha256 for key in self.keys]),
        ):
            if twice := sorted({value for value in values if values.count(value) > 1}):
                raise ValueError(f"{field} = {twice[0]!r} stands there twice: use each once")
        for key in self.keys:
            if key.model not in names:
                raise ValueError(f"keys.{key.id}.model = {key.model!r}: no such model; there is {', '.join(names)}")
        return self


class UsageLine(Strict):
    """What became of one request of a known key, or of several that were refused for one reason."""

    at: float
    """Seconds since 1970, at its end."""
    key: str
    model: str
    outcome: Literal["answered", "listed", "hung-up"] | str
    """``answered``, ``listed`` (it asked for the names of models), ``hung-up``, or the kind of its refusal."""
    calls: int = Field(default=1, ge=1)
    """How many requests it is of."""
    prompt_tokens: int = Field(default=0, ge=0)
    """The tokens that were read, once for all choices."""
    sampled_tokens: int = Field(default=0, ge=0)
    seconds: float = Field(default=0.0, ge=0.0)
