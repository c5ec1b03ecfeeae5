"""Packages that agents of others need, copied from where they are installed, with all that they depend on.

``PALESTRA_AGENT_PACKAGES`` names a folder that ``pip install --target`` has filled; without it they are looked for
beside the packages of the tests.
"""

import os
import re
import shutil
import sys
from importlib.metadata import distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement


def packages(folder: Path, *names: str, without: frozenset[str] = frozenset()) -> Path:
    """Copies the packages into ``folder``, and what they require but for ``without``.  Skips where one is not there."""
    searched = [named] if (named := os.environ.get("PALESTRA_AGENT_PACKAGES")) else sys.path
    found = {canonical(distribution.metadata["Name"]): distribution for distribution in distributions(path=searched)}
    for name in names:
        if name not in found:
            pytest.skip(f"{name} is not installed: pip install --target FOLDER {name}, PALESTRA_AGENT_PACKAGES=FOLDER")
    wanted, seen, copied = [Requirement(name) for name in names], set[tuple[str, str]](), set[str]()
    while wanted:
        requirement = wanted.pop()
        name = canonical(requirement.name)
        if name in without or name not in found:
            continue
        if name not in copied:
            copied.add(name)
            copy(found[name], folder)
        for extra in {"", *requirement.extras}:
            if (name, extra) not in seen:
                seen.add((name, extra))
                wanted.extend(required(found[name], extra))
    return folder


def required(distribution, extra: str) -> list[Requirement]:
    """What the package asks for on this machine; with an extra also what the extra adds."""
    requirements = [Requirement(line) for line in distribution.requires or []]
    return [one for one in requirements if one.marker is None or one.marker.evaluate({"extra": extra})]


def copy(distribution, folder: Path) -> None:
    for file in distribution.files or []:
        source = Path(str(distribution.locate_file(file)))
        if ".." in file.parts or source.suffix == ".pyc" or not source.is_file():
            continue
        target = folder / str(file)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
