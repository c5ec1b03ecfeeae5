"""A file that a run reads beside its spec: named, and from the run's start on with what stands in it."""

from typing import Annotated, Any

from pydantic import Field, StringConstraints, model_validator

from engine.spec.strict import Strict

FilePath = Annotated[str, StringConstraints(min_length=1, max_length=1000, pattern=r"^[^\x00-\x1f]+$")]
Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]


class PinnedFile(Strict):
    """Instead of the table its ``file`` alone may be given, as a text."""

    file: FilePath
    """Below the folder of recorded trajectories (``PALESTRA_TRAJECTORIES``) or, on the command line alone, beside the
    run's file or anywhere by its absolute path."""
    sha256: Sha256 | None = Field(default=None)
    """The digest of its content; a file of another content is refused.  Absent: the content that it has when the run
    starts."""

    @model_validator(mode="before")
    @classmethod
    def _is_named_by_a_text(cls, given: Any) -> Any:
        return {"file": given} if isinstance(given, str) else given
