"""What comes as a set of tasks is hostile: it is sealed as it is, or refused with everything that is wrong with it."""

import io
import subprocess
import tarfile
from pathlib import Path

import pytest

from engine.environments.terminal.storing import store
from engine.environments.terminal.task_set import read_tasks
from engine.spec.check_log import ReadReport
from engine.spec.task_files import TaskManifest
from tests.engine.environments.terminal.tasks import write_task


def stored(tmp_path: Path, *extra: tarfile.TarInfo, content: bytes = b"x") -> ReadReport:
    """A tar of the folder ``tasks``, with further entries behind it."""
    with tarfile.open(tmp_path / "tasks.tar", "w") as archive:
        archive.add(tmp_path / "tasks", arcname=".")
        for member in extra:
            member.size = len(content) if member.isreg() else 0
            archive.addfile(member, io.BytesIO(content) if member.isreg() else None)
    return store(tmp_path / "tasks.tar", tmp_path / "target")


def entry(name: str, kind: bytes = tarfile.REGTYPE, link: str = "", mode: int = 0o644) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.linkname, member.mode = kind, link, mode
    return member


def names(tmp_path: Path) -> list[str]:
    text = (tmp_path / "target/sealed/tasks.json").read_text()
    return [task.name for task in TaskManifest.model_validate_json(text).tasks]


def test_what_is_sealed_is_what_was_read(tmp_path: Path) -> None:
    write_task(tmp_path / "tasks", "copy")
    (tmp_path / "tasks/copy/environment/empty").mkdir()
    (tmp_path / "tasks/copy/solution/solve.sh").chmod(0o755)
    before = read_tasks(tmp_path / "tasks")
    assert stored(tmp_path).faults == 0
    sealed = tmp_path / "target/sealed"
    manifest = TaskManifest.model_validate_json((sealed / "tasks.json").read_text())
    assert manifest.digest == before.digest == read_tasks(sealed / "tasks").digest
    assert manifest.executables == {"tasks/copy/solution/solve.sh"}
    assert manifest.folders == [
        f"tasks/copy/{name}" for name in ("environment", "environment/empty", "solution", "tests")
    ]
    assert {name: (sealed / name).stat().st_size for name in manifest.sizes} == manifest.sizes
    assert not (tmp_path / "target/unpacked").exists()


@pytest.mark.parametrize(
    ("member", "words"),
    [
        (entry("copy/environment/a", tarfile.SYMTYPE, "/etc/passwd"), "a link"),
        (entry("copy/environment/a", tarfile.LNKTYPE, "copy/task.toml"), "a link"),
        (entry("copy/environment/a", tarfile.CHRTYPE), "no regular file"),
        (entry("copy/environment/a", tarfile.BLKTYPE), "no regular file"),
        (entry("copy/environment/a", tarfile.FIFOTYPE), "no regular file"),
        (entry("/etc/cron.d/a"), "outside of the archive"),
        (entry("copy/../../a"), "outside of the archive"),
        (entry("copy/environment/a", mode=0o4755), "set-user-id"),
        (entry("copy/task.toml"), "File exists"),
        (entry("copy/task.toml/inside"), "cannot be written"),
        (entry("copy/environment/" + "n" * 300), "cannot be written"),
        (entry("copy/environment/a\x1b[2J"), "control characters"),
        (entry("copy/environment/a\udcff"), "no UTF-8"),
    ],
)
def test_an_archive_cannot_reach_out_of_itself(tmp_path: Path, member: tarfile.TarInfo, words: str) -> None:
    write_task(tmp_path / "tasks", "copy")
    report = stored(tmp_path, member)
    assert report.faults == 1
    assert words in report.problems[0].message
    assert report.problems[0].remedy
    assert not (tmp_path / "target/sealed").exists()
    assert not (tmp_path / "target/unpacked").exists()


def test_a_link_cannot_be_written_through_by_a_later_entry(tmp_path: Path) -> None:
    write_task(tmp_path / "tasks", "copy")
    outside = tmp_path / "outside"
    outside.mkdir()
    report = stored(tmp_path, entry("copy/a", tarfile.SYMTYPE, str(outside)), entry("copy/a/evil"))
    assert report.faults == 1
    assert not list(outside.iterdir())


def test_faults_of_the_archive_and_of_all_tasks_are_found_at_once(tmp_path: Path) -> None:
    write_task(tmp_path / "tasks", "no-tests")
    (tmp_path / "tasks/no-tests/tests/test.sh").unlink()
    write_task(tmp_path / "tasks", "unknown-key", task_file='schema_version = "1.4"\ncolour = "red"\n')
    report = stored(tmp_path, entry("unknown-key/environment/a", tarfile.FIFOTYPE))
    assert {problem.field for problem in report.problems} == {
        "no-tests/tests/test.sh", "unknown-key/task.toml: colour", "unknown-key/environment/a",
    }  # fmt: skip


def test_a_file_with_holes_does_not_grow_on_the_disk(tmp_path: Path) -> None:
    write_task(tmp_path / "tasks", "copy")
    with (tmp_path / "tasks/copy/environment/huge").open("wb") as file:
        file.truncate(2**40)
    subprocess.run(["tar", "--sparse", "-cf", str(tmp_path / "t.tar"), "-C", str(tmp_path / "tasks"), "."], check=True)
    report = store(tmp_path / "t.tar", tmp_path / "target")
    assert "with holes" in report.problems[0].message


@pytest.mark.parametrize(
    "content", [b"x", b"\x1f\x8b\x08" + b"\0" * 600, b"no tar at all" * 100, b"\0" * 10240, b"a" * 100 + b"\0" * 412]
)
def test_what_is_no_tar_is_refused_without_a_path_of_the_machine(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "tasks.tar").write_bytes(content)
    report = store(tmp_path / "tasks.tar", tmp_path / "target")
    assert report.faults == 1
    assert report.problems[0].field == "files"
    assert str(tmp_path) not in report.model_dump_json()


def test_an_archive_that_was_cut_is_refused(tmp_path: Path) -> None:
    write_task(tmp_path / "tasks", "copy", files={"in.txt": "42\n" * 10_000})
    with tarfile.open(tmp_path / "whole.tar", "w") as archive:
        archive.add(tmp_path / "tasks", arcname=".")
    (tmp_path / "tasks.tar").write_bytes((tmp_path / "whole.tar").read_bytes()[:20_000])
    assert store(tmp_path / "tasks.tar", tmp_path / "target").faults >= 1
    assert not (tmp_path / "target/sealed").exists()


def test_a_folder_that_wraps_all_tasks_and_one_task_alone_are_both_taken(tmp_path: Path) -> None:
    write_task(tmp_path / "tasks" / "mine", "copy")
    write_task(tmp_path / "tasks" / "mine", "paste")
    assert stored(tmp_path).faults == 0
    assert names(tmp_path) == ["copy", "paste"]
    write_task(tmp_path / "other" / "tasks", "alone")
    assert stored(tmp_path / "other").faults == 0
    assert names(tmp_path / "other") == ["alone"]


def test_rows_of_swe_bench_become_tasks_or_faults_with_their_lines(tmp_path: Path) -> None:
    row = (
        '{"instance_id": "a__b-1", "repo": "a/b", "base_commit": "0123456789", "problem_statement": "It fails.", '
        '"test_patch": "diff", "patch": "diff", "FAIL_TO_PASS": ["t.py::a"], "PASS_TO_PASS": [], '
        '"docker_image": "swe-a"}\n'
    )
    (tmp_path / "rows.jsonl").write_text(row)
    assert store(tmp_path / "rows.jsonl", tmp_path / "target").faults == 0
    assert names(tmp_path) == ["a__b-1"]
    (tmp_path / "rows.jsonl").write_text(row + "{}\n[]\n")
    report = store(tmp_path / "rows.jsonl", tmp_path / "target")
    assert {problem.field.split(":")[0] for problem in report.problems} == {"line 2", "line 3"}
    assert not (tmp_path / "target/sealed").exists()
