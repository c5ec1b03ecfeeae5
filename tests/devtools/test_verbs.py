"""The command line, as a person meets it."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from devtools import checks
from devtools.__main__ import _parser
from devtools.errors import Unfit
from devtools.home import ROOT, Home, HomeLock, socket_folder_of


@pytest.fixture(autouse=True)
def _leave_nothing_in_the_temporary_folder(tmp_path: Path) -> Iterator[None]:
    yield
    for home in (tmp_path, tmp_path / "home"):
        shutil.rmtree(socket_folder_of(home), ignore_errors=True)


def dev(home: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PALESTRA_HOME": str(home), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "devtools", *words]
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=120
    )


def test_an_unknown_verb_is_answered_with_those_there_are(tmp_path: Path) -> None:
    done = dev(tmp_path, "launch")
    assert done.returncode == 1
    assert done.stderr == (
        "dev: there is no verb 'launch'; there are: up, down, status, reset, logs, exec, serve, test, bench, lock\n"
    )


def test_no_verb_shows_the_help(tmp_path: Path) -> None:
    done = dev(tmp_path)
    assert done.returncode == 0
    assert "./dev up starts it" in done.stdout


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["up", "--json", "out.json"], "--json, --seed and --spec belong to --once"),
        (["up", "--once", "--detach"], "exclude each other"),
        (["up", "--once", "--json", "/no/such/folder/out.json"], "/no/such/folder does not exist"),
        (["up", "--once", "--spec", "missing.toml"], "missing.toml does not exist"),
        (["up", "--once", "--json", "/"], "--json / cannot be written"),
        (["up", "--once", "--spec", "/"], "--spec / is no file"),
        (["up", "--seed", "one"], "invalid int value: 'one'"),
        (["exec"], "say what to run"),
        (["exec", "no-such-command"], "there is no command 'no-such-command'"),
        (["exec", "/"], "'/' cannot be run: Permission denied"),
        (["bench", "nothing"], "there is no benchmark 'nothing'; there are: "),
        (["logs", "nothing"], "there is no log 'nothing'"),
    ],
)
def test_nonsense_is_refused_before_anything_starts(words: list[str], complaint: str, tmp_path: Path) -> None:
    done = dev(tmp_path / "home", *words)
    assert done.returncode == 1
    assert complaint in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("words", [["up", "--det"], ["status", "--js"]])
def test_an_option_is_written_out(words: list[str]) -> None:
    """Else ``up --det`` would start itself without end: what it starts leaves out the word ``--detach`` alone."""
    parser, _ = _parser()
    with pytest.raises(Unfit, match=f"unrecognized arguments: {words[-1]}"):
        parser.parse_args(words)


def test_a_model_is_served_by_a_verb_which_says_what_it_takes(tmp_path: Path) -> None:
    shown = dev(tmp_path, "serve")
    assert shown.returncode == 0
    assert "--model FOLDER" in shown.stdout
    refused = dev(tmp_path, "serve", "nothing.toml")
    assert refused.returncode == 2
    assert "nothing.toml: there is no such file" in refused.stderr


def test_a_home_that_is_a_file_is_one_line_with_a_remedy(tmp_path: Path) -> None:
    (tmp_path / "home").write_text("")
    done = dev(tmp_path / "home", "up")
    assert done.returncode == 1
    assert done.stderr == f"dev: cannot make {tmp_path / 'home'}: File exists; set PALESTRA_HOME to a folder of yours\n"


def test_an_up_that_is_refused_leaves_the_state_of_the_one_that_runs(tmp_path: Path) -> None:
    home = Home(tmp_path, socket_folder_of(tmp_path))
    lock = HomeLock(home)
    assert lock.acquire()
    home.state_file.write_text('{"pid": 4711, "url": "http://127.0.0.1:8700"}')
    done = dev(tmp_path, "up")
    lock.release()
    assert done.returncode == 1
    assert "already up" in done.stderr
    assert home.state()["pid"] == 4711, "./dev down would signal somebody else"


def test_exec_passes_options_on_and_knows_the_home(tmp_path: Path) -> None:
    done = dev(tmp_path, "exec", "python", "-c", "import os, engine.spec.run; print(os.environ['PALESTRA_RUNS'])")
    assert done.stdout == f"{tmp_path}/runs\n", done.stderr


def test_exec_leaves_temporary_files_where_the_caller_has_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What services have is cleared when they start and stop."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    done = dev(tmp_path / "home", "exec", "python", "-c", "import tempfile; print(tempfile.gettempdir())")
    assert done.stdout == f"{tmp_path}\n", done.stderr


def test_status_of_a_home_where_nothing_runs_says_so_and_fails(tmp_path: Path) -> None:
    assert dev(tmp_path, "status").returncode == 3
    assert json.loads(dev(tmp_path, "status", "--json").stdout)["phase"] == "down"
    assert "nothing is up" in dev(tmp_path, "down").stdout


def test_status_of_a_home_whose_supervisor_has_not_reported_yet_is_starting(tmp_path: Path) -> None:
    lock = HomeLock(Home(tmp_path, socket_folder_of(tmp_path)))
    assert lock.acquire()
    shown, as_json = dev(tmp_path, "status"), dev(tmp_path, "status", "--json")
    lock.release()
    assert (shown.returncode, as_json.returncode) == (3, 3), shown.stderr
    assert shown.stdout.startswith("starting")
    assert json.loads(as_json.stdout)["phase"] == "starting"


def test_reset_removes_a_home_only_when_told_so(tmp_path: Path) -> None:
    home = tmp_path / "home"
    dev(home, "exec", "true")
    (home / "lock").touch()
    assert "say ./dev reset --yes" in dev(home, "reset").stderr
    assert home.exists()
    assert dev(home, "reset", "--yes").returncode == 0
    assert not home.exists()


def test_reset_leaves_a_folder_alone_that_was_not_made_by_up(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("")
    assert "was not made by ./dev up" in dev(tmp_path, "reset", "--yes").stderr
    assert (tmp_path / "thesis.tex").exists()


def test_a_full_disk_is_one_line_with_a_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "FREE_DISK_BYTES", 2**80)
    with pytest.raises(Unfit, match=r"^only \d+ MiB are free in .*; free some, or set PALESTRA_HOME[^\n]*$"):
        checks.check_disk(tmp_path / "not" / "there" / "yet")


def test_missing_bubblewrap_is_one_line_with_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks.shutil, "which", lambda _: None)
    with pytest.raises(Unfit, match=r"^bubblewrap \(bwrap\) is missing.*apt-get install bubblewrap$"):
        checks.check_bubblewrap()


def test_a_machine_without_user_namespaces_is_one_line_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusing = tmp_path / "bwrap"
    refusing.write_text("#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2\nexit 1\n")
    refusing.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    with pytest.raises(Unfit, match=r"^this machine gives no user namespaces \(bwrap: No permissions[^\n]*$"):
        checks.check_user_namespaces()
