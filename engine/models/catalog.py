"""This module finds a version of the service's catalog on this machine and compares it with its manifest.

``<models folder>/catalog/<team>/<sha256>/`` holds the files of one content, and ``sha256`` is that of its manifest.
The lengths of all files are compared, and the content of those that fit into one piece: config, tokenizer, template,
index.  The pieces of larger ones are weights, whose headers a run's preflight reads; digesting them again at each start
would take minutes.  Nothing is written here.
"""

import hashlib
from pathlib import Path

from pydantic import ValidationError

from engine.models.refusal import ModelFolderRefused
from engine.spec.model_files import MANIFEST, CatalogFolder, ModelManifest, StoredFile
from engine.spec.problems import Problem

FOLDER = "catalog"
"""Below the models folder."""
OF_TEAMS = (FOLDER, "uploads")
"""Folders below the models folder into which no path leads: what lies there belongs to the teams that imported it."""


def catalog_folder(root: Path, pinned: CatalogFolder) -> Path:
    """The folder of the version.  Raises ModelFolderRefused, with the file, where it is not what was pinned."""
    folder = root / FOLDER / pinned.team / pinned.sha256
    compare_with_manifest(folder, pinned)
    return folder


def compare_with_manifest(folder: Path, pinned: CatalogFolder) -> None:
    """Raises ModelFolderRefused, with the file, where what lies in ``folder`` is not what was pinned."""
    try:
        text = (folder / MANIFEST).read_bytes()
        if hashlib.sha256(text).hexdigest() != pinned.sha256:
            raise _damaged(pinned, folder / MANIFEST, "is not the manifest of this version")
        for name, stored in ModelManifest.model_validate_json(text).files.items():
            _compare(pinned, folder / name, stored)
    except OSError as error:
        raise _damaged(pinned, Path(error.filename or folder), f"cannot be read: {error.strerror}") from error
    except ValidationError as error:
        raise _damaged(pinned, folder / MANIFEST, "is no manifest that is known here") from error


def _compare(pinned: CatalogFolder, file: Path, stored: StoredFile) -> None:
    if (size := file.stat().st_size) != stored.bytes:
        raise _damaged(pinned, file, f"has {size} bytes, and had {stored.bytes} when it was stored")
    if len(stored.pieces) == 1 and hashlib.sha256(file.read_bytes()).hexdigest() != stored.pieces[0]:
        raise _damaged(pinned, file, "has another content than when it was stored")


def _damaged(pinned: CatalogFolder, file: Path, how: str) -> ModelFolderRefused:
    remedy = "import the model again, as a new version"
    return ModelFolderRefused(Problem("model.catalog", pinned.version, f"{file.name} {how}", remedy))
