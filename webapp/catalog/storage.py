"""Where the files of models lie, below the models folder; nothing else knows.

catalog/<team>/<sha256>/            the files of one content, whole or not there
catalog/<team>/.partial-<version>/  those of a version that is being stored
catalog/<team>/.removed-<name>/     on their way out
uploads/<upload>/                   parts
"""

from pathlib import Path
from uuid import UUID

from django.conf import settings


def catalog_root() -> Path:
    return Path(settings.PALESTRA_MODELS) / "catalog"


def content_folder(team_id: int, sha256: str) -> Path:
    return catalog_root() / str(team_id) / sha256


def partial_folder(team_id: int, version_id: int) -> Path:
    return catalog_root() / str(team_id) / f".partial-{version_id}"


def uploads_root() -> Path:
    return Path(settings.PALESTRA_MODELS) / "uploads"


def upload_folder(upload_id: UUID | str) -> Path:
    return uploads_root() / str(upload_id)


def part_file(upload_id: UUID | str, file: int, number: int, sha256: str) -> Path:
    return upload_folder(upload_id) / f"{file:04d}-{number:06d}-{sha256}"
