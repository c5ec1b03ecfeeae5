"""A package is stored without running anything of it, played by a job, published, and played by a run."""

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
from engine.launch.job import launch_from_file
from engine.launch.pinned_packages import with_pinned_packages
from engine.launch.preflight import BadSpec
from engine.spec.check_log import CHECK_LOG, DoneLine, UnavailableLine
from engine.spec.foreign_environments import InPackage, Package
from engine.spec.launch import Launch
from engine.spec.package_check import PackageCheck, PackageReport, ReportLine
from engine.spec.run import RunSpec
from tests.engine.environments.process.packages import CODE, PROJECT, wheel_of, write_package
from tests.webapp.packages import GOOD, published_package, stored_package
from tests.webapp.task_sets import tar_of
from tests.workers.conftest import Cluster
from webapp import queue
from webapp.accounts.models import Team, User
from webapp.accounts.services import create_team
from webapp.catalog.checked_versions import check_version
from webapp.catalog.imports import import_package
from webapp.catalog.models import PackageVersion, UploadKind
from webapp.catalog.package_versions import compare_packages, publish_package
from webapp.catalog.stored_versions import cancel_stored
from webapp.catalog.uploads import begin_upload, complete_checked_upload, put_part
from webapp.refusals import Invalid, Refused
from webapp.runs.dependents import delete_unneeded
from webapp.runs.services import submit_run
from workers import checks, launch, model_tidy
from workers.package_store import PACKAGE_CHECKS, store_package
from workers.ray_jobs import Job

pytestmark = pytest.mark.django_db
Sent = list[tuple[str, tuple[str, ...]]]
CHECK = PackageCheck()
MARKS = "import pathlib; pathlib.Path('/tmp/palestra-package-ran').write_text('x')\n"
"""What must not happen while a package is stored."""


@pytest.fixture
def team(user: User) -> Team:
    return create_team("Blue", acting_user=user)


@pytest.fixture(autouse=True)
def _folders(tmp_path: Path, settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.PALESTRA_IMPORTS, settings.PALESTRA_MODELS = tmp_path / "imports", tmp_path / "models"
    settings.PALESTRA_DATASETS = tmp_path / "datasets"
    settings.PALESTRA_IMPORTS.mkdir()
    monkeypatch.setenv("PALESTRA_DATASETS", str(tmp_path / "datasets"))
    monkeypatch.setenv("PALESTRA_HOME", str(tmp_path / "home"))


@pytest.fixture
def work(sent: Sent, cluster: Cluster) -> Callable[[], None]:
    """Carry out messages until there are no more."""
    tasks = {queue.STORE_PACKAGE: store_package, queue.REMOVE_PACKAGE: model_tidy.remove_package}

    def carry_out() -> None:
        while sent:
            name, arguments = sent.pop(0)
            if name in tasks:
                tasks[name](*arguments)

    return carry_out


@pytest.fixture
def uploaded(team: Team, user: User, work: Callable[[], None]) -> Callable[..., PackageVersion]:
    """Uploads a file, and does what workers do with it."""

    def make(content: bytes, file: str = "package.tar", *, check: PackageCheck | None = None) -> PackageVersion:
        announced = [{"name": file, "bytes": len(content)}]
        upload = begin_upload(team, "game", announced, acting_user=user, kind=UploadKind.PACKAGE)
        put_part(upload, 0, 0, hashlib.sha256(content).hexdigest(), io.BytesIO(content))
        version = complete_checked_upload(PackageVersion, upload, check, acting_user=user)
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
    PACKAGE_CHECKS.follow_all(cluster)


def spec_of(version: str, **environment: Any) -> RunSpec:
    return RunSpec.model_validate(
        {
            "name": "x",
            "environment": {"id": "package", "catalog": version, **environment},
            "dataset": {"train_tasks": 40, "heldout_tasks": 40},
            "evaluation": {"tasks": 40, "interim_tasks": 40},
            "recipe": {"stages": []},
        }
    )


@pytest.mark.parametrize("as_wheel", [False, True])
def test_a_package_is_stored_played_published_and_pinned(
    uploaded: Any, team: Team, user: User, cluster: Cluster, tmp_path: Path, as_wheel: bool
) -> None:
    packed = (wheel_of(), "guessing-1.0-py3-none-any.whl") if as_wheel else (tar_of(write_package(tmp_path / "p")),)
    version = uploaded(*packed, check=CHECK)
    assert (version.state, version.calls_itself, version.number) == ("checking", "guessing 1.0", None)
    run_jobs(cluster)
    version.refresh_from_db()
    assert version.state == "stored", version.problem
    assert version.found is not None
    assert (version.found.tasks, version.found.faults, version.found.episodes) == (
        {"train": 40, "heldout": 40}, [], 16,
    )  # fmt: skip
    assert str(publish_package(version, acting_user=user)) == "game@1"
    run = submit_run(team, spec_of("game@1", options='{"every": 0}'), acting_user=user)
    assert [str(named) for named in run.package_versions.all()] == ["game@1"]
    launched = Launch.model_validate_json(launch._write_launch_file(run).read_bytes())
    spec = with_pinned_packages(launched.spec, named_in=Path("x"), catalog=launched.packages)
    assert isinstance(spec.environment, Package)
    assert spec.environment.digest == version.manifest().digest
    assert len(environment_for(spec.environment, spec.dataset).tasks("train")) == 40


def test_nothing_of_a_package_runs_while_it_is_stored(uploaded: Any, tmp_path: Path) -> None:
    mark = Path("/tmp/palestra-package-ran")
    mark.unlink(missing_ok=True)
    folder = write_package(tmp_path / "p", MARKS + CODE)
    (folder / "setup.py").write_text(MARKS)
    (folder / "src" / "sitecustomize.py").write_text(MARKS)
    version = uploaded(tar_of(folder))
    assert version.state == "stored"
    assert not mark.exists()
    assert "setup.py" not in str(version.manifest().files)


@pytest.mark.parametrize(
    ("project", "expected"),
    [
        ("[project", "no TOML"),
        ("[project]\nversion = " + "1" * 5000, "line 2: a number or word of 5000 characters"),
        ("a." * 5000 + "a = 1", "line 1: a key of 5001 parts"),
        (PROJECT.format(version="1 0; rm"), "no plain name"),
        (PROJECT.format(version="1.0").replace("[]", '["x @ file:///etc"]'), "an address"),
        (PROJECT.format(version="1.0").replace("guessing:Guessing", "os.system('x')"), "no import path"),
    ],
)
def test_what_is_wrong_with_a_package_is_named_and_nothing_is_kept(
    uploaded: Any, tmp_path: Path, project: str, expected: str
) -> None:
    folder = write_package(tmp_path / "p")
    (folder / "pyproject.toml").write_text(project)
    version = uploaded(tar_of(folder))
    assert version.state == "failed"
    assert expected in str(version.problems)
    assert str(tmp_path) not in str(version.problems) + str(version.problem)
    assert not [path for path in (tmp_path / "datasets" / "packages").rglob("*") if path.is_file()]


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE])
def test_links_and_devices_are_faults(uploaded: Any, tmp_path: Path, kind: bytes) -> None:
    member = tarfile.TarInfo("src/extra")
    member.type, member.linkname = kind, "/etc/passwd"
    version = uploaded(tar_of(write_package(tmp_path / "p"), [(member, b"")]))
    assert version.state == "failed"
    assert "src/extra" in str(version.problems)


@pytest.mark.parametrize("content", [b"no archive", b"PK\x03\x04 cut"])
@pytest.mark.parametrize("file", ["package.tar", "guessing-1.0-py3-none-any.whl"])
def test_what_is_no_package_at_all_is_a_fault(uploaded: Any, content: bytes, file: str) -> None:
    version = uploaded(content, file)
    assert (version.state, version.faults) == ("failed", 1)


def test_a_package_with_faults_is_not_published_and_its_faults_are_named(
    uploaded: Any, user: User, cluster: Cluster, tmp_path: Path
) -> None:
    version = uploaded(tar_of(write_package(tmp_path / "p", CODE.replace("range(40)", "range(0)"))), check=CHECK)
    run_jobs(cluster)
    version.refresh_from_db()
    assert version.state == "stored"
    with pytest.raises(Refused) as refusal:
        publish_package(version, acting_user=user)
    assert any("there is no task" in problem.message for problem in refusal.value.problems)


def test_a_package_that_does_not_start_says_why(uploaded: Any, user: User, cluster: Cluster, tmp_path: Path) -> None:
    version = uploaded(tar_of(write_package(tmp_path / "p", "raise RuntimeError('not today')")), check=CHECK)
    run_jobs(cluster)
    version.refresh_from_db()
    assert version.found is not None
    [fault] = version.found.faults
    assert "not today" in fault


def test_options_and_an_entry_that_do_not_fit_are_found_by_the_check(
    uploaded: Any, cluster: Cluster, tmp_path: Path
) -> None:
    check = PackageCheck(entry="guessing:Nothing")
    version = uploaded(tar_of(write_package(tmp_path / "p")), check=check)
    run_jobs(cluster)
    version.refresh_from_db()
    assert version.found is not None
    assert version.found.faults


def test_a_version_without_a_check_is_not_published(team: Team, user: User) -> None:
    with pytest.raises(Refused) as refusal:
        publish_package(stored_package(team), acting_user=user)
    assert [problem.remedy for problem in refusal.value.problems] == ["check the version first"]


def test_a_check_waits_for_sandboxes_and_a_dead_job_is_followed_by_another(
    team: Team, user: User, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    version = stored_package(team)
    check_version(version, CHECK, acting_user=user)
    PACKAGE_CHECKS.follow_all(cluster)
    version.refresh_from_db()
    first = version.submission_id
    log = checks._folder(version) / CHECK_LOG
    log.write_text(UnavailableLine(reason="no namespaces").model_dump_json() + "\n")
    PACKAGE_CHECKS.follow_all(cluster)
    version.refresh_from_db()
    assert (version.state, version.waiting_for) == ("checking", "no namespaces")
    monkeypatch.setattr(checks, "WAIT", version.waiting_since - version.waiting_since)
    PACKAGE_CHECKS.follow_all(cluster)
    version.refresh_from_db()
    assert version.submission_id != first
    cluster.jobs[version.submission_id] = Job("failed", 1, "Job failed\nKilled")
    PACKAGE_CHECKS.follow_all(cluster)
    version.refresh_from_db()
    assert (version.state, version.check_jobs) == ("checking", 1)


def test_what_a_log_says_is_taken_over_though_its_job_still_ends(team: Team, user: User, cluster: Cluster) -> None:
    version = stored_package(team)
    check_version(version, CHECK, acting_user=user)
    PACKAGE_CHECKS.follow_all(cluster)
    version.refresh_from_db()
    submission_id, log = version.submission_id, checks._folder(version) / CHECK_LOG
    log.write_text("".join(line.model_dump_json() + "\n" for line in (ReportLine(report=GOOD), DoneLine())))
    assert cluster.jobs[submission_id].state == "alive"
    PACKAGE_CHECKS.follow_all(cluster)
    version.refresh_from_db()
    assert (version.state, version.found) == ("stored", GOOD)
    PACKAGE_CHECKS.follow_all(cluster)
    assert list(cluster.jobs) == [submission_id]


def test_a_cancelled_check_leaves_the_version_stored(team: Team, user: User, cluster: Cluster) -> None:
    version = stored_package(team)
    check_version(version, CHECK, acting_user=user)
    PACKAGE_CHECKS.follow_all(cluster)
    cancel_stored(version, acting_user=user)
    PACKAGE_CHECKS.follow_all(cluster)
    version.refresh_from_db()
    assert (version.state, version.cancel_asked) == ("stored", False)


def test_equal_packages_are_one_version_and_other_ones_differ_by_name(
    uploaded: Any, tmp_path: Path, team: Team
) -> None:
    first = uploaded(tar_of(write_package(tmp_path / "a")))
    again = uploaded(tar_of(write_package(tmp_path / "b")))
    assert (again.state, again.same_as) == ("same", first)
    folder = write_package(tmp_path / "c", CODE.replace("range(40)", "range(41)"))
    (folder / "src" / "more.py").write_text("")
    other = uploaded(tar_of(folder))
    found = compare_packages(other, first)
    assert (found.added, found.removed, found.changed) == (["src/more.py"], [], ["src/guessing.py"])


def test_an_import_takes_a_folder_a_tar_and_a_wheel_below_the_root(
    team: Team, user: User, settings: Any, work: Callable[[], None]
) -> None:
    root = settings.PALESTRA_IMPORTS
    write_package(root / "own")
    (root / "wheels").mkdir()
    (root / "wheels" / "guessing-1.0-py3-none-any.whl").write_bytes(wheel_of())
    for number, path in enumerate(["own", "wheels/guessing-1.0-py3-none-any.whl"]):
        version = import_package(team, f"game-{number}", path, acting_user=user)
        work()
        version.refresh_from_db()
        assert version.state == "stored", version.problem
    with pytest.raises(Invalid):
        import_package(team, "game", "../own", acting_user=user)


def test_what_runs_and_experiments_need_is_not_deleted(team: Team, user: User, work: Callable[[], None]) -> None:
    version = published_package(team)
    run = submit_run(team, spec_of("game@1"), acting_user=user)
    with pytest.raises(Refused, match="in use"):
        delete_unneeded(version, acting_user=user)
    run.move_to("cancelled", by="test")
    folder = version.folder
    delete_unneeded(version, acting_user=user)
    work()
    assert not folder.exists()
    with pytest.raises(Invalid) as refusal:
        submit_run(team, spec_of("game@1"), acting_user=user)
    assert [problem.field for problem in refusal.value.problems] == ["environment.catalog"]


@pytest.mark.parametrize(
    ("environment", "field"),
    [
        ({"id": "package", "path": "/etc"}, "environment.id"),
        ({"id": "package", "path": "/etc", "python": "/bin/sh"}, "environment.id"),
        ({"id": "gem", "python": "/bin/sh", "env_id": "x"}, "environment.id"),
    ],
)
def test_the_service_takes_no_package_and_no_interpreter_of_the_runs_own_choosing(
    team: Team, user: User, environment: dict[str, Any], field: str
) -> None:
    spec = RunSpec.model_validate(spec_of("x@1").model_dump(mode="json") | {"environment": environment})
    with pytest.raises(Invalid) as refusal:
        submit_run(team, spec, acting_user=user)
    assert [problem.field for problem in refusal.value.problems] == [field]
    with pytest.raises(BadSpec):
        with_pinned_packages(spec_of("x@1"), named_in=Path("x"), catalog=[])


@pytest.mark.parametrize("beside", ["path", "digest", "python"])
def test_a_version_of_the_catalog_stands_alone(beside: str) -> None:
    value = "sha256:" + "0" * 64 if beside == "digest" else "/x"
    with pytest.raises(ValueError, match="names the package already"):
        Package.model_validate({"catalog": "game@1", beside: value})
    with pytest.raises(ValueError, match="nothing says where its code is"):
        Package.model_validate({})


def test_two_packages_are_parts_of_one_run(team: Team, user: User) -> None:
    published_package(team, "game")
    published_package(team, "other", version="2.0")
    parts = [
        {"name": name, "environment": {"id": "package", "catalog": f"{name}@1"}} for name in ("game", "other")
    ]  # fmt: skip
    document = spec_of("game@1").model_dump(mode="json") | {"environment": {"id": "mixture", "parts": parts}}
    run = submit_run(team, RunSpec.model_validate(document), acting_user=user)
    launched = Launch.model_validate_json(launch._write_launch_file(run).read_bytes())
    pinned = with_pinned_packages(launched.spec, named_in=Path("x"), catalog=launched.packages)
    digests = {part.environment.digest for part in pinned.environment.parts}  # type: ignore[union-attr]
    assert len(digests) == 2
    with pytest.raises(Refused, match="in use"):
        delete_unneeded(PackageVersion.objects.get(package__name="other"), acting_user=user)


def test_files_that_were_changed_after_they_were_published_are_not_played(team: Team, user: User) -> None:
    version = published_package(team)
    code = version.folder / "package" / "src" / "guessing.py"
    code.chmod(0o600)
    code.write_text("raise SystemExit")
    run = submit_run(team, spec_of("game@1"), acting_user=user)
    launched = Launch.model_validate_json(launch._write_launch_file(run).read_bytes())
    spec = with_pinned_packages(launched.spec, named_in=Path("x"), catalog=launched.packages)
    with pytest.raises(UnusableEnvironment, match="the package is sha256"):
        environment_for(spec.environment, spec.dataset)
    (version.folder / "package.json").chmod(0o600)
    (version.folder / "package.json").write_text("{}")
    with pytest.raises(BadSpec, match="not the one of this version"):
        with_pinned_packages(launched.spec, named_in=Path("x"), catalog=launched.packages)


def test_a_report_is_bounded_whatever_a_package_prints() -> None:
    with pytest.raises(ValueError):
        PackageReport(faults=["x"] * 101)
    with pytest.raises(ValueError):
        PackageReport(faults=["x" * 1001])


@pytest.mark.parametrize(
    ("check", "kind"),
    [({"taskset": "adding:Adding"}, "verifiers"), ({"env_id": "game:Guess-v0"}, "gem"), ({}, "package")],
)
def test_a_run_plays_what_was_checked(team: Team, user: User, check: dict[str, Any], kind: str) -> None:
    published_package(team)
    environment = PackageCheck.model_validate(check).environment(catalog="game@1")
    assert environment.id == kind
    document = spec_of("game@1").model_dump(mode="json") | {"environment": environment.model_dump(mode="json")}
    run = submit_run(team, RunSpec.model_validate(document), acting_user=user)
    launched = launch_from_file(launch._write_launch_file(run))
    assert isinstance(launched.spec.environment, InPackage)
    assert str(launched.spec.environment.path).endswith("/package")
    with pytest.raises(Refused, match="in use"):
        delete_unneeded(PackageVersion.objects.get(), acting_user=user)


def test_a_check_plays_one_environment() -> None:
    with pytest.raises(ValueError, match="entry says already"):
        PackageCheck(entry="a:B", taskset="c:D")


def test_a_library_that_a_package_lacks_is_a_fault_of_the_check(
    uploaded: Any, cluster: Cluster, tmp_path: Path
) -> None:
    version = uploaded(tar_of(write_package(tmp_path / "p")), check=PackageCheck(taskset="guessing:Guessing"))
    run_jobs(cluster)
    version.refresh_from_db()
    assert version.found is not None
    [fault] = version.found.faults
    assert "verifiers" in fault


def test_a_server_is_asked_only_where_whoever_runs_the_service_allows_it(team: Team, user: User, settings: Any) -> None:
    environment = {"id": "openenv", "url": "http://10.0.0.5:8000/"}
    spec = RunSpec.model_validate(spec_of("x@1").model_dump(mode="json") | {"environment": environment})
    settings.PALESTRA_OPENENV = ["http://10.0.0.5:8001"]
    with pytest.raises(Invalid) as refusal:
        submit_run(team, spec, acting_user=user)
    assert [problem.field for problem in refusal.value.problems] == ["environment.url"]
    settings.PALESTRA_OPENENV = ["http://10.0.0.5:8000"]
    run = submit_run(team, spec, acting_user=user)
    path = launch._write_launch_file(run)
    assert launch_from_file(path).spec.environment == spec.environment
    settings.PALESTRA_OPENENV = []
    with pytest.raises(BadSpec, match="runs nobody's environment"):
        launch_from_file(launch._write_launch_file(run))
