"""The files of a stored version of an environment package, and the manifest by whose SHA-256 the version is known.

    package.json    the manifest
    package/        the wheel, or pyproject.toml and src/, as they were read

Nothing is read or written here.
"""

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from engine.spec.foreign_environments import ImportPath
from engine.spec.model_files import Sha256
from engine.spec.strict import Strict

PACKAGE_MANIFEST = "package.json"
PACKAGE_FOLDER = "package"

PackageDigest = Annotated[str, StringConstraints(pattern=r"^sha256:[0-9a-f]{64}$")]
Word = Annotated[str, StringConstraints(max_length=200)]


class PackageFileEntry(Strict):
    """A file, by its path in the version's folder."""

    path: str = Field(min_length=1, max_length=4096)
    bytes: int = Field(ge=0)
    sha256: Sha256


class PackageManifest(Strict):
    """Equal packages make equal text."""

    schema_version: Literal[1] = 1
    name: Word
    """What the package calls itself."""
    version: Word
    digest: PackageDigest
    """The digest of its names and the contents of its modules (``engine/environments/process/source.py``)."""
    dependencies: list[Annotated[str, StringConstraints(max_length=1000)]] = Field(max_length=1000)
    entries: dict[Word, ImportPath] = Field(max_length=1000)
    """Its environments: ``module:Name`` by the names of their entry points."""
    source: str = Field(min_length=1, max_length=300)
    """The package in the version's folder: ``package``, or the wheel in it."""
    files: list[PackageFileEntry] = Field(min_length=1)
    """By path."""

    def text(self) -> str:
        """What ``package.json`` holds."""
        return self.model_dump_json(indent=1) + "\n"

    @property
    def sizes(self) -> dict[str, int]:
        """The bytes of each file but the manifest, by its path in the version's folder."""
        return {file.path: file.bytes for file in self.files}
