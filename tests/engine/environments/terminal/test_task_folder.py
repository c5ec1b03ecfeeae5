"""A task folder is hostile input: what is wrong with it is found, all of it, and nothing beside it is read."""

import os
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from engine.environments.imported import UnusableEnvironment
from engine.environments.terminal.folder_files import LIMITS
from engine.environments.terminal.task_folder import TerminalTask, task_in
from engine.environments.terminal.task_set import TasksRefused, read_tasks
from engine.spec.environment import Terminal
from tests.engine.environments.terminal.tasks import TASK_FILE, environment_of, write_task

COMPOSE, DOCKERFILE = "environment/docker-compose.yaml", "environment/Dockerfile"


def faults_of(folder: Path, **limits: int) -> dict[str, str]:
    """Message by field."""
    with pytest.raises(TasksRefused) as refused:
        read_tasks(folder, replace(LIMITS, **limits))
    assert all(problem.remedy for problem in refused.value.problems)
    return {problem.field: problem.message for problem in refused.value.problems}


def test_a_good_folder_is_a_task(tmp_path):
    write_task(tmp_path, files={"in.txt": "42\n", "deep/er/x.sh": "#!/bin/sh\n"})
    (tmp_path / "copy" / "environment" / "deep" / "er" / "x.sh").chmod(0o755)
    [task] = read_tasks(tmp_path).tasks
    entries = {entry.path: (entry.content, entry.executable) for entry in task.working_files().entries}
    assert entries == {
        "in.txt": (b"42\n", False), "deep": (None, False), "deep/er": (None, False),
        "deep/er/x.sh": (b"#!/bin/sh\n", True),
    }  # fmt: skip
    assert (task.name, task.instruction, task.has_solution) == ("copy", "Put 42 into out.txt.\n", True)


def test_a_single_task_may_be_named_itself(tmp_path):
    assert [task.name for task in read_tasks(write_task(tmp_path)).tasks] == ["copy"]


@pytest.mark.parametrize(
    ("harm", "field", "message"),
    [
        (lambda task: (task / "tests" / "x").symlink_to("/etc/passwd"), "copy/tests/x", "symbolic link"),
        (lambda task: (task / "environment" / "x").symlink_to("../solution"), "copy/environment/x", "symbolic link"),
        (lambda task: os.link(task / "task.toml", task / "tests" / "x"), "copy/tests/x", "hard link"),
        (lambda task: os.mkfifo(task / "environment" / "x"), "copy/environment/x", "fifo"),
        (lambda task: socket.socket(socket.AF_UNIX).bind(str(task / "x")), "copy/x", "socket"),
        (lambda task: (task / "tests" / "test.sh").chmod(0o4755), "copy/tests/test.sh", "set-user-id"),
        (lambda task: (task / "tests" / "a\nb").write_text(""), "copy/tests/a\nb", "control characters"),
        (lambda task: (task / "tests" / "a\\b").write_text(""), "copy/tests/a\\b", "backslash"),
        (lambda task: open(os.fsencode(task) + b"/\xff", "w").close(), "copy/\\xff", "UTF-8"),
        (lambda task: (task / "tests" / "test.sh").unlink(), "copy/tests/test.sh", "every task has it"),
        (lambda task: (task / "solution/solve.sh").rename(task / "solution/x"), "copy/solution/solve.sh", "every"),
        (lambda task: (task / "instruction.md").write_bytes(b"\xff"), "copy/instruction.md", "no UTF-8"),
        (lambda task: (task / "instruction.md").write_text(" \n"), "copy/instruction.md", "empty"),
        (lambda task: (task / "steps").mkdir(), "copy/steps", "several steps"),
        (lambda task: (task / COMPOSE).write_text("x"), f"copy/{COMPOSE}", "several containers"),
        (lambda task: (task / DOCKERFILE).write_text("# syntax=x\nFROM a"), f"copy/{DOCKERFILE}", "directives"),
    ],
)  # fmt: skip
def test_what_could_harm_is_a_fault_of_its_file(tmp_path, harm, field, message):
    harm(write_task(tmp_path))
    faults = faults_of(tmp_path)
    assert field in faults
    assert message in faults[field]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes devices")
def test_a_device_is_no_file(tmp_path):
    os.mknod(write_task(tmp_path) / "tests" / "null", 0o020666, os.makedev(1, 3))
    assert "device" in faults_of(tmp_path)["copy/tests/null"]


def test_bombs_are_fused(tmp_path):
    task = write_task(tmp_path)
    for number in range(30):
        (task / "environment" / f"f{number}").write_bytes(b"x" * 100)
    deep = task / "tests" / "/".join("d" * 6)
    deep.mkdir(parents=True)
    with open(task / "environment" / "sparse", "wb") as sparse:
        sparse.truncate(2**40)
    assert "more than 10 files" in " ".join(faults_of(tmp_path, entries=10).values())
    assert "bytes in all" in " ".join(faults_of(tmp_path, size_bytes=1000).values())
    assert "deeper" in faults_of(tmp_path, depth=4)["copy/tests/d/d/d"]
    assert "1099511627776 bytes" in faults_of(tmp_path)["copy/environment/sparse"]


def test_what_no_sandbox_takes_is_a_fault_before_any_episode(tmp_path):
    task = write_task(tmp_path)
    for number in range(3):
        with open(task / "environment" / f"part{number}", "wb") as part:
            part.truncate(12 * 2**20)
    assert "more than 33554432 bytes" in faults_of(tmp_path)["copy/environment"]
    (task / "environment" / "part0").unlink()
    with pytest.raises(UnusableEnvironment, match="copy/environment = 25165827: the sandboxes"):
        environment_of(tmp_path, sandbox=Terminal(tasks=".").sandbox.model_dump() | {"disk_mib": 16})
    deep = task / "tests" / "/".join(["d" * 200] * 6)
    deep.mkdir(parents=True)
    assert "a path of more than 1024 bytes" in faults_of(tmp_path).values()


def test_all_faults_of_all_tasks_are_found_at_once(tmp_path):
    one, two = write_task(tmp_path, "one"), write_task(tmp_path, "two")
    (one / "task.toml").write_text(
        'schema_version = "1.4"\nextra = 1\n[environment]\nmemry_mb = 5\nmemory = "much"\nallowed_hosts = ["http://a"]\n'
        '[verifier]\ntimeout_sec = nan\nenv = {TOKEN = "${TOKEN}"}\n[metadata]\nhanded_in = ["../etc"]\n'
    )
    (one / "tests" / "x").symlink_to("/etc")
    (two / "tests" / "test.sh").unlink()
    (two / "instruction.md").unlink()
    (tmp_path / "not a task").mkdir()
    (tmp_path / "linked").symlink_to(one)
    (tmp_path / "empty").mkdir()
    assert set(faults_of(tmp_path)) == {
        "not a task", "linked", "empty/task.toml", "empty/instruction.md", "empty/tests/test.sh", "one/tests/x",
        "one/task.toml: extra", "one/task.toml: environment.memry_mb", "one/task.toml: environment.memory",
        "one/task.toml: environment.allowed_hosts.0", "one/task.toml: verifier.timeout_sec",
        "one/task.toml: verifier.env", "one/task.toml: metadata", "two/tests/test.sh", "two/instruction.md",
    }  # fmt: skip


@pytest.mark.parametrize("version", ["2.0", "1.5", "", "1"])
def test_of_a_schema_that_is_not_known_nothing_else_is_read(tmp_path, version):
    write_task(tmp_path, task_file=f'schema_version = "{version}"\nwhatever = 1\n')
    assert faults_of(tmp_path) == {"copy/task.toml: schema_version": "a schema that is not known"}


def test_a_bomb_of_brackets_is_no_toml(tmp_path):
    write_task(tmp_path, task_file='schema_version = "1.4"\nmetadata = ' + "[" * 50_000)
    assert "no TOML" in faults_of(tmp_path)["copy/task.toml"]


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("x = " + "1" * 5000, "line 2: a number or word of 5000 characters"),
        ("a." * 999 + "a = 1", "line 2: a key of 1000"),
    ],
)
def test_toml_that_python_cannot_bear_is_a_fault_with_its_line(tmp_path, line, fault):
    write_task(tmp_path, task_file=f'schema_version = "1.4"\n{line}\n')
    assert fault in faults_of(tmp_path)["copy/task.toml"]


def test_no_folder_and_an_empty_one_are_refused(tmp_path):
    assert faults_of(tmp_path / "none") == {str(tmp_path / "none"): "there is no such folder"}
    assert faults_of(tmp_path) == {str(tmp_path): "it holds no tasks"}


def test_the_digest_follows_contents_names_and_permissions_only(tmp_path):
    def digest() -> str:
        return read_tasks(tmp_path).digest

    task = write_task(tmp_path)
    digests = [digest()]
    (task / "tests" / "test.sh").write_text("exit 0")
    digests.append(digest())
    (task / "tests" / "test.sh").chmod(0o755)
    digests.append(digest())
    (task / "environment" / "in.txt").rename(task / "environment" / "other.txt")
    digests.append(digest())
    (task / "environment" / "hollow").mkdir()
    digests.append(digest())
    assert len(set(digests)) == 5
    os.utime(task / "task.toml", (1, 1))
    assert digest() == digests[-1]


def test_a_file_that_was_changed_since_is_not_used(tmp_path):
    folder = write_task(tmp_path)
    task = task_in(folder)
    assert isinstance(task, TerminalTask)
    (folder / "tests" / "test.sh").write_text("echo 1 > /logs/verifier/reward.txt")
    with pytest.raises(OSError, match="is not what it was"):
        task.tests()
    (folder / "environment" / "in.txt").unlink()
    (folder / "environment" / "in.txt").symlink_to("/etc/passwd")
    with pytest.raises(OSError):  # noqa: PT011  the kernel's own: a link is not followed
        task.working_files()


@pytest.mark.parametrize(
    ("text", "copies", "needs"),
    [
        ("FROM debian\nWORKDIR /app\nCOPY . .\n", {"a": "a", "b/c": "b/c"}, ""),
        ("FROM debian\nCOPY a /app/x/\nCOPY b /work/y\n", {"a": "x/a", "b/c": "y/c"}, ""),
        ("FROM debian\nLABEL x=1\nWORKDIR /work/\nCOPY a z\n", {"a": "z"}, ""),
        ("FROM debian\nRUN true\n", None, "RUN true"),
        ("FROM debian\nWORKDIR /srv\n", None, "WORKDIR /srv"),
        ("FROM debian\nCOPY --chmod=755 a /app/\n", None, "COPY --chmod=755 a /app/"),
        ("FROM debian\nCOPY a /etc/\n", None, "COPY a /etc/"),
        ("FROM debian\nWORKDIR /app\nCOPY ../../etc .\n", None, "COPY ../../etc ."),
        ("FROM debian\nCOPY a /app/../etc/passwd\n", None, "COPY a /app/../etc/passwd"),
        ("FROM debian AS x\nFROM x\n", None, "FROM debian AS x"),
    ],
)
def test_a_plain_dockerfile_is_files_over_a_base(tmp_path, text, copies, needs):
    write_task(tmp_path, files={"a": "1", "b/c": "2", "Dockerfile": text})
    [task] = read_tasks(tmp_path).tasks
    assert task.plan is not None
    assert (task.plan.copies, task.plan.needs, task.needs_image) == (copies, needs, copies is None)
    if copies is not None:
        assert task.working_files().files.keys() == set(copies.values())


def test_what_old_schemas_wrote_is_read(tmp_path):
    text = 'version = "1.0"\n[environment]\nmemory = "2G"\nstorage = "512M"\nallow_internet = false\n'
    text += "[agent]\ntimeout_sec = 9\n"
    write_task(tmp_path, task_file=text)
    file = read_tasks(tmp_path).tasks[0].file
    assert (file.environment.memory_mib, file.environment.disk_mib, file.environment.mode) == (2048, 512, "no-network")
    assert (file.agent.timeout_sec, file.verifier.timeout_sec, file.level) == (9.0, 600.0, 2)


def test_what_says_a_thing_twice_is_refused(tmp_path):
    write_task(tmp_path, task_file=TASK_FILE + '[environment]\nmemory = "2G"\nmemory_mb = 2048\n')
    assert "memory_mb says it too" in faults_of(tmp_path)["copy/task.toml: environment.memory"]
