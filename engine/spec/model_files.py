"""The files of a version of the catalog, and the manifest by whose SHA-256 the version is known.

A worker writes the manifest when it has stored the files, and an engine compares them with it before it trains what
they hold.  Nothing is read or written here.
"""

from typing import Annotated

from pydantic import Field, StringConstraints

from engine.spec.strict import Strict

MANIFEST = "palestra-manifest.json"
PIECE_BYTES = 64 * 2**20
"""A file is digested in pieces of this size, so that storing it can stop and go on between two of them."""

CatalogVersion = Annotated[str, StringConstraints(pattern=r"^[\w][\w.-]*@[\w][\w.-]*$", max_length=200)]
"""``name@3`` of a team's models, datasets, task sets or packages."""
Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]


class StoredFile(Strict):
    bytes: int = Field(ge=0)
    pieces: list[Sha256]
    """The SHA-256 of each ``PIECE_BYTES``; the last piece may be shorter, and an empty file has none."""


class ModelManifest(Strict):
    """Equal files make equal text, whatever they were made of."""

    files: dict[str, StoredFile]

    def text(self) -> str:
        """What ``palestra-manifest.json`` holds."""
        files = {name: self.files[name] for name in sorted(self.files)}
        return ModelManifest(files=files).model_dump_json(indent=1) + "\n"


class CatalogFolder(Strict):
    """Which files a ``catalog`` of the spec, e.g. ``model.catalog``, named when a run was submitted."""

    version: str
    """As the spec names it, ``name@3``."""
    team: Annotated[str, StringConstraints(pattern=r"^[0-9]{1,20}$")]
    sha256: Sha256
