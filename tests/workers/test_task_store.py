"""A set of tasks is stored, read as hostile input in a process of its own, checked by a job, and published whole."""

# ruff: noqa: E402 - models can be imported only after the setup
import hashlib
import io
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine.environments.imported import UnusableEnvironment
from engine.environments.registry import environment_for
from engine.environments.terminal.environment import TerminalEnvironment
from engine.launch.pinned_tasks import with_pinned_tasks
from engine.launch.preflight import BadSpec
from engine.spec.check_log import CHECK_LOG, DoneLine, UnavailableLine
from engine.spec.environment import Agent, Terminal
from engine.spec.run import Dataset, RunSpec
from engine.spec.task_check import TaskCheck, TaskCheckJob, TrialLine
from tests.engine.environments.terminal.tasks import SOLVE, write_task
from tests.webapp.task_sets import published_tasks, stored_tasks, tar_of
from tests.workers.conftest import Cluster
from tests.workers.secret_variables import OF_ENGINES, SERVICES, give_all
from webapp import queue
from webapp.accounts.models import Team, User
from webapp.accounts.services import create_team
from webapp.catalog import task_versions, uploads
from webapp.catalog.checked_versions import check_version
from webapp.catalog.imports import import_tasks
from webapp.catalog.models import TaskSetVersion, TaskTrial, UploadKind
from webapp.catalog.stored_versions import cancel_stored
from webapp.catalog.task_versions import publish_tasks
from webapp.catalog.uploads import begin_upload, complete_checked_upload, put_part
from webapp.refusals import Invalid, Refused
from webapp.runs.dependents import delete_unneeded
from webapp.runs.services import submit_run
from workers import checked_store, checks, engine_process, model_tidy
from workers.ray_jobs import Job, RayUnreachable
from workers.reconcile import reconcile, resend_lost_messages_about_checked_versions
from workers.task_checks import TASK_CHECKS
from workers.task_store import store_tasks

pytestmark = pytest.mark.django_db
Sent = list[tuple[str, tuple[str, ...]]]
ONCE = TaskCheck(repeat=1)
IDLE = "#!/bin/sh\necho 1 > /logs/verifier/reward.txt\n"
"""Tests that ask nothing."""


@pytest.fixture
def team(user: User) -> Team:
    return create_team("Blue", acting_user=user)


@pytest.fixture(autouse=True)
def _folders(tmp_path: Path, settings: Any) -> None:
    settings.PALESTRA_IMPORTS, settings.PALESTRA_MODELS = tmp_path / "imports", tmp_path / "models"
    settings.PALESTRA_DATASETS = tmp_path / "datasets"
    settings.PALESTRA_IMPORTS.mkdir()


@pytest.fixture
def work(sent: Sent, cluster: Cluster) -> Callable[[], None]:
    """Carry out messages until there are no more."""
    tasks = {queue.STORE_TASKS: store_tasks, queue.REMOVE_TASKS: model_tidy.remove_tasks}

    def carry_out() -> None:
        while sent:
            name, arguments = sent.pop(0)
            if name in tasks:
                tasks[name](*arguments)

    return carry_out


@pytest.fixture
def uploaded(team: Team, user: User, work: Callable[[], None]) -> Callable[..., TaskSetVersion]:
    """Uploads a file, and does what workers do with it."""

    def make(content: bytes, file: str = "tasks.tar", *, check: TaskCheck | None = None) -> TaskSetVersion:
        announced = [{"name": file, "bytes": len(content)}]
        upload = begin_upload(team, "shell", announced, acting_user=user, kind=UploadKind.TASKS)
        for number in range(uploads.parts_of(len(content))):
            part = content[number * uploads.PART_BYTES :][: uploads.PART_BYTES]
            put_part(upload, 0, number, hashlib.sha256(part).hexdigest(), io.BytesIO(part))
        version = complete_checked_upload(TaskSetVersion, upload, check, acting_user=user)
        work()
        version.refresh_from_db()
        return version

    return make


def run_jobs(cluster: Cluster) -> None:
    """Carry out the jobs that were submitted, as the cluster would, and follow them."""
    for submission_id, job in list(cluster.jobs.items()):
        if job.state == "alive":
            ended = subprocess.run(["/bin/sh", "-c", cluster.entrypoints[submission_id]], timeout=120, check=False)
            cluster.jobs[submission_id] = Job("succeeded" if ended.returncode == 0 else "failed", ended.returncode)
    TASK_CHECKS.follow_all(cluster)


def log_of(version: TaskSetVersion) -> Path:
    version.refresh_from_db()
    return checks._folder(version) / CHECK_LOG


def wrote(version: TaskSetVersion, *lines: Any, half: str = "") -> None:
    with log_of(version).open("a") as log:
        log.write("".join(line.model_dump_json() + "\n" for line in lines) + half)


def trial(task: str = "copy", kind: Any = "oracle", repetition: int = 0, reward: float | None = 1.0) -> TrialLine:
    return TrialLine(task=task, kind=kind, repetition=repetition, reward=reward, seconds=1, note="")


# Storing
def test_a_tar_is_stored_checked_in_sandboxes_published_and_played(
    uploaded: Any, user: User, cluster: Cluster, sent: Sent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("copy", "paste"):
        write_task(tmp_path / "tasks", name)
    (tmp_path / "tasks/copy/environment/empty").mkdir()
    (tmp_path / "tasks/copy/solution/solve.sh").chmod(0o755)
    version = uploaded(tar_of(tmp_path / "tasks"), check=ONCE)
    assert (version.state, version.number) == ("checking", None)
    run_jobs(cluster)
    version.refresh_from_db()
    assert version.state == "stored"
    assert {task.name: status for task, status in task_versions.statuses_of(version)} == {"copy": "ok", "paste": "ok"}
    assert not checks._folder(version).parent.joinpath("check.json").exists()
    published = publish_tasks(version, acting_user=user)
    assert str(published) == "shell@1"
    spec = spec_with("shell@1")
    run = submit_run(version.team, spec, acting_user=user)
    assert run.task_version == version
    monkeypatch.setenv("PALESTRA_DATASETS", str(tmp_path / "datasets"))
    pinned = with_pinned_tasks(spec, named_in=tmp_path / "l", catalog=version.pinned)
    environment = TerminalEnvironment(pinned.environment, Dataset(train_tasks=1, heldout_tasks=1))  # type: ignore[arg-type]
    assert len(environment.tasks("train")) == 1
    task = next(task for task in environment.task_set.tasks if task.name == "copy")
    assert "environment/empty" in task.folders
    assert {file.path for file in task.files if file.executable} == {"solution/solve.sh"}


def spec_with(version: str, *, by_agent: bool = False) -> RunSpec:
    tasks = {"id": "terminal", "catalog": version}
    agent = {"id": "agent", "agent": {"command": ["true"]}, "tasks": tasks}
    return RunSpec.model_validate({
        "name": "x", "environment": agent if by_agent else tasks,
        "dataset": {"train_tasks": 1, "heldout_tasks": 1}, "evaluation": {"tasks": 1, "interim_tasks": 1},
    })  # fmt: skip


def test_all_faults_of_all_tasks_are_reported_at_once_and_nothing_is_kept(uploaded: Any, tmp_path: Path) -> None:
    write_task(tmp_path / "tasks", "good")
    write_task(tmp_path / "tasks", "no-tests")
    (tmp_path / "tasks/no-tests/tests/test.sh").unlink()
    write_task(tmp_path / "tasks", "unknown-key", task_file='schema_version = "1.4"\ncolour = "red"\n')
    write_task(tmp_path / "tasks", "linked")
    (tmp_path / "tasks/linked/environment/passwd").symlink_to("/etc/passwd")
    device = tarfile.TarInfo("good/environment/disk")
    device.type, device.devmajor, device.devminor = tarfile.BLKTYPE, 8, 0
    version = uploaded(tar_of(tmp_path / "tasks", [(device, b""), (tarfile.TarInfo("../../evil"), b"x")]))
    assert (version.state, version.number, version.faults) == ("failed", None, 5)
    assert {problem["field"] for problem in version.problems} == {
        "no-tests/tests/test.sh", "unknown-key/task.toml: colour", "linked/environment/passwd", "good/environment/disk",
        "../../evil",
    }  # fmt: skip
    assert all(problem["message"] and problem["remedy"] for problem in version.problems)
    assert "4 more faults" in version.problem["message"]
    assert not list((tmp_path / "datasets").rglob("task.toml"))
    assert not list(tmp_path.rglob("evil"))


def test_a_dockerfile_that_reaches_out_is_never_carried_out(
    uploaded: Any, user: User, cluster: Cluster, tmp_path: Path
) -> None:
    dockerfile = "FROM busybox\nADD http://127.0.0.1:1/payload /\nRUN touch /tmp/reached\n"
    write_task(tmp_path / "tasks", "reaching", files={"Dockerfile": dockerfile})
    version = uploaded(tar_of(tmp_path / "tasks"), check=ONCE)
    assert [task.needs_image for task in version.tasks.all()] == [True]
    run_jobs(cluster)
    version.refresh_from_db()
    assert [problem["field"] for problem in version.problems] == ["reaching/environment/Dockerfile"]
    with pytest.raises(Refused):
        publish_tasks(version, acting_user=user)


def test_a_process_that_needs_too_much_memory_is_a_fault_and_not_the_workers_end(
    uploaded: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checked_store, "READER_BYTES", 2**24)
    write_task(tmp_path / "tasks", "copy")
    version = uploaded(tar_of(tmp_path / "tasks"))
    assert version.state == "failed"
    assert "reading it failed" in version.problem["message"]


def test_the_reading_process_has_no_secret_of_the_service(
    uploaded: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    give_all(monkeypatch)
    monkeypatch.setattr(engine_process.sys, "executable", str(tmp_path / "python"))
    (tmp_path / "python").write_text(f"#!/bin/sh\nenv > {tmp_path}/given\n")
    (tmp_path / "python").chmod(0o700)
    write_task(tmp_path / "tasks", "copy")
    assert uploaded(tar_of(tmp_path / "tasks")).state == "failed"
    names = {line.partition("=")[0] for line in (tmp_path / "given").read_text().splitlines()}
    assert "PATH" in names
    assert not names & (SERVICES | OF_ENGINES)


def test_equal_tasks_are_the_same_version_and_others_another(uploaded: Any, tmp_path: Path) -> None:
    write_task(tmp_path / "tasks", "copy")
    first = uploaded(tar_of(tmp_path / "tasks"))
    again = uploaded(tar_of(tmp_path / "tasks"))
    assert (first.state, again.state, again.same_as) == ("stored", "same", first)
    (tmp_path / "tasks/copy/instruction.md").write_text("Do it differently.\n")
    other = uploaded(tar_of(tmp_path / "tasks"))
    assert other.state == "stored"
    assert task_versions.compare_tasks(other, first).changed == ["copy"]


def test_a_folder_of_the_server_is_read_where_it_lies(
    team: Team, user: User, work: Any, settings: Any, tmp_path: Path
) -> None:
    write_task(settings.PALESTRA_IMPORTS / "own", "copy")
    version = import_tasks(team, "own", "own", acting_user=user)
    work()
    version.refresh_from_db()
    assert (version.state, version.tasks.count()) == ("stored", 1)
    assert not version.partial_folder.exists()
    (settings.PALESTRA_IMPORTS / "own/copy/environment/secret").symlink_to(tmp_path)
    linked = import_tasks(team, "own", "own", acting_user=user)
    work()
    linked.refresh_from_db()
    assert linked.state == "failed"
    assert linked.problems[0]["field"] == "copy/environment/secret"


@pytest.mark.parametrize("path", ["..", "/etc", "nowhere", "leads-out", "", "empty"])
def test_nothing_outside_of_the_import_root_is_imported(
    team: Team, user: User, settings: Any, tmp_path: Path, work: Any, path: str
) -> None:
    write_task(tmp_path / "elsewhere", "copy")
    (settings.PALESTRA_IMPORTS / "leads-out").symlink_to(tmp_path / "elsewhere")
    (settings.PALESTRA_IMPORTS / "empty").mkdir()
    if path == "empty":  # it is there, and holds nothing
        version = import_tasks(team, "x", path, acting_user=user)
        work()
        version.refresh_from_db()
        assert version.state == "failed"
        return
    with pytest.raises(Invalid) as refused:
        import_tasks(team, "x", path, acting_user=user)
    assert refused.value.problems[0].field == "folder"


def test_a_message_that_was_lost_is_sent_again(team: Team, user: User, sent: Sent, settings: Any) -> None:
    write_task(settings.PALESTRA_IMPORTS / "own", "copy")
    version = import_tasks(team, "own", "own", acting_user=user)
    sent.clear()
    resend_lost_messages_about_checked_versions()
    assert sent == []
    version.heartbeat_at = version.heartbeat_at.replace(year=2020)
    version.save()
    resend_lost_messages_about_checked_versions()
    assert sent == [(queue.STORE_TASKS, (str(version.id), "importing-0"))]


# Checks
def test_faulty_tasks_keep_a_version_from_being_published_and_are_named(
    uploaded: Any, user: User, cluster: Cluster, tmp_path: Path
) -> None:
    write_task(tmp_path / "tasks", "good")
    write_task(tmp_path / "tasks", "idle", test=IDLE)
    write_task(tmp_path / "tasks", "unsolved", solve="#!/bin/sh\necho 41 > /app/out.txt\n")
    write_task(tmp_path / "tasks", "no-solution", solve=None)
    write_task(tmp_path / "tasks", "silent", test="#!/bin/sh\nexit 0\n")
    version = uploaded(tar_of(tmp_path / "tasks"))
    with pytest.raises(Refused) as unchecked:
        publish_tasks(version, acting_user=user)
    assert len(unchecked.value.problems) == 5
    check_version(version, ONCE, acting_user=user)
    store_tasks(str(version.id), f"checking-{version.bytes}")
    run_jobs(cluster)
    version.refresh_from_db()
    found = {task.name: status for task, status in task_versions.statuses_of(version)}
    assert found == {
        "good": "ok", "idle": "nop-passes", "unsolved": "oracle-fails", "no-solution": "no-solution",
        "silent": "verifier-fails",
    }  # fmt: skip
    with pytest.raises(Refused) as refused:
        publish_tasks(version, acting_user=user)
    assert [(problem.field, problem.value) for problem in refused.value.problems] == [
        ("tasks.idle", "nop-passes"), ("tasks.no-solution", "no-solution"), ("tasks.silent", "verifier-fails"),
        ("tasks.unsolved", "oracle-fails"),
    ]  # fmt: skip
    assert not TaskSetVersion.objects.filter(state="ready").exists()


def test_a_task_whose_repetitions_differ_is_flaky_and_not_published(team: Team, user: User) -> None:
    version = stored_tasks(team, tasks={"lucky": {"oracle": [1.0, 0.0], "nop": [0.0, 0.0]}})
    with pytest.raises(Refused) as refused:
        publish_tasks(version, acting_user=user)
    assert refused.value.problems[0].value == "flaky"


def checking(version: TaskSetVersion, user: User, cluster: Cluster, check: TaskCheck = ONCE) -> TaskSetVersion:
    check_version(version, check, acting_user=user)
    TASK_CHECKS.follow_all(cluster)
    version.refresh_from_db()
    return version


def test_trials_become_rows_while_the_check_goes_on_and_a_half_line_waits(
    team: Team, user: User, cluster: Cluster, sent: Sent
) -> None:
    version = checking(stored_tasks(team), user, cluster)
    assert not TaskTrial.objects.exists()
    wrote(version, trial(), half=trial(kind="nop", reward=0).model_dump_json())
    TASK_CHECKS.follow_all(cluster)
    TASK_CHECKS.follow_all(cluster)
    assert [(trial.task.name, trial.kind) for trial in TaskTrial.objects.all()] == [("copy", "oracle")]
    wrote(version, half="\n")
    TASK_CHECKS.follow_all(cluster)
    assert TaskTrial.objects.count() == 2
    version.refresh_from_db()
    assert version.state == "checking"


def test_a_job_that_dies_is_followed_by_one_that_goes_on_with_what_is_left_and_not_for_ever(
    team: Team, user: User, cluster: Cluster, sent: Sent
) -> None:
    version = checking(stored_tasks(team), user, cluster)
    wrote(version, trial(), half='{"line": "tri')
    for deaths in (1, 2):
        cluster.jobs[version.submission_id] = Job("failed", 1, "OSError: disk full")
        TASK_CHECKS.follow_all(cluster)
        version.refresh_from_db()
        assert (version.state, version.check_jobs, len(cluster.jobs)) == ("checking", deaths, deaths + 1)
        file = log_of(version).with_name("check.json")
        assert [done.task for done in TaskCheckJob.model_validate_json(file.read_bytes()).done] == ["copy"]
    cluster.jobs[version.submission_id] = Job("failed", 1, "OSError: disk full")
    TASK_CHECKS.follow_all(cluster)
    version.refresh_from_db()
    assert version.state == "stored"
    assert "disk full" in version.problem["message"]


def test_a_cluster_that_was_restarted_gets_another_job(team: Team, user: User, cluster: Cluster, sent: Sent) -> None:
    version = checking(stored_tasks(team), user, cluster)
    before = version.submission_id
    cluster.restart()
    reconcile()
    version.refresh_from_db()
    assert list(cluster.jobs) == [version.submission_id] != [before]


def test_a_cluster_that_takes_no_job_costs_no_try_and_files_that_are_gone_end_the_check(
    team: Team, user: User, cluster: Cluster, sent: Sent, monkeypatch: pytest.MonkeyPatch
) -> None:
    version = stored_tasks(team)
    check_version(version, ONCE, acting_user=user)

    def unreachable(*_: str) -> None:
        raise RayUnreachable("down")

    with monkeypatch.context() as patched:
        patched.setattr(cluster, "submit", unreachable)
        for _ in range(checks.MOST_JOBS + 1):
            with pytest.raises(RayUnreachable):
                TASK_CHECKS.follow_all(cluster)
    version.refresh_from_db()
    assert (version.state, version.check_jobs) == ("checking", 0)
    manifest = version.folder / "tasks.json"
    manifest.rename(manifest.with_suffix(".gone"))
    TASK_CHECKS.follow_all(cluster)
    version.refresh_from_db()
    assert version.state == "stored"
    assert "cannot be read" in version.problem["message"]


def test_a_log_that_is_a_link_is_not_followed(
    team: Team, user: User, cluster: Cluster, sent: Sent, tmp_path: Path
) -> None:
    version = checking(stored_tasks(team), user, cluster)
    (tmp_path / "elsewhere").write_text(DoneLine().model_dump_json() + "\n")
    log_of(version).symlink_to(tmp_path / "elsewhere")
    TASK_CHECKS.follow_all(cluster)
    version.refresh_from_db()
    assert (version.state, TaskTrial.objects.count() > 0) == ("stored", False)


def test_sandboxes_that_cannot_be_made_let_a_check_wait_with_the_reason_and_go_on(
    team: Team, user: User, cluster: Cluster, sent: Sent
) -> None:
    version = checking(stored_tasks(team), user, cluster)
    reason = "the image swe-a cannot be pulled: registry.example does not answer"
    wrote(version, trial(), UnavailableLine(reason=reason))
    cluster.jobs[version.submission_id] = Job("succeeded", 0)
    TASK_CHECKS.follow_all(cluster)
    TASK_CHECKS.follow_all(cluster)
    version.refresh_from_db()
    assert (version.state, version.waiting_for, len(cluster.jobs)) == ("checking", reason, 1)
    version.waiting_since = version.waiting_since.replace(year=2020)
    version.save()
    TASK_CHECKS.follow_all(cluster)
    version.refresh_from_db()
    assert len(cluster.jobs) == 2
    TASK_CHECKS.follow_all(cluster)
    wrote(version, trial(kind="nop", reward=0), trial("paste"), trial("paste", "nop", reward=0), DoneLine())
    cluster.jobs[version.submission_id] = Job("succeeded", 0)
    TASK_CHECKS.follow_all(cluster)
    assert publish_tasks(version, acting_user=user).number == 1


def test_tasks_that_need_an_image_are_refused_in_namespaces_with_all_their_needs(
    uploaded: Any, user: User, cluster: Cluster, tmp_path: Path
) -> None:
    toml = 'schema_version = "1.4"\n[environment]\nmemory_mb = 99999\ndocker_image = "swe-a"\n'
    write_task(tmp_path / "tasks", "large", task_file=toml)
    version = uploaded(tar_of(tmp_path / "tasks"), check=ONCE)
    run_jobs(cluster)
    version.refresh_from_db()
    assert version.state == "stored"
    assert {problem["field"] for problem in version.problems} == {
        "large/task.toml: environment.memory_mb", "large/task.toml: environment.docker_image",
    }  # fmt: skip


@pytest.mark.parametrize("line", ["no json", '{"line": "trial"}', trial("other").model_dump_json(), '{"line": "x"}'])
def test_a_log_that_cannot_be_read_ends_the_check(
    team: Team, user: User, cluster: Cluster, sent: Sent, line: str
) -> None:
    version = checking(stored_tasks(team), user, cluster)
    wrote(version, half=line + "\n")
    TASK_CHECKS.follow_all(cluster)
    version.refresh_from_db()
    assert version.state == "stored"
    assert "cannot be read" in version.problem["message"]
    assert cluster.stopped


def test_a_check_is_stopped_and_what_was_stored_stays(team: Team, user: User, cluster: Cluster, sent: Sent) -> None:
    version = checking(stored_tasks(team), user, cluster)
    job = version.submission_id
    cancel_stored(version, acting_user=user)
    TASK_CHECKS.follow_all(cluster)
    version.refresh_from_db()
    assert (version.state, version.cancel_asked, cluster.stopped) == ("stored", False, [job])
    assert version.tasks.count() == 2


def test_an_import_is_cancelled_with_its_files(team: Team, user: User, work: Any, settings: Any) -> None:
    write_task(settings.PALESTRA_IMPORTS / "own", "copy")
    version = import_tasks(team, "own", "own", acting_user=user)
    cancel_stored(version, acting_user=user)
    work()
    version.refresh_from_db()
    assert version.state == "cancelled"
    assert not version.partial_folder.exists()


# Runs, deleting
def test_a_version_that_changed_on_the_disk_is_not_played(
    team: Team, user: User, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sent: Sent
) -> None:
    version = published_tasks(team)
    monkeypatch.setenv("PALESTRA_DATASETS", str(tmp_path / "datasets"))
    spec = with_pinned_tasks(spec_with("shell@1"), named_in=tmp_path, catalog=version.pinned)
    solve = version.folder / "tasks/copy/solution/solve.sh"
    solve.chmod(0o600)
    solve.write_text(SOLVE + "# more\n")
    with pytest.raises(UnusableEnvironment, match="digest"):
        TerminalEnvironment(spec.environment, Dataset(train_tasks=1, heldout_tasks=1))  # type: ignore[arg-type]
    (version.folder / "tasks.json").chmod(0o600)
    (version.folder / "tasks.json").write_text("{}")
    with pytest.raises(BadSpec, match="manifest"):
        with_pinned_tasks(spec_with("shell@1"), named_in=tmp_path, catalog=version.pinned)


def test_the_tasks_of_an_agent_are_pinned_to_their_version_and_a_changed_one_is_not_played(
    team: Team, user: User, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sent: Sent
) -> None:
    version, spec = published_tasks(team), spec_with("shell@1", by_agent=True)
    assert submit_run(team, spec, acting_user=user).task_version == version
    monkeypatch.setenv("PALESTRA_DATASETS", str(tmp_path / "datasets"))
    pinned = with_pinned_tasks(spec, named_in=tmp_path, catalog=version.pinned).environment
    assert isinstance(pinned, Agent)
    assert isinstance(pinned.tasks, Terminal)
    assert (pinned.tasks.catalog, pinned.tasks.tasks) == (None, str(version.folder / "tasks"))
    one = Dataset(train_tasks=1, heldout_tasks=1)
    assert len(environment_for(pinned, one).tasks("train")) == 1
    solve = version.folder / "tasks/copy/solution/solve.sh"
    solve.chmod(0o600)
    solve.write_text(SOLVE + "# more\n")
    with pytest.raises(UnusableEnvironment, match="digest"):
        environment_for(pinned, one)
    with pytest.raises(BadSpec, match=r"environment\.tasks\.catalog"):
        with_pinned_tasks(spec, named_in=tmp_path, catalog=None)
    (version.folder / "tasks.json").chmod(0o600)
    (version.folder / "tasks.json").write_text("{}")
    with pytest.raises(BadSpec, match=r"environment\.tasks\.catalog = 'shell@1': its manifest"):
        with_pinned_tasks(spec, named_in=tmp_path, catalog=version.pinned)


def test_deleting_is_refused_by_name_and_then_removes_the_files(team: Team, user: User, work: Any, sent: Sent) -> None:
    version = published_tasks(team)
    run = submit_run(team, spec_with("shell@1"), acting_user=user)
    with pytest.raises(Refused) as refused:
        delete_unneeded(version, acting_user=user)
    assert str(run) in refused.value.problems[0].message
    run.delete()
    folder = version.folder
    delete_unneeded(version, acting_user=user)
    work()
    assert not folder.exists()
    assert published_tasks(team).number == 2
