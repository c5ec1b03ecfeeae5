"""``manage.py import_dataset`` does what the page does, and refuses in the same words."""

from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from webapp.accounts.models import AuditEntry, Team, User
from webapp.catalog.models import DatasetVersion

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _folders(settings: Any, tmp_path: Path) -> None:
    settings.PALESTRA_IMPORTS, settings.PALESTRA_DATASETS = tmp_path / "imports", tmp_path / "datasets"
    (tmp_path / "imports").mkdir()
    (tmp_path / "imports" / "q.jsonl").write_text('{"prompt": "x"}\n')


def test_a_file_is_imported_with_a_preparation_and_recorded(team: Team, bob: User, tmp_path: Path) -> None:
    (tmp_path / "p.toml").write_text('[mapping]\nprompt = "prompt"\n')
    call_command("import_dataset", "sums", "q.jsonl", team=team.slug, by=bob.email, preparation=tmp_path / "p.toml")
    version = DatasetVersion.objects.get()
    assert (version.state, version.preparation["mapping"]["prompt"]) == ("importing", "prompt")
    assert AuditEntry.objects.get(verb="dataset.import").user == bob


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"by": "victor@example.org"}, "no owner or member"),
        ({"team": "none"}, "no owner or member"),
        ({"folder": "../q.jsonl"}, "no such file or folder"),
        ({"name": "a name"}, "a dataset's name has"),
        ({"text": "[mapping]\n"}, "exactly one of prompt and messages"),
        ({"text": "no toml"}, "cannot be read as TOML"),
    ],
)
def test_what_is_refused_is_named(
    team: Team, bob: User, victor: User, tmp_path: Path, changed: dict[str, str], words: str
) -> None:
    (tmp_path / "p.toml").write_text(changed.get("text", '[mapping]\nprompt = "prompt"\n'))
    options = {"team": changed.get("team", team.slug), "by": changed.get("by", bob.email)}
    with pytest.raises(CommandError, match=words):
        call_command(
            "import_dataset", changed.get("name", "sums"), changed.get("folder", "q.jsonl"),
            preparation=tmp_path / "p.toml", **options,
        )  # fmt: skip
    assert not DatasetVersion.objects.exists()
