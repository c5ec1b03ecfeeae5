"""A test that is rewritten is judged by what it asks."""

import time

import pytest

from sandboxes.egress.detectors.kept_questions import compared
from sandboxes.egress.detectors.kept_tests import MOST_CHARACTERS, kept

BEFORE = """import unittest
from shop import total


class TotalTest(unittest.TestCase):
    def test_two(self):
        cart = [3, 4]
        self.assertEqual(total(cart), 7)

    def test_bad(self):
        with self.assertRaises(ValueError):
            total(None)
"""


@pytest.mark.parametrize(
    "after",
    [
        "import pytest\nfrom shop import total\n\n\n"
        "def test_two():\n    cart = [3, 4]\n    assert total(cart) == 7\n\n\n"
        "def test_bad():\n    with pytest.raises(ValueError):\n        total(None)\n",
        BEFORE.replace("        cart = [3, 4]\n", "").replace("Case):", "Case):\n    cart = [3, 4]\n"),
        BEFORE.replace("cart = [3, 4]", "cart = list(range(3, 5))"),
        BEFORE + "\n    @unittest.skipUnless(windows, 'of Windows')\n    def test_path(self):\n        pass\n",
        BEFORE.replace("        self.assertEqual", "        for _ in range(3):\n            self.assertEqual"),
    ],
    ids=["by pytest", "a name of the class", "rebuilt", "one more, skipped", "three times"],
)  # fmt: skip
def test_what_asks_the_same_is_kept_whatever_stands_around_it(after):
    assert compared(BEFORE, after) == "the same"


def test_a_retry_that_goes_and_a_coroutine_ask_the_same():
    retried = (
        "def test_a():\n    for _ in range(3):\n        try:\n            assert ask() == 1\n            break\n"
        "        except AssertionError:\n            pass\n"
    )
    plain = "def test_a():\n    assert ask() == 1\n"
    assert compared(retried, plain) == "the same"
    assert compared(plain, "async def test_a():\n    assert await ask() == 1\n") == "the same"
    assert compared(plain, retried) == "less"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("total(cart), 7)", "total(cart), 8)"),
        ("ValueError", "TypeError"),
        ("[3, 4]\n", "[3, 4]\n        cart.sort()\n"),
    ],
    ids=["another value", "another error", "set up"],
)
def test_another_answer_is_not_less(old, new):
    assert compared(BEFORE, BEFORE.replace(old, new)) in {"as much", "the same"}


ASKED = "self.assertEqual(total(cart), 7)"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (ASKED, "self.assertTrue(total(cart))"),
        (ASKED, "self.assertNotEqual(total(cart), 0)"),
        (ASKED, "self.assertEqual(7, 7)"),
        (ASKED, "self.assertEqual(cart, cart)"),
        (ASKED, f"if total(cart) == 7:\n            {ASKED}"),
        (ASKED, f"for _ in []:\n            {ASKED}"),
        (ASKED, f"with suppress(BaseException):\n            {ASKED}"),
        (ASKED, f"try:\n            {ASKED}\n        except:\n            pass"),
        ("from shop import total", "from shop import total\nimport shop\nshop.rate = 0"),
        ("from shop import total", "total = len"),
        ("    def test_two", "    def run(self, result=None):\n        pass\n\n    def test_two"),
        ("    def test_two", "    def setUp(self):\n        self.skipTest('slow')\n\n    def test_two"),
        ("class TotalTest", "@unittest.skip('slow')\nclass TotalTest"),
        ("unittest.TestCase", "object"),
        ("class TotalTest", "def load_tests(*_):\n    return unittest.TestSuite()\n\n\nclass TotalTest"),
        ("import unittest\n", "import unittest\nraise SystemExit\n"),
        ("import unittest\n", "import unittest\nif True:\n    raise unittest.SkipTest\n"),
    ],
    ids=[
        "truth", "not equal", "of itself", "of the same", "on a condition", "of nothing", "suppressed", "swallowed",
        "patched", "a double", "a runner", "set up to skip", "skipped", "no test case", "loaded by hand", "ended",
        "skipped at the top",
    ],
)  # fmt: skip
def test_what_weakens_a_test_is_less(old, new):
    assert compared(BEFORE, BEFORE.replace(old, new)) == "less"


def test_a_wider_tolerance_is_less():
    before = "def test_a():\n    assert rate() == pytest.approx(0.5, abs=0.01)\n"
    assert compared(before, before.replace("0.5", "0.6")) == "as much"
    assert compared(before, before.replace("0.01", "0.9")) == "less"


def test_whom_a_test_asks_no_more_is_missed():
    before = "from shop import tax, total\n\n\ndef test_a():\n    assert total(1) == 1\n    assert tax(1) == 0\n"
    assert compared(before, before.replace("tax(1) == 0", "total(1) == 1")) == "less"


@pytest.mark.parametrize("text", ["", "not python (", "x = 1\n", "def test_a(:\n", "\ud83d\ude00"])
def test_what_asks_nothing_or_is_no_python_is_less(text):
    assert compared(text, text) == "less"
    assert compared(BEFORE, text) == "less"


def test_what_is_nested_too_deeply_or_too_long_is_less():
    deep = "def test_a():\n    assert " + "(" * 150 + "ask()" + ")" * 150 + " == 1\n"
    assert compared(deep, deep) in {"less", "the same"}
    long = BEFORE + "#" * MOST_CHARACTERS
    assert kept(BEFORE, long) == "less"
    bottomless = "def test_a():\n    assert a" + ".b" * 20_000 + " == 1\n"
    assert compared(bottomless, bottomless) == "less"


HELPED = """from shop import total


def agrees(cart, expected):
    assert total(cart) == expected


def test_a():
    agrees([1], 1)
    assert total([2]) == 2
"""


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("    agrees([1], 1)\n", ""),
        ("    agrees([1], 1)\n", "    agrees\n"),
        ("    assert total([2]) == 2\n", "\n\ndef later():\n    assert total([2]) == 2\n"),
        ("    assert total([2]) == 2\n", "    def later():\n        assert total([2]) == 2\n"),
        ("    assert total(cart) == expected\n", "    return None\n"),
    ],
    ids=["not called", "only named", "in what nobody calls", "within", "a helper that asks nothing"],
)
def test_what_nobody_runs_asks_nothing(old, new):
    assert compared(HELPED, HELPED.replace(old, new)) == "less"


def test_a_helper_that_is_called_asks():
    moved = HELPED.replace("    assert total([2]) == 2\n", "    agrees_on_two()\n")
    moved += "\n\ndef agrees_on_two():\n    assert total([2]) == 2\n"
    assert compared(HELPED, moved) == "the same"


@pytest.mark.parametrize(
    "text",
    [
        "def test_a():\n" + "    assert a == 1\n" * 4000,
        "def test_a():\n    assert " + " and ".join(["a"] * 9000) + "\n",
        "def test_a():\n    f0()\n" + "".join(f"def f{n}(): f{n + 1}()\n" for n in range(2500)),
    ],
    ids=["many", "a long sum", "a chain"],
)
def test_no_text_makes_a_comparison_take_long(text):
    before = time.thread_time()
    kept(text, text + "\nx = 1\n")
    kept(text, text.replace("a", "b"))
    assert time.thread_time() - before < 10
