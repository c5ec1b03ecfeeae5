"""``dev`` before there is an environment: with a Python and nothing else."""

import importlib.machinery
import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from devtools.home import ROOT


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A repository with an empty lock and a wheel of our own in place of torch, so that nothing is downloaded."""
    folder = tmp_path / "clone"
    (folder / "devtools").mkdir(parents=True)
    shutil.copy(ROOT / "dev", folder / "dev")
    (folder / "constraints.txt").write_text("")
    (folder / "requirements.lock").write_text("# nothing\n")
    (folder / "requirements-test.lock").write_text("# nothing\n")
    (folder / "devtools" / "__main__.py").write_text("import sys; print('verb', *sys.argv[1:], sys.prefix)\n")
    _write_wheel(tmp_path / "wheels")
    return folder


def _write_wheel(folder: Path) -> None:
    import zipfile

    folder.mkdir()
    info = "torch-2.13.0.dist-info"
    with zipfile.ZipFile(folder / "torch-2.13.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("torch.py", "")
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: torch\nVersion: 2.13.0\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", f"torch.py,,\n{info}/METADATA,,\n{info}/WHEEL,,\n{info}/RECORD,,\n")


def dev(clone: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = variables | {
        "PATH": os.pathsep.join([str(Path(sys.executable).resolve().parent), "/usr/bin", "/bin"]),
        "HOME": str(clone.parent),
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(clone.parent / "wheels"),
        "PIP_CONFIG_FILE": os.devnull,
    }
    return subprocess.run([clone / "dev", *words], env=environment, capture_output=True, text=True, cwd=clone.parent)


@pytest.mark.slow
def test_the_environment_is_made_once_and_the_verb_runs_in_it(clone: Path) -> None:
    first = dev(clone, "status")
    assert first.returncode == 0, first.stderr
    assert first.stdout == f"verb status {clone}/.venv\n"
    assert "installing torch==2.13.0" in first.stderr
    (clone.parent / "devtools").mkdir()
    (clone.parent / "devtools" / "__main__.py").write_text("print('the wrong one')")
    second = dev(clone, "status")
    assert second.stderr == ""
    assert second.stdout == first.stdout


@pytest.mark.slow
def test_modules_are_compiled_once_whatever_the_callers_environment_says(clone: Path) -> None:
    (clone / "devtools" / "verbs.py").write_text("")
    main = clone / "devtools" / "__main__.py"
    main.write_text(
        "import os; from devtools import verbs; print(verbs.__cached__, os.stat(verbs.__cached__).st_ino)\n"
    )
    first, second = (dev(clone, "status", PYTHONDONTWRITEBYTECODE="1") for _ in range(2))
    assert first.returncode == 0, first.stderr
    assert first.stdout == second.stdout


@pytest.mark.slow
def test_a_changed_lock_is_installed(clone: Path) -> None:
    dev(clone, "status")
    (clone / "requirements.lock").write_text("# changed\n")
    assert "installing requirements.lock" in dev(clone, "status").stderr


@pytest.mark.slow
@pytest.mark.soak  # below one whose installation failed starts anew
def test_an_interrupted_installation_starts_anew(clone: Path) -> None:
    dev(clone, "status")
    (clone / ".venv" / ".palestra-unfinished").write_text("")
    (clone / ".venv" / "half-installed").write_text("")
    again = dev(clone, "status")
    assert again.returncode == 0, again.stderr
    assert "interrupted" in again.stderr
    assert not (clone / ".venv" / "half-installed").exists()


@pytest.mark.slow
@pytest.mark.soak
def test_two_at_once_install_once(clone: Path) -> None:
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(2) as pool:
        both = [pool.submit(dev, clone, "status") for _ in range(2)]
        answers = [item.result() for item in both]
    assert [answer.returncode for answer in answers] == [0, 0], answers
    assert "".join(answer.stderr for answer in answers).count("making the environment") == 1


@pytest.mark.slow
def test_what_cannot_be_installed_ends_with_the_reason_and_starts_anew_next_time(clone: Path) -> None:
    (clone / "requirements.lock").write_text("no-such-distribution==1.0\n")
    failed = dev(clone, "status")
    assert failed.returncode == 1
    assert "no-such-distribution" in failed.stderr
    (clone / "requirements.lock").write_text("# nothing\n")
    assert dev(clone, "status").returncode == 0


@pytest.mark.parametrize("has_python", [False, True])
def test_a_folder_of_somebody_elses_is_refused_and_left_as_it_is(clone: Path, has_python: bool) -> None:
    folder = clone.parent / "thesis"
    (folder / "bin").mkdir(parents=True)
    (folder / "thesis.tex").write_text("")
    if has_python:  # as /usr has; this one installs nothing, whoever asks it
        (folder / "bin" / "python").symlink_to("/bin/false")
    refused = dev(clone, "status", PALESTRA_VENV=str(folder))
    assert refused.returncode == 1
    assert f"{folder} is neither empty nor a working Python environment" in refused.stderr
    assert {path.name for path in folder.iterdir()} == {"bin", "thesis.tex"}


def test_an_environment_of_somebody_elses_is_not_removed_when_its_installation_was_interrupted(clone: Path) -> None:
    folder = clone.parent / "theirs"
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "python").symlink_to(sys.executable)
    (folder / "pyvenv.cfg").write_text("include-system-site-packages = false\n")  # it has no pip
    for name in ("theirs.py", ".palestra-unfinished"):
        (folder / name).write_text("")
    assert "pip could not install the environment" in dev(clone, "status", PALESTRA_VENV=str(folder)).stderr
    assert (folder / "theirs.py").exists()


def test_an_old_python_is_told_what_is_needed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script = _loaded()
    monkeypatch.setattr(script.sys, "version_info", (3, 9, 2))
    monkeypatch.setattr(script.shutil, "which", lambda _: None)
    with pytest.raises(SystemExit):
        script.main()
    assert capsys.readouterr().err == "dev: needs Python 3.11 or newer; python3 here is 3.9\n"


def test_the_script_can_be_read_by_an_old_python() -> None:
    import ast

    ast.parse((ROOT / "dev").read_text(), feature_version=(3, 6))


@pytest.mark.parametrize(
    ("verb", "group"),
    [("exec", "runtime"), ("up", "runtime"), ("status", "runtime"), ("test", "test"), ("lock", "test")],
)
def test_only_developers_verbs_install_what_only_developers_need(
    monkeypatch: pytest.MonkeyPatch, verb: str, group: str
) -> None:
    script = _loaded()
    installed: list[str] = []
    monkeypatch.setattr(script, "ensure_environment", installed.append)
    monkeypatch.setattr(script.os, "execve", lambda *_: None)
    monkeypatch.setattr(script.sys, "argv", ["dev", verb, "--help"])
    script.main()
    assert installed == [group]


def _loaded() -> ModuleType:
    loader = importlib.machinery.SourceFileLoader("dev_script", str(ROOT / "dev"))
    spec = importlib.util.spec_from_loader("dev_script", loader)
    assert spec is not None
    script = importlib.util.module_from_spec(spec)
    sys.dont_write_bytecode, before = True, sys.dont_write_bytecode
    try:
        loader.exec_module(script)
    finally:
        sys.dont_write_bytecode = before
    return script
