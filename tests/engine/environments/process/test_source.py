"""A package is read as what it is: somebody else's, and perhaps made to harm.  Nothing of it runs while it is read."""

import os
import stat
import sys
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine.environments.process import installation
from engine.environments.process import source as sources
from engine.environments.process.installation import entry_of, installed, interpreter_at
from engine.environments.process.source import PackageRefused, package_at

Write = Callable[..., Path]
METADATA = "Metadata-Version: 2.1\nName: acting\nVersion: 1.0\nRequires-Dist: attrs>=20\n"
ENTRIES = "[palestra.environments]\nacting = acting:Acting\n"


def wheel(folder: Path, **members: Any) -> Path:
    path = folder / "acting-1.0-py3-none-any.whl"
    content = {"acting.py": "Acting = 1", "acting-1.0.dist-info/METADATA": METADATA} | members
    content.setdefault("acting-1.0.dist-info/entry_points.txt", ENTRIES)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in content.items():
            archive.writestr(name, text)
    return path


def reasons(path: Path) -> str:
    with pytest.raises(PackageRefused) as refused:
        package_at(path)
    return "\n".join(f"{problem.field}: {problem.message}; {problem.remedy}" for problem in refused.value.problems)


def test_a_folder_and_a_wheel_are_read_alike(package: Write, tmp_path: Path) -> None:
    folder, archive = package_at(package()), package_at(wheel(tmp_path))
    assert (folder.name, folder.version, folder.dependencies) == ("acting", "1.0", ())
    assert [path for path, _ in folder.files] == ["acting.py"]
    assert (archive.name, archive.version, archive.dependencies) == ("acting", "1.0", ("attrs>=20",))
    assert entry_of(folder, None) == entry_of(archive, None) == "acting:Acting"


def test_the_digest_is_of_what_is_in_it_and_of_nothing_else(package: Write) -> None:
    first = package_at(package())
    os.utime(package() / "src" / "acting.py", (0, 0))
    assert package_at(package()).digest == first.digest
    assert package_at(package("# other")).digest != first.digest


def test_a_link_out_of_the_package_is_no_file_of_it(package: Write) -> None:
    (package() / "src" / "shadow").symlink_to("/etc/shadow")
    assert "shadow: a symbolic link" in reasons(package())


@pytest.mark.parametrize("name", ["src", "pyproject.toml"])
def test_a_link_in_the_place_of_a_part_is_refused(package: Write, tmp_path: Path, name: str) -> None:
    folder = package()
    (folder / name).rename(tmp_path / "elsewhere")
    (folder / name).symlink_to(tmp_path / "elsewhere")
    assert f"{name}: no " in reasons(folder)


def test_a_fifo_does_not_make_the_engine_wait(package: Write) -> None:
    os.mkfifo(package() / "src" / "pipe")
    assert "no regular file" in reasons(package())


def test_all_faults_are_named_at_once(package: Write) -> None:
    project = (
        '[project]\nname = "../acting"\nversion = "1 0"\ndependencies = ["-r /etc/passwd", "x @ file:///etc/passwd"]\n'
        '[project.entry-points."palestra.environments"]\na = "os.system"\n'
    )
    found = reasons(package(project=project)).splitlines()
    assert [line.split(": ")[0] for line in found] == [
        "project.name",
        "project.version",
        "project.entry-points.a",
        "project.dependencies",
        "project.dependencies",
    ]


@pytest.mark.parametrize(
    "dependency",
    ["--index-url=http://192.0.2.1", "-e .", "git+https://example.org/x", "x @ https://example.org/x.whl", "./x"],
)
def test_a_dependency_that_pip_could_take_for_something_else_is_refused(package: Write, dependency: str) -> None:
    project = f'[project]\nname = "acting"\nversion = "1.0"\ndependencies = ["{dependency}"]\n'
    assert "project.dependencies: " in reasons(package(project=project))


@pytest.mark.parametrize(
    "project",
    [
        "",
        "[project]\nname = 7",
        "[project]\nname = 'a'",
        "project = 1",
        "[[[",
        "[project]\nname='a'\nversion='1'\ndependencies=[1]",
    ],
)
def test_a_project_that_says_too_little_is_named_with_its_remedy(package: Write, project: str) -> None:
    assert ";" in reasons(package(project=project))


@pytest.mark.parametrize(
    "name", ["../acting.py", "/acting.py", "a/../../acting.py", "a\\b.py", "acting-1.0.data/scripts/x"]
)
def test_a_wheel_that_leads_elsewhere_is_refused(tmp_path: Path, name: str) -> None:
    assert "leads elsewhere" in (found := reasons(wheel(tmp_path, **{name: "x"}))) or "other folders" in found
    assert sorted(path.name for path in tmp_path.iterdir()) == ["acting-1.0-py3-none-any.whl"]


def test_a_link_in_a_wheel_is_refused(tmp_path: Path) -> None:
    path = wheel(tmp_path)
    with zipfile.ZipFile(path, "a") as archive:
        link = zipfile.ZipInfo("shadow")
        link.external_attr = (stat.S_IFLNK | 0o777) << 16
        archive.writestr(link, "/etc/shadow")
    assert "a symbolic link" in reasons(path)


def test_a_wheel_that_unpacks_to_too_much_is_read_no_further(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "LIMITS", sources.FolderLimits(entries=10, file_bytes=2**20, size_bytes=2**21))
    assert "too large" in reasons(wheel(tmp_path, bomb=bytes(2**22)))
    assert "too large" in reasons(wheel(tmp_path, a=bytes(2**20), b=bytes(2**20), c=bytes(2**20)))
    assert "more than 10 files" in reasons(wheel(tmp_path, **{str(number): "" for number in range(10)}))


def test_what_is_no_wheel_is_named(tmp_path: Path) -> None:
    (tmp_path / "x.whl").write_bytes(b"PK nonsense")
    assert "no wheel" in reasons(tmp_path / "x.whl")
    assert "there is nothing" in reasons(tmp_path / "missing")


def test_a_package_with_several_environments_asks_which(package: Write) -> None:
    project = (
        '[project]\nname = "acting"\nversion = "1.0"\n'
        '[project.entry-points."palestra.environments"]\na = "acting:Acting"\nb = "acting:Play"\n'
    )
    source = package_at(package(project=project))
    assert entry_of(source, "acting:Play") == "acting:Play"
    with pytest.raises(PackageRefused, match="not one entry point"):
        entry_of(source, None)


@pytest.mark.parametrize("python", ["/nowhere/python", "/bin/true", "/etc/passwd"])
def test_what_is_no_interpreter_is_named(python: str) -> None:
    with pytest.raises(PackageRefused, match=r"environment\.python"):
        interpreter_at(python)


def test_dependencies_without_wheels_are_not_built(
    package: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The index is a folder with a source distribution whose ``setup.py`` would run with our rights."""
    monkeypatch.setenv("PALESTRA_HOME", str(tmp_path / "home"))
    index = tmp_path / "index"
    (index / "harm-1.0").mkdir(parents=True)
    (index / "harm-1.0" / "setup.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    with zipfile.ZipFile(index / "harm-1.0.zip", "w") as archive:
        archive.write(index / "harm-1.0" / "setup.py", "harm-1.0/setup.py")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    project = '[project]\nname = "acting"\nversion = "1.0"\ndependencies = ["harm"]\n'
    with pytest.raises(PackageRefused, match="installing harm"):
        installed(package_at(package(project=project)), None)
    assert not (tmp_path / "ran").exists()
    assert list((tmp_path / "home" / "environment-packages").iterdir()) == []


def test_a_dependency_is_imported_from_the_packages_own_environment(
    package: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PALESTRA_HOME", str(tmp_path / "home"))
    index = tmp_path / "index"
    index.mkdir()
    metadata = {"helping-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: helping\nVersion: 1.0\n"}
    tags = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    with zipfile.ZipFile(index / "helping-1.0-py3-none-any.whl", "w") as archive:
        for name, text in {
            "helping.py": "VALUE = 7",
            **metadata,
            "helping-1.0.dist-info/WHEEL": tags,
            "helping-1.0.dist-info/RECORD": "",
        }.items():
            archive.writestr(name, text)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    project = '[project]\nname = "acting"\nversion = "1.0"\ndependencies = ["helping==1.0"]\n'
    folder = installed(package_at(package(project=project)), None).folder
    assert [path.read_text() for path in folder.glob("venv/lib/*/site-packages/helping.py")] == ["VALUE = 7"]


def test_an_installation_that_grows_too_large_is_ended(package: Write, tmp_path: Path, monkeypatch: Any) -> None:
    """Here a program stands for pip, which takes what the index sends."""
    monkeypatch.setattr(installation, "MOST_BYTES", 2**20)
    code = f"import time; open({str(tmp_path / 'made' / 'x')!r}, 'wb').write(bytes(2**21)); time.sleep(60)"
    (tmp_path / "made").mkdir()
    began = time.monotonic()
    with pytest.raises(PackageRefused, match="bytes already"):
        installation._run([sys.executable, "-c", code], "installing harm", tmp_path / "made")
    assert time.monotonic() - began < 50


def test_installations_that_nobody_uses_are_forgotten(
    package: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PALESTRA_HOME", str(tmp_path / "home"))
    used, unused = (installed(package_at(package(code)), None).folder for code in ("# 1", "# 2"))
    old = time.time() - installation.KEPT_S - 60
    os.utime(used, (old, old))
    os.utime(unused, (old, old))
    installed(package_at(package("# 1")), None)
    installed(package_at(package("# 3")), None)
    assert (used.exists(), unused.exists()) == (True, False)
