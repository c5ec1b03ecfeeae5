"""The registry: a folder with one JSON file that says which digest a name means.

The images themselves are the Docker daemon's.  A tag belongs to one image of its name; importing another image under
it moves it, and the former image stays, by its digest.  Writers take turns; readers see a whole file.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from sandboxes.images.reference import REMEDY, ImageRefused, parsed

FILE = "images.json"


class Image(BaseModel):
    """One image under one name."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    name: str
    digest: str
    """``sha256:...`` of its configuration, which holds the digests of its layers: another content has another one."""
    tags: tuple[str, ...] = ()
    owner: str
    size_bytes: int
    created: datetime
    """When it was registered."""
    source: str
    """Where it came from: a tar with the digest of the file, or a folder that was built."""
    python: str
    """Path of its Python, which runs the agent."""

    @property
    def reference(self) -> str:
        return f"{self.name}:{self.tags[-1]}" if self.tags else self.name


class _Contents(BaseModel):
    model_config = ConfigDict(extra="forbid")
    images: list[Image] = []


def default_folder() -> Path:
    return Path(os.environ.get("PALESTRA_HOME") or ".palestra") / "images"


class Registry:
    def __init__(self, folder: Path | None = None) -> None:
        """``folder``: by default ``$PALESTRA_HOME/images``."""
        self.folder = default_folder() if folder is None else folder

    def images(self) -> list[Image]:
        """By name, and of one name the latest first.  Raises ``ImageRefused`` for a file that was damaged."""
        try:
            text = (self.folder / FILE).read_text("utf-8")
        except FileNotFoundError:
            return []
        try:
            images = _Contents.model_validate_json(text).images
        except ValidationError as error:
            raise ImageRefused(
                "registry", self.folder / FILE, f"this file is damaged ({error.errors()[0]['msg']})",
                "put a copy of it back, or remove it and import the images again",
            ) from None  # fmt: skip
        images.sort(key=lambda image: image.created, reverse=True)
        images.sort(key=lambda image: image.name)
        return images

    def resolve(self, reference: str) -> Image:
        """The image that is meant; of a name alone, the one registered last.  Raises ``ImageRefused``."""
        wanted = parsed(reference)
        for image in self.images():
            if wanted.digest == image.digest:
                return image
            if wanted.name == image.name and (wanted.tag is None or wanted.tag in image.tags):
                return image
        raise ImageRefused("image", reference, f"no such image is registered in {self.folder}", REMEDY)

    def add(self, image: Image) -> Image:
        """Register it; tags that another image of this name has are moved.  Returns it with all of its tags."""
        with self._changing() as images:
            for place, other in enumerate(images):
                kept = tuple(tag for tag in other.tags if tag not in image.tags)
                if other.name == image.name and other.digest == image.digest:
                    image = image.model_copy(update={"tags": (*kept, *image.tags)})
                elif other.name == image.name:
                    images[place] = other.model_copy(update={"tags": kept})
            images[:] = [other for other in images if (other.name, other.digest) != (image.name, image.digest)]
            images.append(image)
        return image

    def remove(self, image: Image) -> bool:
        """Forget it; return whether another name still means the same digest."""
        with self._changing() as images:
            images[:] = [other for other in images if (other.name, other.digest) != (image.name, image.digest)]
            return any(other.digest == image.digest for other in images)

    @contextmanager
    def _changing(self) -> Iterator[list[Image]]:
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with open(self.folder / "lock", "a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            images = self.images()
            yield images
            self._write(_Contents(images=images).model_dump_json(indent=1))

    def _write(self, text: str) -> None:
        new = self.folder / f"{FILE}.new"  # one writer at a time
        with open(new, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        new.replace(self.folder / FILE)
