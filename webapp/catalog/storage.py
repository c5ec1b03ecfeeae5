"""Where the files of models and datasets lie, below the folder of each; nothing else knows.

catalog/<team>/<sha256>/            the files of one content, whole or not there
catalog/<team>/.partial-<version>/  those of a version that is being stored
catalog/<team>/.removed-<name>/     on their way out
tasks/..., packages/...             the same of sets of tasks and of packages, below the datasets folder
uploads/<upload>/                   parts, of models and datasets alike, below the models folder
"""

from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

from django.conf import settings


@dataclass(frozen=True)
class Storage:
    setting: str
    """The name of the setting that says where the folder is."""
    name: str = "catalog"

    @property
    def root(self) -> Path:
        return Path(getattr(settings, self.setting)) / self.name

    def content_folder(self, team_id: int, sha256: str) -> Path:
        return self.root / str(team_id) / sha256

    def partial_folder(self, team_id: int, version_id: int) -> Path:
        return self.root / str(team_id) / f".partial-{version_id}"


MODELS = Storage("PALESTRA_MODELS")
DATASETS = Storage("PALESTRA_DATASETS")
TASKS = Storage("PALESTRA_DATASETS", "tasks")
PACKAGES = Storage("PALESTRA_DATASETS", "packages")


def uploads_root() -> Path:
    return Path(settings.PALESTRA_MODELS) / "uploads"


def upload_folder(upload_id: UUID | str) -> Path:
    return uploads_root() / str(upload_id)


def part_file(upload_id: UUID | str, file: int, number: int, sha256: str) -> Path:
    return upload_folder(upload_id) / f"{file:04d}-{number:06d}-{sha256}"
