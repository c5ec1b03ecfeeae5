"""A dataset of a team is stored, looked at, mapped, read row by row in a process of its own, and published whole."""

# ruff: noqa: E402 - models can be imported only after the setup
import hashlib
import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine.environments import dataset_reader
from engine.spec.dataset_preparation import Duplicates, Preparation
from tests.engine.datasets.sources import SUMS as ROWS
from tests.engine.datasets.sources import json_lines, with_faults
from tests.engine.models.folders import folder_of
from tests.workers.secret_variables import OF_ENGINES, SERVICES, give_all
from webapp import queue
from webapp.accounts.models import AuditEntry, Team, User
from webapp.accounts.services import create_team
from webapp.catalog import uploads
from webapp.catalog.dataset_versions import compare_datasets, measure_lengths, prepare_dataset
from webapp.catalog.imports import import_dataset, import_folder
from webapp.catalog.models import DatasetVersion, ModelVersion, UploadKind, UploadPart
from webapp.catalog.stored_versions import cancel_stored
from webapp.catalog.uploads import begin_upload, complete_dataset_upload, put_part
from webapp.refusals import Invalid, Refused
from webapp.runs.dependents import delete_unneeded
from workers import dataset_store, engine_process, model_tidy
from workers.dataset_measurements import measure_dataset
from workers.dataset_store import store_dataset
from workers.model_store import store_model
from workers.reconcile import resend_lost_messages_about_datasets

pytestmark = pytest.mark.django_db
Sent = list[tuple[str, tuple[str, ...]]]
Uploaded = Callable[..., DatasetVersion]
QUESTIONS = Preparation.model_validate({"mapping": {"prompt": "prompt", "answer": "answer"}})


@pytest.fixture
def team(user: User) -> Team:
    return create_team("Blue", acting_user=user)


@pytest.fixture(autouse=True)
def _folders(tmp_path: Path, settings: Any) -> None:
    settings.PALESTRA_IMPORTS, settings.PALESTRA_MODELS = tmp_path / "imports", tmp_path / "models"
    settings.PALESTRA_DATASETS = tmp_path / "datasets"
    settings.PALESTRA_IMPORTS.mkdir()


@pytest.fixture
def work(sent: Sent) -> Callable[[], None]:
    """Carry out messages until there are no more."""
    tasks = {
        queue.STORE_DATASET: store_dataset,
        queue.REMOVE_DATASET: model_tidy.remove_dataset,
        queue.MEASURE_DATASET: measure_dataset,
        queue.STORE_MODEL: store_model,
    }

    def carry_out() -> None:
        while sent:
            name, arguments = sent.pop(0)
            if name in tasks:
                tasks[name](*arguments)

    return carry_out


@pytest.fixture
def uploaded(team: Team, user: User, work: Callable[[], None]) -> Uploaded:
    """Uploads files, and does what workers do with them."""

    def make(
        files: dict[str, bytes], preparation: Preparation | None = QUESTIONS, name: str = "questions"
    ) -> DatasetVersion:
        announced = [{"name": file, "bytes": len(content)} for file, content in files.items()]
        upload = begin_upload(team, name, announced, acting_user=user, kind=UploadKind.DATASET)
        for place, content in enumerate(files.values()):
            for number in range(uploads.parts_of(len(content))):
                part = content[number * uploads.PART_BYTES :][: uploads.PART_BYTES]
                put_part(upload, place, number, hashlib.sha256(part).hexdigest(), io.BytesIO(part))
        version = complete_dataset_upload(upload, preparation, acting_user=user)
        work()
        version.refresh_from_db()
        return version

    return make


def test_seven_faults_of_2000_lines_are_reported_at_once_and_the_repaired_file_is_published(uploaded: Uploaded) -> None:
    whole = json_lines(ROWS).splitlines()
    broken = uploaded({"q.jsonl": b"\n".join(with_faults(whole))})
    assert (broken.state, broken.number) == ("failed", None)
    assert broken.report["faults"] == 7
    found = [(fault["line"], fault["column"]) for fault in broken.report["shown_faults"]]
    assert found == [(11, ""), (301, "prompt"), (701, "prompt"), (1101, ""), (1501, ""), (1701, ""), (2000, "answer")]
    assert all(fault["message"] and fault["remedy"] for fault in broken.report["shown_faults"])
    assert "line 11" in broken.problem["message"]
    assert not broken.storage.root.joinpath(str(broken.team.id), "0" * 64).exists()
    repaired = uploaded({"q.jsonl": b"\n".join(whole)})
    assert (repaired.state, str(repaired), repaired.rows) == ("ready", "questions@1", 2000)
    with dataset_reader.open(repaired.folder) as reader:
        assert reader.len("train") == 2000
        assert [row.prompt for row in reader.rows("train")] == [row["prompt"] for row in ROWS]
    manifest = (repaired.folder / "dataset.json").read_bytes()
    assert hashlib.sha256(manifest).hexdigest() == repaired.sha256 == repaired.folder.name
    assert not repaired.partial_folder.exists()
    assert not UploadPart.objects.exists()


def test_a_version_waits_for_a_mapping_and_takes_another_one_after_a_fault(
    uploaded: Uploaded, user: User, work: Callable[[], None]
) -> None:
    version = uploaded({"q.csv": b"question,final_answer\nWhat is it?,42\nAnd then?,\n"}, None)
    assert version.state == "mapping"
    assert version.source_report["mapping"]["prompt"] == "question"
    assert version.source_report["mapping"]["answer"] == "final_answer"
    assert version.source_report["rows"] == [["What is it?", "42"], ["And then?", ""]]
    wrong = Preparation.model_validate({"mapping": {"prompt": "quest"}})
    prepare_dataset(version, wrong, acting_user=user)
    work()
    version.refresh_from_db()
    assert version.state == "failed"
    assert "quest" in version.report["shown_faults"][-1]["column"]
    prepare_dataset(version, Preparation.model_validate({"mapping": {"prompt": "question"}}), acting_user=user)
    work()
    version.refresh_from_db()
    assert (version.state, version.rows, version.problem, version.report["faults"]) == ("ready", 2, None, 0)
    with pytest.raises(Refused):
        prepare_dataset(version, wrong, acting_user=user)


def test_equal_content_is_the_same_version_and_another_content_the_next(uploaded: Uploaded) -> None:
    first, again = uploaded({"q.jsonl": json_lines(ROWS[:3])}), uploaded({"q.jsonl": json_lines(ROWS[:3])})
    second = uploaded({"q.jsonl": json_lines(ROWS[:4])})
    assert (str(first), again.state, again.same_as, str(second)) == ("questions@1", "same", first, "questions@2")


def test_a_slice_ends_in_the_middle_and_the_next_one_goes_on(
    uploaded: Uploaded, monkeypatch: pytest.MonkeyPatch
) -> None:
    slices: list[int] = []
    output_of = dataset_store.output_of

    def counted(arguments: list[str], **limits: Any) -> bytes:
        slices.append(1)
        return output_of([*arguments[:-1], "0"] if "--seconds" in arguments else arguments, **limits)

    monkeypatch.setattr(dataset_store, "output_of", counted)
    plain = QUESTIONS.model_copy(update={"duplicates": Duplicates(similarity=None)})
    version = uploaded({"q.jsonl": json_lines(ROWS[:2])}, plain)
    assert (version.state, version.rows) == ("ready", 2)
    assert len(slices) == 4, "the first rows are looked at; then a slice for each row, and one for the rest"


def test_a_message_that_was_lost_is_sent_again(team: Team, user: User, sent: Sent, settings: Any) -> None:
    (settings.PALESTRA_IMPORTS / "q.jsonl").write_bytes(json_lines(ROWS[:2]))
    version = import_dataset(team, "q", "q.jsonl", acting_user=user)
    lost = sent.pop()
    DatasetVersion.objects.update(heartbeat_at="2020-01-01T00:00Z")
    resend_lost_messages_about_datasets()
    assert sent == [lost]
    store_dataset(*lost[1])
    sent.clear()
    store_dataset(*lost[1])  # late: it names work that is done
    version.refresh_from_db()
    assert (version.state, sent) == ("inspecting", [])


@pytest.mark.parametrize(
    ("step", "is_done"), [("fsync", False), ("_move", False), ("_move", True), ("forget_upload", True)]
)
def test_an_import_that_is_killed_at_its_end_is_brought_to_it_by_the_next_message(
    uploaded: Uploaded, work: Callable[[], None], monkeypatch: pytest.MonkeyPatch, step: str, is_done: bool
) -> None:
    class Killed(BaseException):
        pass

    carry_out = getattr(dataset_store, step)

    def killed(*arguments: Any) -> None:
        if is_done:
            carry_out(*arguments)
        raise Killed

    with monkeypatch.context() as killing:
        killing.setattr(dataset_store, step, killed)
        with pytest.raises(Killed):
            uploaded({"a.jsonl": json_lines(ROWS[:2]), "b.jsonl": json_lines(ROWS[2:4])})
    DatasetVersion.objects.update(heartbeat_at="2020-01-01T00:00Z")
    resend_lost_messages_about_datasets()
    work()
    version = DatasetVersion.objects.get()
    assert (version.state, version.rows, version.problem) == ("ready", 4, None)
    assert not UploadPart.objects.exists()


def test_a_process_that_needs_too_much_memory_is_a_fault_and_not_the_workers_end(
    uploaded: Uploaded, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dataset_store, "READER_BYTES", 2**20)
    version = uploaded({"q.jsonl": json_lines(ROWS[:2])})
    assert version.state == "failed"
    assert "reading the files failed" in version.problem["message"]


def test_the_reading_process_has_no_secret_of_the_service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    give_all(monkeypatch)
    monkeypatch.setattr(engine_process.sys, "executable", str(tmp_path / "python"))
    (tmp_path / "python").write_text("#!/bin/sh\nenv\n")
    (tmp_path / "python").chmod(0o700)
    names = {
        line.partition("=")[0] for line in engine_process.output_of([], seconds=60, most_bytes=2**30).decode().split()
    }
    assert "PATH" in names
    assert not names & {"PALESTRA_SECRET_KEY", "DATABASE_URL", "REDIS_URL"}
    assert not names & (SERVICES | OF_ENGINES)


def test_cancelling_removes_what_was_stored(team: Team, user: User, work: Any, sent: Sent, settings: Any) -> None:
    (settings.PALESTRA_IMPORTS / "q.jsonl").write_bytes(json_lines(ROWS[:2]))
    version = import_dataset(team, "q", "q.jsonl", QUESTIONS, acting_user=user)
    store_dataset(*sent.pop()[1])
    version.refresh_from_db()
    cancel_stored(version, acting_user=user)
    work()
    version.refresh_from_db()
    assert (version.state, version.partial_folder.exists()) == ("cancelled", False)
    with pytest.raises(Refused):
        cancel_stored(version, acting_user=user)


def test_a_folder_is_imported_without_the_files_that_are_no_rows(
    team: Team, user: User, work: Any, settings: Any
) -> None:
    folder = settings.PALESTRA_IMPORTS / "sums"
    folder.mkdir()
    (folder / "train.jsonl").write_bytes(json_lines(ROWS[:3]))
    (folder / "heldout.csv").write_bytes(b"prompt,answer\nHow many legs has a spider?,8\n")
    (folder / "README.md").write_text("not rows")
    by_file = Preparation.model_validate(
        {"mapping": {"prompt": "prompt", "answer": "answer"}, "splitting": {"kind": "file"}}
    )
    version = import_dataset(team, "sums", "sums", by_file, acting_user=user)
    work()
    version.refresh_from_db()
    assert [(split["name"], split["rows"]) for split in version.splits] == [("heldout", 1), ("train", 3)]


@pytest.mark.parametrize("path", ["../x", "/etc", "", ".", "nothing", "outside"])
def test_nothing_outside_of_the_import_root_is_imported(team: Team, user: User, settings: Any, path: str) -> None:
    os.symlink("/etc", settings.PALESTRA_IMPORTS / "outside")
    with pytest.raises(Invalid) as refused:
        import_dataset(team, "q", path, acting_user=user)
    assert refused.value.problems[0].field == "folder"


def test_a_link_within_a_folder_that_leads_out_of_the_root_is_refused(
    team: Team, user: User, work: Any, settings: Any
) -> None:
    folder = settings.PALESTRA_IMPORTS / "sums"
    folder.mkdir()
    os.symlink("/etc/passwd", folder / "train.jsonl")
    version = import_dataset(team, "sums", "sums", acting_user=user)
    work()
    version.refresh_from_db()
    assert version.state == "failed"
    assert "leads out of the folder" in version.problem["message"]


def test_two_versions_are_compared_by_their_ids(uploaded: Uploaded, user: User, work: Any) -> None:
    by_id = Preparation.model_validate({"mapping": {"id": "id", "prompt": "prompt"}})
    rows = [{"id": str(n), "prompt": f"question {n}"} for n in range(6)]
    before = uploaded({"q.jsonl": json_lines(rows)}, by_id)
    changed = [rows[0], rows[1] | {"prompt": "another"}, *rows[3:], {"id": "new", "prompt": "new"}]
    after = uploaded({"q.jsonl": json_lines(changed)}, by_id)
    measurement = compare_datasets(after, before, acting_user=user)
    assert compare_datasets(after, before, acting_user=user) == measurement, "it is not computed twice"
    work()
    measurement.refresh_from_db()
    report = measurement.report
    assert {kind: report[kind] for kind in ("added", "removed", "changed", "same", "moved")} == {
        "added": 1, "removed": 1, "changed": 1, "same": 4, "moved": 0,
    }  # fmt: skip
    assert [row["id"] for row in report["samples_added"]] == ["new"]
    assert [row["id"] for row in report["samples_removed"]] == ["2"]
    assert report["samples_changed"][0]["before"]["prompt"] == "question 1"
    assert report["samples_changed"][0]["after"]["prompt"] == "another"


def test_lengths_are_counted_under_a_models_tokenizer_in_slices(
    uploaded: Uploaded, team: Team, user: User, work: Any, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    import shutil

    from engine.models.pretrained_tokenizer import PretrainedTokenizer

    shutil.copytree(folder_of("qwen3"), settings.PALESTRA_IMPORTS / "qwen")
    model = import_folder(team, "qwen", "qwen", acting_user=user)
    work()
    model = ModelVersion.objects.select_related("model").get(id=model.id)
    version = uploaded({"q.jsonl": json_lines(ROWS[:3])})
    monkeypatch.setattr("workers.dataset_measurements.SLICE_S", 0.0)
    measurement = measure_lengths(version, model, acting_user=user)
    work()
    measurement.refresh_from_db()
    tokenizer = PretrainedTokenizer(folder_of("qwen3"))
    lengths = sorted(len(tokenizer.encode(row["prompt"])) for row in ROWS[:3])
    (split,) = measurement.report["splits"]
    assert (split["rows"], split["most"], split["percentiles"][0]) == (3, lengths[-1], lengths[1])
    assert split["mean"] == pytest.approx(sum(lengths) / 3)
    assert sum(split["bins"]) == 3


def test_deleting_removes_the_files_and_never_gives_the_number_again(uploaded: Uploaded, user: User, work: Any) -> None:
    first = uploaded({"q.jsonl": json_lines(ROWS[:3])})
    folder = first.folder
    delete_unneeded(first, acting_user=user)
    work()
    assert not folder.exists()
    assert str(uploaded({"q.jsonl": json_lines(ROWS[:4])})) == "questions@2"
    assert AuditEntry.objects.filter(verb="dataset.delete").get().details["name"] == "questions@1"


def test_tidying_gives_up_files_that_waited_too_long_and_keeps_the_others(
    uploaded: Uploaded, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_tidy, "OLD_S", -10.0)
    ready = uploaded({"q.jsonl": json_lines(ROWS[:3])})
    waiting = uploaded({"q.jsonl": json_lines(ROWS[:4])}, None)
    model_tidy.tidy_models()
    assert ready.folder.is_dir()
    assert waiting.partial_folder.is_dir()
    DatasetVersion.objects.filter(id=waiting.id).update(state_since="2020-01-01T00:00Z")
    model_tidy.tidy_models()
    waiting.refresh_from_db()
    assert (waiting.state, waiting.partial_folder.exists()) == ("cancelled", False)
    assert ready.folder.is_dir()


def test_a_report_can_be_stored_whatever_the_rows_hold(uploaded: Uploaded) -> None:
    version = uploaded({"q.jsonl": b'{"prompt": "a\\u0000b", "\\ud800": 1}\n{"prompt": "\\ud800"}\n'})
    assert version.state == "failed"
    words = ["no name of 1 to 300 characters", "half of a surrogate pair", "no row has this column"]
    found = [fault["message"] for fault in version.report["shown_faults"]]
    assert [word in message for word, message in zip(words, found, strict=True)] == [True] * 3
