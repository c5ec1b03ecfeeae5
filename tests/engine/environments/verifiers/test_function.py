"""A team's own function in real sandboxes: its scores, and every way in which it can fail to give one."""

import pytest
from pydantic import ValidationError

from engine.environments.contract import VerifierFailed
from engine.environments.verifiers.contract import Verification
from engine.environments.verifiers.function import FunctionVerifier
from engine.spec.dataset_row import DatasetRow
from engine.spec.verifier import PythonFunction
from sandboxes.spec import SandboxSpec

ROW = DatasetRow(id="r", prompt="How much is 6 times 7?", answer="42", metadata={"words": ["forty", "two"]})


async def verified(body: str, result: str = "forty-two", **settings: float) -> Verification:
    source = "def verify(result, row):\n" + "".join(f"    {line}\n" for line in body.splitlines())
    verifier = FunctionVerifier(PythonFunction.model_validate({"source": source} | settings), SandboxSpec())
    assert verifier.lacking(ROW) is None
    return await verifier.verified(result, ROW)


@pytest.mark.parametrize(
    ("body", "verification"),
    [
        ("return all(word in result for word in row['metadata']['words'])", Verification(True)),
        ("return result == row['answer']", Verification(False)),
        ("print('x' * 10**6)\nreturn 1", Verification(True, share=1.0)),
        ("return 0.25", Verification(False, share=0.25)),
        ("return 'tests' in row or row['id'] == 'r' and row['prompt'].endswith('7?')", Verification(True)),
    ],
)
async def test_what_it_returns_is_the_score(body: str, verification: Verification) -> None:
    assert await verified(body) == verification


async def test_a_score_is_right_from_a_bound_on() -> None:
    assert await verified("return 0.6", pass_score=0.6) == Verification(True, share=0.6)
    assert not (await verified("return 0.59", pass_score=0.6)).success


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("return row['no such part']", "KeyError: 'no such part'"),
        ("return None", "returned a NoneType"),
        ("return 'yes'", "returned a str"),
        ("return 7", "no score from 0 to 1"),
        ("return -0.1", "no score from 0 to 1"),
        ("return float('nan')", "no score from 0 to 1"),
        ("return float('inf')", "no score from 0 to 1"),
        ("return 10**5000", "no score from 0 to 1|ended with"),
        ("class One(float): pass\nreturn One(1)", "returned a One"),
        ("raise SystemExit(0)", "SystemExit"),
        ("import os\nos._exit(0)", "no score from 0 to 1"),
        ("while True: pass", "ended with timeout"),
        ("return [0] * 10**10", "MemoryError|ended with"),
        ("import socket\nreturn bool(socket.create_connection(('127.0.0.1', 22), 1))", "Error"),
        ("raise ValueError('x' * 10**6)", "ValueError: x+$"),
        ("def f(): f()\nf()", "RecursionError"),
        ("import os\nos.symlink('/etc/hostname', '/work/score.json')\nos._exit(0)", "no score|ended with"),
    ],
)
async def test_what_is_no_score_is_a_failed_verifier_and_no_reward(body: str, reason: str) -> None:
    with pytest.raises(VerifierFailed, match=f"row r: verifier python-function: .*({reason})") as failed:
        await verified(body, timeout_s=1.0 if "while True" in body else 30.0)
    assert len(str(failed.value)) < 500


@pytest.mark.parametrize("result", ["'''\"\"\"\\", "\0", "\ud800", "x" * 65536, "import os; os._exit(0)"])
async def test_the_result_reaches_it_as_a_text_and_never_as_code(result: str) -> None:
    assert await verified(
        f"return len(result) == {len(result)} and result[0] == {result[0]!r}", result
    ) == Verification(True)


async def test_one_answer_leaves_nothing_for_the_next() -> None:
    body = "import os, pathlib\nseen = os.path.exists('/tmp/seen')\npathlib.Path('/tmp/seen').touch()\nreturn not seen"
    verifier = FunctionVerifier(
        PythonFunction(source="def verify(result, row):\n    " + body.replace("\n", "\n    ")), SandboxSpec()
    )
    for _ in range(2):
        assert await verifier.verified("x", ROW) == Verification(True)


async def test_a_source_that_is_no_python_is_a_failed_verifier() -> None:
    verifier = FunctionVerifier(PythonFunction(source="def verify(result, row):\nreturn"), SandboxSpec())
    with pytest.raises(VerifierFailed, match="IndentationError"):
        await verifier.verified("x", ROW)


def test_a_source_without_the_function_is_refused() -> None:
    with pytest.raises(ValidationError, match="defines no function verify"):
        PythonFunction(source="verify = 1")
