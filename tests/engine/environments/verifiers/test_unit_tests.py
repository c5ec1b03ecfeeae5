"""Rows' tests and the code of answers, in real sandboxes: right, wrong, hostile, and tests that are at fault."""

import pytest

from engine.environments.contract import VerifierFailed
from engine.environments.verifiers.contract import Verification
from engine.environments.verifiers.inside import decoded, encoded, run_tests
from engine.environments.verifiers.unit_tests import UnitTestVerifier
from engine.spec.dataset_row import DatasetRow
from engine.spec.verifier import UnitTests
from sandboxes.spec import SandboxSpec

TESTS = "assert add(1, 2) == 3\nassert add([1], [2]) == [1, 2]\nassert add(add(1, 1), 1) == 3\n"
GOOD = "def add(a, b):\n    return a + b\n"


async def verified(code: str, tests: str = TESTS, timeout_s: float = 5.0) -> Verification:
    verifier = UnitTestVerifier(UnitTests(timeout_s=timeout_s), SandboxSpec())
    row = DatasetRow(id="r", prompt="?", tests=tests)
    assert verifier.lacking(row) is None
    return await verifier.verified(code, row)


async def test_code_that_passes_all_tests_is_right() -> None:
    assert await verified(GOOD) == Verification(success=True, share=1.0)


async def test_the_share_of_tests_that_pass_is_known() -> None:
    found = await verified("def add(a, b): return 3")
    assert not found.success
    assert found.share == pytest.approx(2 / 3)


@pytest.mark.parametrize(
    "tests",
    [
        "def check(candidate):\n    assert candidate(1, 1) == 2\n    assert candidate(2, 2) == 4\ncheck(add)\n",
        "from solution import add\ndef test_one():\n    assert add(1, b=1) == 2\n",
        "import solution\nfor n in range(5):\n    assert solution.add(n, n) == 2 * n\n",
        "try:\n    add(1, 'a')\nexcept TypeError:\n    pass\nelse:\n    assert False\n",
    ],
)
async def test_forms_of_tests(tests: str) -> None:
    assert (await verified(GOOD, tests)).success
    assert not (await verified("def add(a, b): return None", tests)).success


async def test_a_test_of_too_many_calls_is_the_rows_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.environments.verifiers.unit_tests.MOST_ROUNDS", 3)
    assert (await verified(GOOD, "for n in range(2):\n    assert add(n, n) == 2 * n\n")).success
    with pytest.raises(VerifierFailed, match="more than 3 calls one after the other; divide it"):
        await verified(GOOD, "for n in range(9):\n    assert add(n, n) == 2 * n\n")


HOSTILE = {
    "an object that equals all": "class All:\n    def __eq__(self, o): return True\ndef add(a, b): return All()",
    "an exit": "import os, sys\nos._exit(0)",
    "a report of its own": 'open(\'/work/report.json\', \'w\').write(\'{"open": [], "passed": 9, "failed": 0, "fault": null}\')',  # noqa: E501
    "responses that are nonsense": "import os\nopen('/work/responses.jsonl', 'w').write('[' * 90000 + '\\n')\nos._exit(0)",  # noqa: E501
    "a link": "import os\nos.remove('/work/responses.jsonl')\nos.symlink('/etc/passwd', '/work/responses.jsonl')\nos._exit(0)",  # noqa: E501
    "too much": "def add(a, b): return 'x' * 10**7",
    "deep": "def add(a, b):\n    x = []\n    for _ in range(10**5): x = [x]\n    return x",
    "nan": "def add(a, b): return float('nan')",
    "no code": "I would add the numbers.",
    "patched asserts": "import builtins\nbuiltins.AssertionError = Exception\ndef add(a, b): return -1",
}


@pytest.mark.parametrize("how", HOSTILE)
async def test_no_hostile_code_passes(how: str) -> None:
    assert not (await verified(HOSTILE[how])).success


async def test_code_that_hangs_has_failed_what_comes_after() -> None:
    code = "def add(a, b):\n    while b == [2]: pass\n    return a + b"
    found = await verified(code, timeout_s=1.0)
    assert not found.success
    assert found.share == pytest.approx(1 / 3)


@pytest.mark.parametrize(
    ("tests", "reason"),
    [
        ("assert add(", "no Python"),
        ("x = 1 / 0\nassert add(1, 1) == 2", "failed before any test"),
        ("assert 1 == 1", "call no function"),
        ("while True: pass", "timeout"),
        ("import os\nos._exit(3)", "its tests ended with"),
    ],
)
async def test_tests_that_are_at_fault_are_no_reward(tests: str, reason: str) -> None:
    with pytest.raises(VerifierFailed, match=reason):
        await verified(GOOD, tests, timeout_s=1.0)


def test_plain_values_cross_as_they_are() -> None:
    value = [None, True, 7, 1.5, "é", b"\0", (1, (2,)), {1, 2}, frozenset("a"), {(1, 2): {"x": [float("inf")]}}]
    crossed = decoded(encoded(value))
    assert crossed == value
    assert [type(inner) for inner in crossed] == [type(inner) for inner in value]


def test_all_calls_that_wait_for_nothing_are_open_at_once() -> None:
    report = run_tests("assert f(1) == 1\nassert f(2) == 2\nassert f(f(3)) == 3", {})
    assert [key for key, _ in report["open"]] == ["0.0", "1.0", "2.0"]
