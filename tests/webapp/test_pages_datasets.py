"""The pages of datasets: what stands on them, who may press what, and that nothing of a stranger's file is markup."""

from pathlib import Path
from typing import Any

import pytest
from django.test import Client

from tests.webapp.datasets import ROWS, SOURCE, ready_dataset, waiting_dataset
from tests.webapp.models import ready_version
from webapp.accounts.models import Team, User
from webapp.catalog.models import DatasetVersion, Measurement

pytestmark = pytest.mark.django_db
HOSTILE = '<script>alert("x")</script>'


@pytest.fixture(autouse=True)
def _folders(settings: Any, tmp_path: Path) -> None:
    settings.PALESTRA_MODELS, settings.PALESTRA_IMPORTS = tmp_path / "models", tmp_path / "imports"
    settings.PALESTRA_DATASETS = tmp_path / "datasets"
    (tmp_path / "imports" / "sums").mkdir(parents=True)
    (tmp_path / "imports" / "sums" / "train.jsonl").write_text('{"prompt": "x"}\n')


def signed_in(user: User) -> Client:
    client = Client()
    client.force_login(user)
    return client


def text_of(client: Client, path: str, status: int = 200, **options: Any) -> str:
    answer = client.get(path, **options)
    assert answer.status_code == status
    return answer.content.decode()


def page(version: DatasetVersion, tab: str = "about") -> str:
    return f"/datasets/versions/{version.id}/?tab={tab}"


def test_an_empty_list_says_what_to_do_and_to_whom(team: Team, alice: User, victor: User) -> None:
    assert "Add a dataset" in text_of(signed_in(alice), "/datasets/")
    assert "An owner or member of your team can do that" in text_of(signed_in(victor), "/datasets/")


def test_the_list_shows_versions_and_what_was_wrong(team: Team, alice: User) -> None:
    ready_dataset(team)
    waiting_dataset(team, state="failed", problem={"message": "the files have 7 faults", "field": "files"})
    text = text_of(signed_in(alice), "/datasets/")
    assert "sums@1" in text
    assert "the files have 7 faults" in text


def test_faults_stand_on_the_page_with_line_column_and_remedy_and_without_markup(team: Team, alice: User) -> None:
    fault = {
        "file": "q.jsonl",
        "line": 11,
        "column": HOSTILE,
        "value": HOSTILE,
        "message": "no text",
        "remedy": "mend it",
    }
    source = SOURCE | {"rows": [[HOSTILE, HOSTILE]]}
    version = waiting_dataset(
        team, state="failed", source_report=source, problem={"message": "x", "field": "files", "remedy": "y"},
        report={"faults": 1500, "shown_faults": [fault], "duplicates": {}},
    )  # fmt: skip
    text = text_of(signed_in(alice), page(version))
    assert "1,500 faults; nothing was published" in text
    assert "No text" in text
    assert '<td class="num">11</td>' in text
    assert HOSTILE not in text


def test_the_mapping_begins_with_the_guess_and_is_taken(team: Team, alice: User, victor: User) -> None:
    version = waiting_dataset(team)
    client, path = signed_in(alice), f"/datasets/versions/{version.id}/prepare"
    text = text_of(client, page(version))
    assert "Which column is what?" in text
    assert "<option selected>prompt</option>" in text
    assert "&lt;b&gt;What?&lt;/b&gt;" in text
    assert "Which column is what?" not in text_of(signed_in(victor), page(version))
    assert signed_in(victor).post(path, {}).status_code == 403
    both = client.post(path, {"column-prompt": "prompt", "column-messages": "answer"})
    assert both.status_code == 422
    assert "exactly one of prompt and messages" in both.content.decode()
    bad = client.post(
        path, {"column-prompt": "prompt", "splitting": "share", "heldout": "<b>", "seed": "x", "similarity": "7"}
    )
    assert bad.status_code == 422
    shown = bad.content.decode()
    assert all(field in shown for field in ("splitting.seed", "splitting.splits", "duplicates.similarity"))
    taken = client.post(path, {"column-prompt": "prompt", "splitting": "share", "heldout": "10", "seed": "3",
                               "across": "drop", "similarity": "", "metadata-keys": ["answer"]})  # fmt: skip
    assert taken.status_code == 302
    version.refresh_from_db()
    assert version.state == "preparing"
    assert version.preparation["splitting"] == {
        "kind": "share", "seed": 3, "splits": [{"name": "train", "share": 0.9}, {"name": "heldout", "share": 0.1}],
    }  # fmt: skip
    assert version.preparation["duplicates"] == {"across_splits": "drop", "similarity": None}
    assert version.preparation["mapping"]["metadata_keys"] == ["answer"]


def test_every_tab_of_a_ready_version_shows_what_is_there(team: Team, alice: User, charlie: User) -> None:
    version, other = ready_dataset(team), ready_dataset(team, rows=[*ROWS[:3], {"prompt": HOSTILE}])
    model = ready_version(team)
    client = signed_in(alice)
    assert "dataset.catalog = &quot;sums@1&quot;" in text_of(client, page(version)).replace('"', "&quot;")
    assert ROWS[3]["prompt"] in text_of(client, page(version, "rows"))
    assert HOSTILE not in text_of(client, page(other, "rows"))
    assert "No row asks the same" in text_of(client, page(version, "duplicates"))
    assert "Nothing was counted yet" in text_of(client, page(version, "lengths"))
    assert "compared with no other version yet" in text_of(client, page(version, "differences"))
    begun = client.post(f"/datasets/versions/{version.id}/lengths", {"model": model.id})
    assert begun.status_code == 302
    client.post(f"/datasets/versions/{version.id}/compare", {"before": other.id})
    assert Measurement.objects.count() == 2
    assert "0 of 30 rows" in text_of(client, page(version, "lengths"))
    report = {
        "splits": [{"split": "train", "rows": 30, "most": 12, "mean": 8.5, "percentiles": [8, 10, 11, 12], "bins": []}]
    }
    Measurement.objects.filter(kind="lengths").update(report=report)
    row = {"id": "a", "split": "train", "before": {"prompt": HOSTILE}, "after": {"prompt": "new"}}
    difference = {"added": 0, "removed": 0, "changed": 1, "moved": 0, "same": 29, "samples_added": [],
                  "samples_removed": [], "samples_changed": [row]}  # fmt: skip
    Measurement.objects.filter(kind="difference").update(report=difference)
    assert "8.5" in text_of(client, page(version, "lengths"))
    assert HOSTILE not in text_of(client, page(version, "differences"))
    text_of(signed_in(charlie), page(version), 404)
    assert client.post(f"/datasets/versions/{version.id}/lengths", {"model": "x"}).status_code == 302


def test_a_search_on_the_page_says_how_far_it_looked(team: Team, alice: User) -> None:
    version, client = ready_dataset(team), signed_in(alice)
    assert "None of the 30 rows" in text_of(client, page(version, "rows") + "&q=nowhere")
    assert "How much is 7 plus 7?" in text_of(client, page(version, "rows") + "&q=7+PLUS")
    assert "no split" in text_of(client, page(version, "rows") + "&split=none")


def test_a_version_is_deleted_by_its_name(team: Team, alice: User) -> None:
    version, client = ready_dataset(team), signed_in(alice)
    path = f"/datasets/versions/{version.id}/delete"
    assert client.post(path, {"name": "other"}, follow=True).status_code == 200
    assert DatasetVersion.objects.exists()
    assert "sums@1 is deleted" in client.post(path, {"name": "sums@1"}, follow=True).content.decode()
    assert not DatasetVersion.objects.exists()


def test_importing_and_refusals_stand_at_their_fields(team: Team, alice: User, victor: User) -> None:
    client = signed_in(alice)
    assert "sums" in text_of(client, "/datasets/new")
    wrong = client.post("/datasets/import", {"name": "no name", "folder": "../x"})
    assert wrong.status_code == 422
    assert "no such file or folder" in wrong.content.decode()
    done = client.post("/datasets/import", {"name": "sums", "folder": "sums"})
    version = DatasetVersion.objects.get()
    assert done.headers["Location"] == f"/datasets/versions/{version.id}/"
    assert "are stored" in text_of(client, page(version))
    assert client.post(f"/datasets/versions/{version.id}/cancel").status_code == 302
    version.refresh_from_db()
    assert version.cancel_asked
    assert signed_in(victor).post("/datasets/import", {"name": "sums", "folder": "sums"}).status_code == 403
