"""What somebody who opens the repository expects to find."""

import re
import tomllib
from pathlib import Path

import pytest

from devtools.__main__ import _parser
from webapp.vendored import _FILES

ROOT = Path(__file__).resolve().parent.parent
PAGES = ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")


def test_it_has_a_license_and_names_what_it_serves_of_others() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["license"] == "Apache-2.0"
    assert "Apache License" in (ROOT / "LICENSE").read_text()
    assert all((ROOT / name).exists() for name in project["license-files"])
    notice = (ROOT / "NOTICE").read_text()
    assert all(path.rpartition("/")[2] in notice and package in notice for path, (package, _) in _FILES.items())


def test_the_version_has_a_changelog_entry_and_a_release_note() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert f"## [{version}]" in (ROOT / "CHANGELOG.md").read_text()
    assert version in (ROOT / "docs" / "releases" / f"{version}.md").read_text()


@pytest.mark.parametrize("page", [*PAGES, *(f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("*.md")))])
def test_links_lead_somewhere(page: str) -> None:
    file = ROOT / page
    links = re.findall(r"\]\(([^)\s]+)\)", file.read_text())
    local = [link.partition("#")[0] for link in links if not re.match(r"[a-z]+:", link)]
    assert [link for link in local if link and not (file.parent / link).exists()] == []


@pytest.mark.parametrize("page", PAGES[:3])
def test_commands_that_pages_name_exist(page: str) -> None:
    _, verbs = _parser()
    known = {*verbs, "help"}
    assert set(re.findall(r"\./dev ([a-z]+)", (ROOT / page).read_text())) <= known


def test_the_readme_opens_with_two_pictures() -> None:
    text = (ROOT / "README.md").read_text()
    opening = text[: text.index("## ")]
    for name in ("run.png", "alert.png"):
        assert f"](docs/pictures/{name})" in opening
        assert (ROOT / "docs" / "pictures" / name).read_bytes().startswith(b"\x89PNG")
