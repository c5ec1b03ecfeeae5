"""What a version is made of: the document in ``ModelVersion.origin``."""

from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter

from engine.spec.strict import Strict


class FolderOrigin(Strict):
    """A folder of the server, below the import root."""

    kind: Literal["folder"] = "folder"
    path: str


class UploadOrigin(Strict):
    """Files that came in parts."""

    kind: Literal["upload"] = "upload"
    upload: str
    files: list[str]


class CheckpointOrigin(Strict):
    """What a run had made of its model by a step."""

    kind: Literal["checkpoint"] = "checkpoint"
    run: str
    number: int
    """The number of the run in its team."""
    name: str
    """The name of the run."""
    step: int
    environment: str
    data: dict[str, Any]
    """The run's dataset, as its spec has it."""
    recipe: str
    """The preset that the run's recipe began with; empty where it is the team's own."""


Origin = Annotated[FolderOrigin | UploadOrigin | CheckpointOrigin, Field(discriminator="kind")]
ORIGIN: TypeAdapter[FolderOrigin | UploadOrigin | CheckpointOrigin] = TypeAdapter(Origin)
