"""math-verify in processes of its own: what is equal, what is not, and text that would never end."""

import os
import resource
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engine.environments.contract import VerifierFailed
from engine.environments.verifiers import math_check, mathematics
from engine.environments.verifiers.mathematics import LONGEST_RESULT, MathVerifier
from engine.spec.dataset_row import DatasetRow
from engine.spec.verifier import MathVerify


@pytest.fixture(scope="module")
def verifier() -> MathVerifier:
    return MathVerifier(MathVerify())


def row(answer: str) -> DatasetRow:
    return DatasetRow(id="r", prompt="?", answer=answer)


@pytest.mark.parametrize(
    ("result", "answer", "expected"),
    [
        (r"\frac12", "0.5", True),
        (r"2\sqrt2", r"\sqrt{8}", True),
        (r"$x^2+2x+1$", "(x+1)^2", True),
        (r"\{2,1\}", r"\{1,2\}", True),
        ("x=2", "2", True),
        (r"\boxed{7}", "$7$", True),
        (r"\begin{pmatrix}1&2\\3&4\end{pmatrix}", r"\begin{pmatrix}1&2\\3&4\end{pmatrix}", True),
        ("0.333333", r"\frac13", True),
        ("0.3333", r"\frac13", False),
        ("3.14159", r"\pi", False),
        ("1,2", "2", False),
        (r"1 \text{ or } 2", "2", False),
        (r"\{1,2,3\}", "2", False),
        ("[1,2]", "(1,2)", False),
        ("x", "2", False),
        ("nan", "0", False),
        (r"\infty", "2", False),
        ("", "2", False),
        ("   ", "2", False),
        ("2" * (LONGEST_RESULT + 1), "2" * LONGEST_RESULT, False),
        ("__import__('os').system('touch /tmp/read-as-code')", "2", False),
        (r"\frac{" * 300, "2", False),
        ("\ud800", "2", False),
    ],
)
async def test_mathematics(verifier: MathVerifier, result: str, answer: str, expected: bool) -> None:
    assert verifier.lacking(row(answer)) is None
    assert (await verifier.verified(result, row(answer))).success is expected


@pytest.mark.parametrize("answer", ["", "  ", "1" * (LONGEST_RESULT + 1)])
def test_a_row_without_mathematics_cannot_be_checked(verifier: MathVerifier, answer: str) -> None:
    assert verifier.lacking(row(answer)) is not None


HOSTILE = ["9^{9^{9^{9}}}", "(" * 900]


@pytest.mark.slow
@pytest.mark.parametrize("result", HOSTILE)
async def test_hostile_mathematics_is_never_right_and_others_are_still_checked(
    verifier: MathVerifier, result: str
) -> None:
    """It is wrong, or the check is ended: that is for the library to say."""
    try:
        assert not (await verifier.verified(result, row("2"))).success
    except VerifierFailed as failure:
        assert "verifier math-verify" in str(failure)  # noqa: PT017
    assert (await verifier.verified("1+1", row("2"))).success


def test_a_check_is_bounded_in_time_memory_and_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    document: dict[str, Any] = {"expected": "1", "result": "1", "digits": 6}
    monkeypatch.setattr(math_check, "CHECK_S", 1)

    def for_ever(**_: Any) -> bool:
        while True:
            pass

    monkeypatch.setattr(math_check, "are_equal", for_ever)
    assert math_check.checked(document).startswith("fault ")
    monkeypatch.setattr(math_check, "are_equal", lambda **_: bool(bytearray(4 * 2**30)))
    assert math_check.checked(document).startswith("fault MemoryError")
    monkeypatch.setattr(math_check, "are_equal", lambda **_: bool((tmp_path / "file").write_text("x")))
    assert math_check.checked(document).startswith("fault OSError")


async def test_a_process_that_dies_is_a_fault_and_is_replaced(verifier: MathVerifier) -> None:
    await verifier.verified("1", row("1"))
    process = verifier._idle.get_nowait()
    process.kill()
    process.wait()
    verifier._idle.put(process)
    with pytest.raises(VerifierFailed, match="the process has ended"):
        await verifier.verified("1", row("1"))
    assert (await verifier.verified("1", row("1"))).success


@pytest.fixture
def many_descriptors() -> Iterator[None]:
    """So many that the next ones have numbers above 1023."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, limits[1]), limits[1]))
    opened = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
    yield
    for descriptor in opened:
        os.close(descriptor)
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)


@pytest.mark.usefixtures("many_descriptors")
async def test_a_worker_with_many_descriptors_checks_as_any_other() -> None:
    assert (await MathVerifier(MathVerify()).verified("1+1", row("2"))).success


async def test_no_process_is_left_of_a_check_that_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[subprocess.Popen[bytes]]()

    def failing(process: subprocess.Popen[bytes], line: bytes) -> str:
        asked.append(process)
        raise OSError("the pipe is gone")

    monkeypatch.setattr(mathematics, "_answer", failing)
    with pytest.raises(OSError, match="the pipe is gone"):
        await MathVerifier(MathVerify()).verified("1", row("1"))
    assert [process.returncode for process in asked] == [-signal.SIGKILL]
