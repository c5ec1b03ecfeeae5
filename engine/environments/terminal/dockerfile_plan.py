"""What a task's Dockerfile amounts to: files over a base that somebody chose, or an image that must be built.

A Dockerfile that names a base, the working folder, and which files lie in it is *plain*: every sandbox that has the
base's programs can stand in for its image, once the files are laid over the working folder.  Anything else in it, a
``RUN`` first of all, makes an image that only a build can give.
"""

import posixpath
import shlex
from collections.abc import Mapping
from dataclasses import dataclass

from engine.environments.terminal.task_file import WORKING_FOLDERS
from sandboxes.images.dockerfile import instructions
from sandboxes.images.reference import ImageRefused

NAME = "Dockerfile"
UNBUILT = frozenset({NAME, ".dockerignore"})
"""Files beside those that a build may copy."""


@dataclass(frozen=True, slots=True)
class DockerfilePlan:
    """``copies`` leads from a path below ``environment/`` to one below the working folder; None: an image is needed."""

    copies: Mapping[str, str] | None
    needs: str = ""
    """The first line for which an image must be built."""


def plan_of(text: str, files: frozenset[str]) -> DockerfilePlan:
    """``files`` are those beside the Dockerfile, by their paths.  Raises ``ImageRefused`` for what is no Dockerfile."""
    copies: dict[str, str] = {}
    folder, stages = "", 0
    for line in instructions(text):
        verb, _, rest = line.partition(" ")
        words = _words(line, rest)
        match verb.upper():
            case "FROM" if stages == 0 and len(words) == 1:
                stages += 1
            case "WORKDIR" if len(words) == 1 and posixpath.normpath(words[0]) in WORKING_FOLDERS:
                folder = words[0]
            case "LABEL" | "MAINTAINER":
                continue
            case "COPY" if len(words) >= 2 and not words[0].startswith(("--", "[")):
                added = _copied(words[:-1], words[-1], folder, files)
                if added is None:
                    return DockerfilePlan(None, line)
                copies |= added
            case _:
                return DockerfilePlan(None, line)
    if stages == 0:
        raise ImageRefused(NAME, text[:80], "it names no base", "begin it with FROM")
    return DockerfilePlan(copies)


def _words(line: str, rest: str) -> list[str]:
    try:
        return shlex.split(rest)
    except ValueError as error:
        raise ImageRefused(NAME, line, f"this line cannot be read ({error})", "mend its quotes") from None


def _copied(sources: list[str], target: str, folder: str, files: frozenset[str]) -> dict[str, str] | None:
    """Where each file comes to lie below the working folder; None where that is not for certain."""
    if not folder and not target.startswith("/"):
        return None
    place = posixpath.normpath(posixpath.join(folder or "/", target))
    home = next((home for home in WORKING_FOLDERS if place == home or place.startswith(f"{home}/")), None)
    if home is None or any(mark in source for source in sources for mark in "*?["):
        return None
    inside = place.removeprefix(home).lstrip("/")
    copies: dict[str, str] = {}
    for source in sources:
        wanted = posixpath.normpath(source).lstrip("/")
        below = [file for file in files if wanted == "." or file.startswith(f"{wanted}/")]
        if wanted in files:
            into = target.endswith("/") or len(sources) > 1 or inside == ""
            copies[wanted] = posixpath.join(inside, posixpath.basename(wanted)) if into else inside
        elif below or wanted == ".":
            copies |= {file: posixpath.join(inside, posixpath.relpath(file, wanted)) for file in below}
        else:
            return None
    return copies
