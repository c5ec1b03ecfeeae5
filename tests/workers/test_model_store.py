"""A version of a model is stored piece by piece, checked by the engine, and published whole."""

# ruff: noqa: E402 - models can be imported only after the setup
import hashlib
import io
import json
import os
import shutil
import tarfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest
from django.utils import timezone
from safetensors.torch import load_file, save_file

from engine.launch.job import launch_from_file
from engine.models.catalog import catalog_folder
from engine.models.refusal import ModelFolderRefused
from engine.spec.model_files import MANIFEST, CatalogFolder
from engine.spec.model_report import ModelReport
from engine.spec.run import RunSpec
from tests.engine.models.folders import folder_of
from tests.webapp.models import judged_by
from tests.workers.secret_variables import OF_ENGINES, SERVICES, give_all
from webapp import queue
from webapp.accounts.models import Team, User
from webapp.accounts.services import create_team
from webapp.catalog import uploads
from webapp.catalog.imports import import_folder, importable
from webapp.catalog.models import Model, ModelVersion, Upload, UploadPart
from webapp.catalog.stored_versions import cancel_stored
from webapp.catalog.uploads import begin_upload, complete_upload, put_part
from webapp.catalog.versions import bytes_of
from webapp.library.services import delete_version, promote_checkpoint
from webapp.refusals import Invalid, Refused
from webapp.runs.services import submit_run
from workers import engine_process, model_store, model_tidy, sources, stored_pieces, version_work
from workers.model_store import store_model
from workers.reconcile import resend_lost_messages_about_models

pytestmark = pytest.mark.django_db
Sent = list[tuple[str, tuple[str, ...]]]


@pytest.fixture
def team(user: User) -> Team:
    return create_team("Blue", acting_user=user)


@pytest.fixture
def root(tmp_path: Path, settings: Any) -> Path:
    """The import root, with the model ``qwen``."""
    settings.PALESTRA_IMPORTS, settings.PALESTRA_MODELS = tmp_path / "imports", tmp_path / "models"
    settings.PALESTRA_RUNS = tmp_path / "runs"
    shutil.copytree(folder_of("qwen3"), settings.PALESTRA_IMPORTS / "qwen")
    return tmp_path / "imports"


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(stored_pieces, "PIECE_BYTES", 4096)
    return 4096


@pytest.fixture
def work(sent: Sent) -> Callable[[], None]:
    """Carry out messages until there are no more."""

    def carry_out() -> None:
        while sent:
            name, arguments = sent.pop(0)
            if name == queue.STORE_MODEL:
                store_model(*arguments)
            elif name == queue.REMOVE_MODEL:
                model_tidy.remove_model(*arguments)

    return carry_out


@pytest.fixture
def imported(team: Team, user: User, root: Path, work: Callable[[], None]) -> Callable[..., ModelVersion]:
    def make(path: str = "qwen", name: str = "qwen") -> ModelVersion:
        version = import_folder(team, name, path, acting_user=user)
        work()
        version.refresh_from_db()
        return version

    return make


Imported = Callable[..., ModelVersion]


def reported(version: ModelVersion) -> str:
    assert version.state == "failed", version.state
    problem = version.problem
    assert problem is not None
    assert problem["field"]
    assert problem["remedy"]
    return f"{problem['value']} {problem['message']}"


@contextmanager
def sealed(folder: Path, name: str) -> Iterator[Path]:
    """A further file in the folder, for as long."""
    (folder / name).write_bytes(b"x")
    yield folder / name
    (folder / name).unlink()


def test_a_folder_below_the_root_becomes_a_version_with_what_the_engine_says_of_it(
    imported: Imported, root: Path
) -> None:
    (root / "qwen" / "LICENSE").write_text("Do as you like.")
    (root / "qwen" / ".gitattributes").write_text("left out")
    version = imported()
    assert (version.state, version.problem, str(version)) == ("ready", None, "qwen@1")
    assert (version.architecture, version.dtype, version.template_name) == ("Qwen3ForCausalLM", "float32", "hermes")
    assert version.context_tokens == 1024
    assert version.parameters
    assert version.licence_text == "Do as you like."
    stored = {path.name for path in version.folder.iterdir()}
    assert stored == {path.name for path in (root / "qwen").iterdir()} - {".gitattributes"} | {MANIFEST}
    for path in version.folder.iterdir():
        if path.name != MANIFEST:
            assert path.read_bytes() == (root / "qwen" / path.name).read_bytes()


def test_the_version_is_the_hash_of_its_manifest_and_the_engine_finds_it_by_that(
    imported: Imported, team: Team
) -> None:
    version = imported()
    assert hashlib.sha256((version.folder / MANIFEST).read_bytes()).hexdigest() == version.sha256
    pinned = CatalogFolder(version=str(version), team=str(team.id), sha256=version.sha256)
    assert catalog_folder(version.folder.parents[2], pinned) == version.folder


@pytest.mark.parametrize("how", ["changed", "cut", "gone", "manifest"])
def test_a_file_that_is_not_what_was_stored_is_named(imported: Imported, team: Team, how: str) -> None:
    version = imported()
    pinned = CatalogFolder(version=str(version), team=str(team.id), sha256=version.sha256)
    file = version.folder / (MANIFEST if how == "manifest" else "tokenizer.json")
    file.chmod(0o600)
    match how:
        case "changed" | "manifest":
            file.write_bytes(file.read_bytes().replace(b"a", b"b", 1))
        case "cut":
            os.truncate(file, 10)
        case "gone":
            file.unlink()
    with pytest.raises(ModelFolderRefused, match=file.name) as refused:
        catalog_folder(version.folder.parents[2], pinned)
    assert refused.value.problem.field == "model.catalog"


def test_the_same_content_again_is_the_same_version(imported: Imported) -> None:
    first, second = imported(), imported()
    assert (second.state, second.number, second.same_as) == ("same", None, first)
    other = imported(name="other")
    assert (other.state, other.number, other.folder) == ("ready", 1, first.folder)


def test_another_content_is_the_next_version(imported: Imported, root: Path) -> None:
    first = imported()
    (root / "qwen" / "README.md").write_text("changed")
    second = imported()
    assert (first.number, second.number) == (1, 2)
    assert first.sha256 != second.sha256


@pytest.mark.parametrize("path", ["..", "../imports", "/etc", "none", "", ".", "qwen/config.json", "out", "a\0b"])
def test_nothing_but_a_folder_below_the_root_is_imported(team: Team, user: User, root: Path, path: str) -> None:
    (root / "out").symlink_to("/etc")
    with pytest.raises(Invalid) as refused:
        import_folder(team, "x", path, acting_user=user)
    assert refused.value.problems[0].field == "folder"
    assert "qwen" in refused.value.problems[0].remedy
    assert importable() == ["qwen"]


def test_a_link_within_the_root_is_followed_and_one_that_leads_out_is_not(imported: Imported, root: Path) -> None:
    (root / "blobs").mkdir()
    (root / "qwen" / "config.json").rename(root / "blobs" / "1")
    (root / "qwen" / "config.json").symlink_to("../blobs/1")
    assert imported().state == "ready"
    secret = root.parent / "secret.txt"
    secret.write_text("secret")
    (root / "qwen" / "notes.txt").symlink_to(secret)
    version = imported()
    assert "notes.txt leads out" in reported(version)
    assert not list(root.parent.rglob(f".partial-{version.id}"))


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("pytorch_model.bin", "pickled"), ("MODEL.PT", "pickled"), ("modeling_x.py", "code"), ("libx.so", "code"),
        ("photo.png", "no file of a model folder"), ("a b.json", "no name"), ("é.json", "no name"),
    ],
)  # fmt: skip
def test_pickled_weights_code_and_strange_files_are_refused_by_name(
    imported: Imported, root: Path, name: str, why: str
) -> None:
    with sealed(root / "qwen", name):
        text = reported(imported())
    assert why in text
    assert name in text


def test_a_folder_in_the_folder_and_a_fifo_are_refused(imported: Imported, root: Path) -> None:
    (root / "qwen" / "original").mkdir()
    assert "original is a folder" in reported(imported())
    (root / "qwen" / "original").rmdir()
    os.mkfifo(root / "qwen" / "x.json")
    assert "x.json is no plain file" in reported(imported())


def test_a_damaged_file_is_named_and_nothing_is_left_of_it(imported: Imported, root: Path, team: Team) -> None:
    os.truncate(root / "qwen" / "model.safetensors", 1000)
    version = imported()
    assert "model.safetensors: is damaged" in reported(version)
    assert not [path for path in (root.parent / "models").rglob("*") if path.is_file()]
    assert bytes_of(team) == 0
    assert Model.objects.get().last_number == 0


def test_weights_that_are_no_numbers_are_named_and_never_published(imported: Imported, root: Path) -> None:
    file = root / "qwen" / "model.safetensors"
    weights = load_file(file)
    weights["model.norm.weight"][0] = float("nan")
    save_file(weights, file, metadata={"format": "pt"})
    assert "model.safetensors: model.norm.weight holds NaN" in reported(imported())
    assert Model.objects.get().last_number == 0


def test_weights_are_read_in_slices_to_their_end(imported: Imported, root: Path, monkeypatch: Any) -> None:
    asked, engine_report = list[int](), model_store.engine_report

    def first_slice(folder: Path, *, after_bytes: int) -> ModelReport:
        asked.append(after_bytes)
        report = engine_report(folder, after_bytes=after_bytes)
        assert report.bytes_read == report.weight_bytes > 8192
        return report.model_copy(update={"bytes_read": after_bytes + 4096}) if len(asked) < 3 else report

    monkeypatch.setattr(model_store, "engine_report", first_slice)
    version = imported()
    assert (version.state, asked) == ("ready", [0, 4096, 8192])
    assert version.bytes_done == version.bytes


def test_a_template_that_never_ends_is_refused(imported: Imported, root: Path) -> None:
    endless = "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}"
    (root / "qwen" / "chat_template.jinja").write_text(endless)
    assert "template" in reported(imported())


@pytest.mark.parametrize(
    ("limit", "value", "why"), [("CHECK_S", 0.2, "took more than"), ("CHECK_BYTES", 2**20, "failed")]
)
def test_a_check_that_takes_too_much_is_a_refusal(
    imported: Imported, monkeypatch: Any, limit: str, value: float, why: str
) -> None:
    if limit == "CHECK_S":
        monkeypatch.setattr(engine_process, "_limit", lambda *_: None)
    monkeypatch.setattr(model_store, limit, value)
    assert why in reported(imported())


def test_the_check_has_no_secret_of_the_service(root: Path, monkeypatch: Any) -> None:
    give_all(monkeypatch)
    written = root / "environment"
    monkeypatch.setattr(engine_process.sys, "executable", str(root / "python"))
    (root / "python").write_text(f"#!/bin/sh\nenv > {written}\n")
    (root / "python").chmod(0o700)
    with pytest.raises(sources.SourceRefused):
        model_store.engine_report(root / "qwen")
    names = {line.partition("=")[0] for line in written.read_text().splitlines()}
    assert "PATH" in names
    assert not names & {"PALESTRA_SECRET_KEY", "DATABASE_URL", "REDIS_URL"}
    assert not names & (SERVICES | OF_ENGINES)


def test_storing_goes_on_behind_the_piece_at_which_a_kill_came(
    team: Team, user: User, root: Path, sent: Sent, work: Callable[[], None], small_pieces: int, monkeypatch: Any
) -> None:
    version = import_folder(team, "qwen", "qwen", acting_user=user)
    store_piece, stored = stored_pieces._store_piece, []

    class Killed(BaseException):
        pass

    def killed_at_the_seventh(path: Path, file: Any, number: int) -> str:
        if len(stored) == 6:
            raise Killed
        stored.append((file.name, number))
        return store_piece(path, file, number)

    monkeypatch.setattr(stored_pieces, "_store_piece", killed_at_the_seventh)
    with pytest.raises(Killed):
        store_model(*sent.pop()[1])
    version.refresh_from_db()
    assert (version.state, 0 < version.bytes_done < version.bytes) == ("importing", True)
    again: list[Any] = []
    monkeypatch.setattr(
        stored_pieces, "_store_piece", lambda path, file, n: again.append((file.name, n)) or store_piece(path, file, n)
    )
    ModelVersion.objects.update(heartbeat_at="2020-01-01T00:00Z")
    resend_lost_messages_about_models()
    work()
    version.refresh_from_db()
    assert (version.state, set(stored) & set(again)) == ("ready", set())
    for path in (root / "qwen").iterdir():
        assert (version.folder / path.name).read_bytes() == path.read_bytes()


def test_a_task_stops_after_its_slice_and_sends_itself_again(
    team: Team, user: User, root: Path, sent: Sent, small_pieces: int, monkeypatch: Any
) -> None:
    version = import_folder(team, "qwen", "qwen", acting_user=user)
    ticks = iter(range(10_000))
    monkeypatch.setattr(model_store.time, "monotonic", lambda: next(ticks))
    monkeypatch.setattr(model_store, "SLICE_S", 3)
    first = sent.pop()[1]
    store_model(*first)
    version.refresh_from_db()
    assert 0 < version.bytes_done < version.bytes
    assert sent == [(queue.STORE_MODEL, (str(version.id), version.progress_mark))]
    store_model(*first)  # late: it names work that is done
    assert len(sent) == 1


def test_a_second_message_at_the_same_time_does_nothing(team: Team, user: User, root: Path, sent: Sent) -> None:
    import psycopg
    from django.db import connection

    version = import_folder(team, "qwen", "qwen", acting_user=user)
    parameters = connection.get_connection_params()
    keys = ("dbname", "user", "host")
    with psycopg.connect(**{key: parameters[key] for key in keys if key in parameters}) as other:
        other.execute("SELECT pg_advisory_lock(%s, %s)", [version_work.MODEL_LOCK, version.id])
        store_model(*sent[0][1])
    version.refresh_from_db()
    assert (version.bytes_done, len(sent)) == (0, 1)


@pytest.mark.parametrize("state", ["importing", "checking"])
def test_a_cancelled_version_leaves_nothing(
    team: Team, user: User, root: Path, sent: Sent, work: Callable[[], None], state: str
) -> None:
    version = import_folder(team, "qwen", "qwen", acting_user=user)
    if state == "checking":
        store_model(*sent.pop()[1])
    version.refresh_from_db()
    assert version.state == state
    cancel_stored(version, acting_user=user)
    work()
    version.refresh_from_db()
    assert (version.state, version.number) == ("cancelled", None)
    assert not [path for path in (root.parent / "models").rglob("*") if path.is_file()]
    with pytest.raises(Refused, match="cancelled"):
        cancel_stored(version, acting_user=user)


def test_a_kill_between_the_folder_and_the_row_is_mended(
    team: Team, user: User, root: Path, sent: Sent, work: Callable[[], None], monkeypatch: Any
) -> None:
    version = import_folder(team, "qwen", "qwen", acting_user=user)
    store_model(*sent.pop()[1])
    make_ready = model_store._make_ready

    class Killed(BaseException):
        pass

    def killed(*_: Any) -> None:
        raise Killed

    monkeypatch.setattr(model_store, "_make_ready", killed)
    message = sent[-1]
    with pytest.raises(Killed):
        store_model(*message[1])
    monkeypatch.setattr(model_store, "_make_ready", make_ready)
    work()
    version.refresh_from_db()
    assert (version.state, version.number) == ("ready", 1)
    assert (version.folder / MANIFEST).exists()


def test_a_file_that_changes_while_it_is_stored_is_refused(
    team: Team, user: User, root: Path, sent: Sent, work: Callable[[], None], small_pieces: int, monkeypatch: Any
) -> None:
    version = import_folder(team, "qwen", "qwen", acting_user=user)
    ticks = iter(range(10_000))
    monkeypatch.setattr(model_store.time, "monotonic", lambda: next(ticks))
    monkeypatch.setattr(model_store, "SLICE_S", 2)
    store_model(*sent.pop()[1])
    (root / "qwen" / "chat_template.jinja").write_text("another")
    work()
    version.refresh_from_db()
    assert "chat_template.jinja has changed" in reported(version)


def test_what_the_team_may_take_of_the_disk_is_a_bound(team: Team, user: User, root: Path, settings: Any) -> None:
    settings.PALESTRA_MODEL_BYTES_PER_TEAM = 1000
    with pytest.raises(Refused) as refused:
        import_folder(team, "qwen", "qwen", acting_user=user)
    assert refused.value.problems[0].field == "bytes"
    assert "delete versions" in refused.value.problems[0].remedy


# A checkpoint
@pytest.fixture
def promoted(
    team: Team, user: User, root: Path, sent: Sent, work: Callable[[], None], settings: Any
) -> Callable[..., Any]:
    """Promotes step 40 of a run whose checkpoint holds the given files."""

    def make(source: Path) -> ModelVersion:
        spec = RunSpec.model_validate({"name": "x", "model": {"kind": "pretrained", "path": "qwen"}})
        run = submit_run(team, spec, acting_user=user)
        shutil.copytree(source, settings.PALESTRA_RUNS / str(run.id) / "checkpoints" / "step-000040" / "model")
        run.checkpoints.create(step=40, path="p", size_bytes=10**9, seconds=1.0, at=timezone.now())
        version = promote_checkpoint(run, 40, "tuned", acting_user=user)
        work()
        version.refresh_from_db()
        return version

    return make


def test_a_checkpoints_files_become_a_version(promoted: Callable[..., ModelVersion], root: Path) -> None:
    version = promoted(root / "qwen")
    assert (version.state, version.problem, str(version)) == ("ready", None, "tuned@1")
    assert version.bytes == sum(path.stat().st_size for path in (root / "qwen").iterdir())
    assert contents(version.folder) == contents(root / "qwen")


def test_an_adapter_alone_is_refused_with_what_to_do(promoted: Callable[..., ModelVersion], tmp_path: Path) -> None:
    (tmp_path / "adapter").mkdir()
    (tmp_path / "adapter" / "adapter_config.json").write_text("{}")
    (tmp_path / "adapter" / "adapter_model.safetensors").write_bytes(b"x")
    version = promoted(tmp_path / "adapter")
    assert "an adapter alone" in reported(version)
    assert "merged" in version.problem["remedy"]  # type: ignore[index]


def test_a_checkpoint_that_the_run_has_removed_meanwhile_is_named(
    team: Team, user: User, root: Path, work: Callable[[], None]
) -> None:
    spec = RunSpec.model_validate({"name": "x", "model": {"kind": "pretrained", "path": "qwen"}})
    run = submit_run(team, spec, acting_user=user)
    run.checkpoints.create(step=40, path="p", size_bytes=10, seconds=1.0, at=timezone.now())
    version = promote_checkpoint(run, 40, "tuned", acting_user=user)
    work()
    version.refresh_from_db()
    assert "cannot be read" in reported(version)


# Uploads
def uploaded(team: Team, user: User, files: dict[str, bytes], name: str = "up") -> Upload:
    announced = [{"name": file, "bytes": len(content)} for file, content in files.items()]
    upload = begin_upload(team, name, announced, acting_user=user)
    for place, content in enumerate(files.values()):
        for number in range(uploads.parts_of(len(content))):
            part = content[number * uploads.PART_BYTES :][: uploads.PART_BYTES]
            put_part(upload, place, number, hashlib.sha256(part).hexdigest(), io.BytesIO(part))
    return upload


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploads, "PART_BYTES", 5000)
    monkeypatch.setattr(sources, "PART_BYTES", 5000)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.name != MANIFEST}


def tar_of(files: dict[str, bytes], *members: tarfile.TarInfo, folder: str = "") -> bytes:
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(folder + name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
        for member in members:
            archive.addfile(member)
    return written.getvalue()


@pytest.fixture
def completed(team: Team, user: User, root: Path, work: Callable[[], None]) -> Callable[..., ModelVersion]:
    def make(files: dict[str, bytes], name: str = "up") -> ModelVersion:
        version = complete_upload(uploaded(team, user, files, name), acting_user=user)
        work()
        version.refresh_from_db()
        return version

    return make


Completed = Callable[..., ModelVersion]


@pytest.mark.parametrize(
    "folder", ["", *(pytest.param(name, marks=pytest.mark.soak) for name in ("./", "Qwen3-4B/")), "./a/"]
)
def test_files_and_a_tar_of_them_are_the_same_content_as_the_folder(
    imported: Imported, completed: Completed, root: Path, small_parts: None, small_pieces: int, folder: str
) -> None:
    first = imported()
    by_files = completed(contents(root / "qwen"), "files")
    by_tar = completed({"model.tar": tar_of(contents(root / "qwen"), folder=folder)}, "tar")
    assert (by_files.state, by_tar.state) == ("ready", "ready")
    assert first.sha256 == by_files.sha256 == by_tar.sha256
    assert contents(by_tar.folder) == contents(root / "qwen")
    assert not list((root.parent / "models" / "uploads").iterdir())
    assert not UploadPart.objects.exists()


def link(kind: bytes, name: str = "x.json", target: str = "/etc/passwd") -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, target
    return member


@pytest.mark.parametrize(
    ("archive", "why"),
    [
        (tar_of({"/etc/x.json": b"{}"}), "outside of it"),
        (tar_of({"../x.json": b"{}"}), "outside of it"),
        (tar_of({"a/../../x.json": b"{}"}), "outside of it"),
        (tar_of({}, link(tarfile.SYMTYPE)), "a link"),
        (tar_of({}, link(tarfile.LNKTYPE)), "a link"),
        (tar_of({}, link(tarfile.CHRTYPE)), "a device"),
        (tar_of({}, link(tarfile.FIFOTYPE)), "a device"),
        (tar_of({"a/x.json": b"{}", "b/y.json": b"{}"}), "several folders"),
        (tar_of({"x.json": b"{}", "./x.json": b"[]"}), "two files named x.json"),
        (tar_of({"weights.bin": b"{}"}), "pickled"),
        (tar_of({}), "no file of a model"),
        (tar_of({".": b"{}"}), "without a name"),
        (b"\x1f\x8b" + b"\0" * 600, "compressed"),
        (b"nonsense" * 200, "no tar"),
        (tar_of({"x.json": b"{}" * 3000})[:2000], "ends before"),
        (tar_of({f"{n}.json": b"" for n in range(4100)}), "too many"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_archive_with_tricks_is_refused(completed: Completed, archive: bytes, why: str, root: Path) -> None:
    assert why in reported(completed({"model.tar": archive}))
    assert not [path for path in (root.parent / "models").rglob("*") if path.is_file()]


def test_an_archive_with_a_header_of_gigabytes_is_read_no_further(completed: Completed) -> None:
    header = tarfile.TarInfo("pax")
    header.type, header.size = tarfile.XHDTYPE, 8 * 2**30
    bomb = header.tobuf(tarfile.GNU_FORMAT) + b"\0" * 4096
    assert "claims 8589934592 bytes" in reported(completed({"model.tar": bomb}))


def test_an_archive_whose_entry_is_sparse_is_refused(completed: Completed) -> None:
    member = tarfile.TarInfo("x.json")
    member.pax_headers = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": str(2**40)}
    body = b"0\n".ljust(512, b"\0")
    member.size = len(body)
    archive = member.tobuf(tarfile.PAX_FORMAT) + body + b"\0" * 1024
    assert completed({"model.tar": archive}).state == "failed"


def test_an_entry_of_negative_size_does_not_loop(completed: Completed) -> None:
    member = tarfile.TarInfo("x.json").tobuf(tarfile.GNU_FORMAT)
    negative = bytearray(member)
    negative[124:136] = b"\xff" * 10 + b"\xfe\x00"
    negative[148:156] = b" " * 8
    negative[148:156] = b"%06o\0 " % sum(negative)
    assert completed({"model.tar": bytes(negative) + b"\0" * 2048}).state == "failed"


def test_removed_versions_leave_no_files_unless_another_needs_them(imported: Imported, team: Team) -> None:
    first, other = imported(), imported(name="other")
    first.delete()
    model_tidy.remove_model(str(team.id), first.sha256)
    assert other.folder.is_dir()
    other.delete()
    model_tidy.remove_model(str(team.id), first.sha256)
    assert not other.folder.exists()


@pytest.mark.django_db(transaction=True)
def test_tidying_removes_what_no_row_names_and_nothing_else(
    imported: Imported, team: Team, user: User, root: Path, monkeypatch: Any
) -> None:
    monkeypatch.setattr(model_tidy, "OLD_S", -10.0)
    kept, begun = imported(), uploaded(team, user, {"x.json": b"{}"})
    (partial := kept.folder.with_name(".partial-99999")).mkdir()
    (orphan := kept.folder.with_name("0" * 64)).mkdir()
    (removed := kept.folder.with_name(".removed-x")).mkdir()
    (strange := uploads.upload_folder("not-an-id")).mkdir(parents=True)
    model_tidy.tidy_models()
    assert [path.exists() for path in (partial, orphan, removed, strange)] == [False] * 4
    assert kept.folder.is_dir()
    assert uploads.upload_folder(begun.id).is_dir()
    Upload.objects.update(used_at="2020-01-01T00:00Z")
    model_tidy.tidy_models()
    assert not uploads.upload_folder(begun.id).exists()
    assert not Upload.objects.exists()


def test_the_launch_document_pins_what_the_spec_names(
    imported: Imported, team: Team, user: User, cluster: Any, sent: Sent, settings: Any, root: Path
) -> None:
    from workers.launch import launch

    version = imported()
    spec = RunSpec.model_validate({"name": "x", "model": {"kind": "pretrained", "catalog": "qwen@1"}})
    run = submit_run(team, spec, acting_user=user)
    launch(str(run.id))
    document = json.loads((Path(settings.PALESTRA_RUNS) / str(run.id) / "attempt-1.json").read_text())
    assert document["catalog"] == {"version": "qwen@1", "team": str(team.id), "sha256": version.sha256}


def test_the_files_that_a_run_judges_with_are_pinned_and_kept_until_it_ends(
    imported: Imported, team: Team, user: User, cluster: Any, settings: Any, work: Callable[[], None], monkeypatch: Any
) -> None:
    from workers.launch import launch

    monkeypatch.setattr(model_tidy, "OLD_S", -10.0)
    version = imported(name="judge")
    run = submit_run(team, judged_by(trained=None, catalog="judge@1"), acting_user=user)
    launch(str(run.id))
    file = Path(settings.PALESTRA_RUNS) / str(run.id) / "attempt-1.json"
    monkeypatch.setenv("PALESTRA_MODELS", str(settings.PALESTRA_MODELS))
    document = json.loads(file.read_text())
    assert document["judge"] == {"version": "judge@1", "team": str(team.id), "sha256": version.sha256}
    assert document["catalog"] is None
    judge = launch_from_file(file).spec.resources.judge
    assert judge is not None
    assert judge.path == str(version.folder)
    with pytest.raises(Refused) as refused:
        delete_version(version, acting_user=user)
    assert refused.value.problems[0].value == str(run.id)
    model_tidy.tidy_models()
    assert version.folder.is_dir()
    run.refresh_from_db()
    assert run.move_to("cancelled", by="test")
    delete_version(version, acting_user=user)
    work()
    assert not version.folder.exists()


def test_a_mangled_archive_is_read_or_refused_and_never_a_fault() -> None:
    chance = Random(4)
    whole = tar_of({"config.json": b"{}" * 700, "é" * 120 + ".json": b"x"}, link(tarfile.SYMTYPE))
    for _ in range(3000):
        mangled = bytearray(whole)
        for _ in range(chance.randrange(1, 6)):
            begin = chance.randrange(len(mangled))
            mangled[begin : begin + chance.randrange(1, 20)] = chance.randbytes(chance.randrange(20))
        data = bytes(mangled)
        file = sources.SourceFile("m.tar", len(data), lambda at, length, data=data: data[at : at + length])
        with suppress(sources.SourceRefused):
            sources.checked(sources.archived(file), "files")
