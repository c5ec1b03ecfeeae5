"""An environment package on its way into the catalog: unpacked, read as the hostile input that it is, and sealed.

Nothing of it runs.  A wheel stays the file that it is; of a folder, or a tar of one, what a run needs is kept:
``pyproject.toml`` and what lies in ``src``.
"""

import hashlib
import os
import shutil
from dataclasses import replace
from pathlib import Path, PurePath

from pydantic import ValidationError

from engine.disk import write_durably
from engine.environments.archive import UNREADABLE, unpacked
from engine.environments.process.source import LIMITS, PackageRefused, PackageSource, package_at
from engine.spec.check_log import MOST_PROBLEMS, FoundProblem, ReadReport
from engine.spec.package_files import PACKAGE_FOLDER, PACKAGE_MANIFEST, PackageFileEntry, PackageManifest
from engine.spec.problems import Problem, problems_in

PROJECT_FILE = "pyproject.toml"


def store(source: Path, target: Path) -> ReadReport:
    """Make ``target/sealed`` of a package's folder, a tar of one, or a wheel.

    ``target`` is the caller's own; what an earlier try has left in it is removed.  With faults nothing is sealed.
    """
    for name in ("unpacked", "sealed"):
        shutil.rmtree(target / name, ignore_errors=True)
    place, problems = _opened(source, target / "unpacked")
    try:
        if not problems:
            _seal(place, target / "sealed")
    except PackageRefused as refused:
        problems = [_without(place, problem) for problem in refused.problems]
    except OSError as error:
        problems = [Problem("files", source.name, f"it cannot be read: {error.strerror}", "try it again")]
    shutil.rmtree(target / "unpacked", ignore_errors=True)
    return ReadReport(problems=[FoundProblem.of(problem) for problem in problems[:MOST_PROBLEMS]], faults=len(problems))


def _opened(source: Path, folder: Path) -> tuple[Path, list[Problem]]:
    """Where the package lies, and what was wrong with the tar that it came in."""
    if source.is_dir() or source.name.endswith(".whl"):
        return source, []
    try:
        problems = unpacked(source, folder)
    except UNREADABLE as error:
        message = f"it is no tar that can be read ({str(error)[:200] or type(error).__name__})"
        return folder, [Problem("files", source.name, message, "make it with: tar -cf package.tar -C FOLDER .")]
    inside = [entry for entry in folder.iterdir() if not entry.name.startswith(".")]
    is_wrapped = len(inside) == 1 and inside[0].is_dir() and not (folder / PROJECT_FILE).exists()
    return inside[0] if is_wrapped else folder, problems


def _without(place: Path, problem: Problem) -> Problem:
    """Where it stands on this machine is nobody's business."""
    value = str(problem.value)
    shown = PurePath(value).name if value.startswith(str(place)) else value
    return replace(problem, field=problem.field or "files", value=shown)


def _seal(place: Path, folder: Path) -> None:
    """Raises PackageRefused, and OSError."""
    source = package_at(place)
    package = folder / PACKAGE_FOLDER
    package.mkdir(mode=0o700, parents=True)
    kept = package
    if place.is_dir():
        _write(package / PROJECT_FILE, (place / PROJECT_FILE).read_bytes())
        for path, content in source.files:
            _write(package / "src" / path, content)
    else:
        kept = package / place.name
        if place.stat().st_size > LIMITS.size_bytes:
            message, remedy = "the wheel is too large", f"keep it under {LIMITS.size_bytes} bytes"
            raise PackageRefused([Problem("files", place.name, message, remedy)])
        _write(kept, place.read_bytes())
    if package_at(kept).digest != source.digest:
        message, remedy = "it was changed while it was read", "change nothing while it is imported, and try it again"
        raise PackageRefused([Problem("files", place.name, message, remedy)])
    write_durably(folder / PACKAGE_MANIFEST, _manifest(source, folder, kept).text().encode())


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o400), "wb") as written:
        written.write(content)


def _manifest(source: PackageSource, folder: Path, kept: Path) -> PackageManifest:
    """Raises PackageRefused where the package calls itself, or asks for, what no manifest holds."""
    files = [
        PackageFileEntry(
            path=str(path.relative_to(folder)),
            bytes=path.stat().st_size,
            sha256=hashlib.sha256(path.read_bytes()).hexdigest(),
        )
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    ]
    try:
        return PackageManifest(
            name=source.name,
            version=source.version,
            digest=source.digest,
            dependencies=list(source.dependencies),
            entries=dict(source.entries),
            source=str(kept.relative_to(folder)),
            files=files,
        )
    except ValidationError as error:
        raise PackageRefused(problems_in(error, PackageManifest)) from error
