"""Serves single files of installed packages as static files: no CDN, no copy in the repository."""

from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from django.contrib.staticfiles.finders import BaseFinder
from django.core.exceptions import ImproperlyConfigured
from django.core.files.storage import FileSystemStorage, Storage

# Static path -> (package, file inside it).  A folder would publish the package's other data too.
_FILES = {"vendor/plotly.min.js": ("plotly", "package_data/plotly.min.js")}


class VendoredFinder(BaseFinder):
    def find(self, path: str, find_all: bool = False, **_kwargs: Any) -> Any:
        if path not in _FILES:
            return []
        return [str(_location(path))] if find_all else str(_location(path))

    def list(self, ignore_patterns: Iterable[str] | None) -> Iterable[tuple[str, Storage]]:
        for path in _FILES:
            location = _location(path)
            storage = FileSystemStorage(location=location.parent)
            storage.prefix = str(Path(path).parent)  # type: ignore[attr-defined]  # collectstatic and whitenoise read it
            yield location.name, storage


def _location(path: str) -> Path:
    package, inside = _FILES[path]
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        raise ImproperlyConfigured(f"{package} is in the lock and must be installed")
    return Path(spec.origin).parent / inside
