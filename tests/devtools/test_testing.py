"""The second chance of a few failed tests, in small projects of a few tests each."""

import argparse
import re
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from devtools.home import ROOT
from devtools.testing import (
    MOST_AGAIN,
    SOME_FAILED,
    Part,
    _chosen,
    _files_that_name,
    _parts,
    _with_paths,
    whole_selections,
)
from devtools.testing import test as run_tests
from devtools.venvs import Backend

WITHOUT_DJANGO = ("-p", "no:django")
STEADY = "def test_steady():\n    pass\n"
FAILS_ONCE = """
from pathlib import Path

import pytest

def test_unsteady():
    been = Path(__file__).with_name("been")
    first = not been.exists()
    been.touch()
    assert not first
"""
MEETS = """
import time
from pathlib import Path

def test_meets():
    first = not Path("{own}").exists()
    Path("{own}").touch()
    deadline = time.monotonic() + 60
    while not all(Path(other).exists() for other in {others}) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert all(Path(other).exists() for other in {others})
    assert {passes_at_once} or not first
"""
ALWAYS_FAILS = "def test_wrong():\n    assert False\n"
COUNTS = """
from pathlib import Path

def test_counted():
    with Path(__file__).with_name("count").open("a") as count:
        count.write("x")
"""


def played(folder: Path, capfd: pytest.CaptureFixture[str], *options: str, **files: str) -> tuple[int, str]:
    """The exit code and what was printed."""
    (folder / "pytest.ini").write_text("[pytest]\n")
    for name, text in files.items():
        (folder / f"test_{name}.py").write_text(text)
    [code] = whole_selections([part("only", *options)], folder)
    return code, capfd.readouterr().out


def part(name: str, *options: str) -> Part:
    return Part(name, [sys.executable, "-m", "pytest", "-q", *WITHOUT_DJANGO, *options])


@pytest.mark.parametrize("options", [(), ("-n", "2", "--dist", "loadfile")], ids=["in one process", "in two"])
def test_one_that_passes_alone_is_named_and_fails_nothing(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], options: tuple[str, ...]
) -> None:
    code, output = played(tmp_path, capfd, *options, once=FAILS_ONCE, steady=STEADY, counted=COUNTS)
    assert code == 0
    assert "dev: test_once.py::test_unsteady failed, and passed when it ran once more alone" in output
    assert (tmp_path / "count").read_text() == "x"


def test_one_that_fails_twice_fails_all(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    code, output = played(tmp_path, capfd, once=FAILS_ONCE, wrong=ALWAYS_FAILS)
    assert code == SOME_FAILED
    assert "dev: test_wrong.py::test_wrong failed twice" in output
    assert "dev: test_once.py::test_unsteady failed, and passed" in output


def test_many_that_fail_have_no_second_chance(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    many = {f"wrong_{number}": ALWAYS_FAILS for number in range(MOST_AGAIN + 1)}
    code, output = played(tmp_path, capfd, **many)
    assert code == SOME_FAILED
    assert "alone" not in output


def test_what_cannot_be_collected_has_no_second_chance(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    code, output = played(tmp_path, capfd, broken="import nothing_of_this_name\n", steady=STEADY)
    assert code not in (0, SOME_FAILED)
    assert "alone" not in output


def test_failures_of_an_earlier_call_are_not_counted(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "test_wrong.py").write_text(ALWAYS_FAILS)
    subprocess.run([sys.executable, "-m", "pytest", "-q", *WITHOUT_DJANGO], cwd=tmp_path, capture_output=True)
    (tmp_path / "test_wrong.py").write_text(STEADY)
    code, output = played(tmp_path, capfd, once=FAILS_ONCE)
    assert code == 0
    assert "test_wrong" not in output


@pytest.mark.parametrize(
    ("words", "selections", "rest"),
    [
        ([], ["everything"], []),
        (["verl", "backends"], ["verl", "backends"], []),
        (["quick", "-k", "soak"], ["quick"], ["-k", "soak"]),
        (["tests/engine", "quick"], ["everything"], ["tests/engine", "quick"]),
    ],
)
def test_selections_stand_first_and_the_rest_is_pytests(
    words: list[str], selections: list[str], rest: list[str]
) -> None:
    assert _chosen(words) == (selections, rest)


@pytest.mark.parametrize(
    ("passed_on", "given"),
    [
        ([], ["tests/engine/algorithms/test_against_verl.py"]),
        (["-x", "-k", "grpo"], ["-x", "-k", "grpo", "tests/engine/algorithms/test_against_verl.py"]),
        (["tests/devtools", "-x"], ["tests/devtools", "-x"]),
        (["tests/test_words.py::test_nothing"], ["tests/test_words.py::test_nothing"]),
    ],
)
def test_options_alone_do_not_change_where_tests_are_looked_for(passed_on: list[str], given: list[str]) -> None:
    assert _with_paths(passed_on, "verl") == given


def test_what_takes_long_of_the_backends_is_soaked_with_all_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Backend, "python", lambda backend, _home: Path("python"))

    def marks_of(selection: str, *passed_on: str) -> list[str]:
        commands = [part.command for part in _parts(selection, list(passed_on))]
        return [command[len(command) - 1 - command[::-1].index("-m") + 1] for command in commands]

    assert marks_of("backends") == [f"backends and {name} and not soak" for name in ("sglang", "megatron")]
    assert marks_of("soak")[:2] == [f"backends and {name} and soak" for name in ("sglang", "megatron")]
    assert all("not backends" in marked for marked in marks_of("soak")[2:])
    assert len(marks_of("soak", "tests/devtools")) == 3


@pytest.mark.parametrize("mark", ["verl", "protocols", "backends", "stack", "browser"])
def test_what_runs_apart_is_found_by_its_mark(mark: str) -> None:
    """A mark that is given in another way than by its name would not be found, so there is none."""
    files = _files_that_name(mark)
    assert files
    others = [
        str(file.relative_to(ROOT))
        for file in (ROOT / "tests").rglob("*.py")
        if re.search(rf"\bmark\.{mark}\b", file.read_text())
    ]
    assert sorted(set(others) - set(files)) == []


def meeting(own: str, *others: str, passes_at_once: bool = True) -> str:
    """A test that passes if those whose files are ``others`` are there at the same time."""
    return MEETS.format(own=own, others=others, passes_at_once=passes_at_once)


def test_three_parts_beside_each_other_keep_their_failures_apart(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Each waits for the two others, so that all run at a time, and fails once."""
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    names = ("left", "middle", "right")
    for own in names:
        others = [name for name in names if name != own]
        (tmp_path / f"test_{own}.py").write_text(meeting(own, *others, passes_at_once=False))
    codes = whole_selections([part(name, f"test_{name}.py") for name in names], tmp_path)
    output = capfd.readouterr().out
    assert codes == [0, 0, 0]
    for name in names:
        assert re.search(rf"^\[\d+ s\] {name}: FAILED test_{name}\.py::test_meets", output, re.MULTILINE)
        assert f"dev: test_{name}.py::test_meets failed, and passed when it ran once more alone" in output


def test_every_line_of_a_part_has_a_time(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    _, output = played(tmp_path, capfd, "-n", "2", steady=STEADY)
    assert "1 passed" in output
    assert [line for line in output.splitlines() if not re.match(r"\[\d+ s\] only: ", line)] == []


def test_environments_are_made_one_after_another_beside_parts_that_need_none(tmp_path: Path) -> None:
    """The part without one and the first environment wait for each other; no environment waits for a part."""
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "test_plain.py").write_text(meeting("plain", "first"))
    (tmp_path / "test_steady.py").write_text(STEADY)
    made = []

    def make(name: str) -> list[str]:
        made.append(f"{name} begins")
        (tmp_path / name).touch()
        deadline = time.monotonic() + 60
        while not (tmp_path / "plain").exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        made.append(f"{name} ends")
        return [sys.executable]

    steady = [*part("").command[1:], "test_steady.py"]
    parts = [Part(name, steady, environment=partial(make, name)) for name in ("first", "second")]
    assert whole_selections([*parts, part("plain", "test_plain.py")], tmp_path) == [0, 0, 0]
    assert made == ["first begins", "first ends", "second begins", "second ends"]


@pytest.fixture
def only_parts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., None]:
    """Makes a call of ``./dev test`` one of the given parts and checks, in a folder of their own."""
    (tmp_path / "pytest.ini").write_text("[pytest]\n")

    def change(parts: list[Part], checks: dict[str, list[str]]) -> None:
        monkeypatch.setattr("devtools.testing.ROOT", tmp_path)
        monkeypatch.setattr("devtools.testing._parts", lambda *_: parts)
        monkeypatch.setattr("devtools.testing._checks", lambda: checks)

    return change


def test_checks_are_made_beside_the_tests_and_a_failed_one_is_shown_and_named_last(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], only_parts: Callable[..., None]
) -> None:
    """The check and the test wait for each other."""
    (tmp_path / "test_plain.py").write_text(meeting("plain", "check"))
    check = meeting("check", "plain") + "test_meets()\nraise SystemExit('line 7 is too long')\n"
    checks = {"style": [sys.executable, "-c", check], "numbers": [sys.executable, "-c", ""]}
    only_parts([part("plain", "test_plain.py")], checks)
    assert run_tests(argparse.Namespace(passed_on=[])) == 1
    output = capfd.readouterr().out
    assert "1 passed" in output
    assert re.search(r"^\[\d+ s\] style: line 7 is too long$", output, re.MULTILINE)
    assert re.search(r"^\[\d+ s\] numbers: ok", output, re.MULTILINE)
    assert output.splitlines()[-1] == "dev: failed beside the tests: style"


def test_checks_that_hold_and_tests_that_pass_are_a_success(tmp_path: Path, only_parts: Callable[..., None]) -> None:
    (tmp_path / "test_steady.py").write_text(STEADY)
    only_parts([part("only", "test_steady.py")], {"numbers": [sys.executable, "-c", ""]})
    assert run_tests(argparse.Namespace(passed_on=[])) == 0


def test_most_tests_run_in_three_processes_after_all_others() -> None:
    [*others, last] = _parts("everything", [])
    assert [part.processes for part in others] == [1, 1]
    assert last.processes == 3
    assert last.command[last.command.index("-n") + 1] == "3"
