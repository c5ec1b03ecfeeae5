"""What every backend promises of cells and their interpreter, and of the prelude."""

import asyncio

import pytest

from sandboxes.opened import opened
from tests.sandboxes.asking import python


async def test_the_value_of_the_last_expression_is_printed(sandbox):
    result = await sandbox.run_python("x = 20\nx * 2 + 2")
    assert (result.outcome, result.stdout, result.stderr) == ("ok", "42\n", "")


async def test_none_and_earlier_expressions_are_not_printed(sandbox):
    assert (await sandbox.run_python("1\n2\nNone")).stdout == ""


async def test_what_is_printed_comes_before_the_value(sandbox):
    assert (await sandbox.run_python("print('a')\n'b'")).stdout == "a\n'b'\n"


async def test_variables_functions_and_imports_live_on(sandbox):
    await python(sandbox, "import math\ndef area(r): return math.pi * r * r\nr = 2")
    assert (await sandbox.run_python("round(area(r), 3)")).stdout == "12.566\n"


async def test_an_uncaught_exception_is_an_error_with_its_class_and_line(sandbox):
    result = await sandbox.run_python("a = 1\nb = a / 0\n")
    assert (result.outcome, result.exception, result.exit_code) == ("error", "ZeroDivisionError", None)
    assert 'File "<cell 1>", line 2' in result.stderr
    assert result.stderr.endswith("ZeroDivisionError: division by zero\n")
    assert "sandboxes" not in result.stderr, "the traceback shows the agent's own frames"


async def test_output_before_an_exception_is_kept(sandbox):
    assert (await sandbox.run_python("print('so far')\n1/0")).stdout == "so far\n"


async def test_a_syntax_error_is_an_error_and_runs_nothing(sandbox):
    result = await sandbox.run_python("print('ran')\nif True print(1)")
    assert (result.outcome, result.exception, result.stdout) == ("error", "SyntaxError", "")


async def test_a_null_byte_in_the_code_is_an_error_of_the_code(sandbox):
    result = await sandbox.run_python("x = '\0'")
    assert result.outcome == "error"
    assert result.exception in ("ValueError", "SyntaxError"), "which one depends on the version of Python"


@pytest.mark.parametrize(("call", "code"), [("sys.exit(3)", 3), ("exit()", 0), ("sys.exit('gone')", 1), ("quit(7)", 7)])
async def test_leaving_is_an_error_with_its_code_and_keeps_the_variables(sandbox, call, code):
    result = await sandbox.run_python(f"import sys; kept = 5\n{call}")
    assert (result.outcome, result.exception, result.exit_code) == ("error", "SystemExit", code)
    assert (await sandbox.run_python("kept")).stdout == "5\n"


async def test_os_exit_ends_the_interpreter_and_the_next_cell_is_told(sandbox):
    result = await sandbox.run_python("import os; x = 1; os._exit(9)")
    assert (result.outcome, result.exit_code) == ("error", 9)
    after = await sandbox.run_python("x")
    assert after.exception == "NameError"
    assert after.stderr.startswith("[fresh interpreter: ")


async def test_a_crash_is_killed_and_the_sandbox_lives(sandbox):
    result = await sandbox.run_python("import ctypes; ctypes.string_at(0)")
    assert (result.outcome, result.exit_code) == ("killed", -11)
    assert (await sandbox.run_python("1")).stdout == "1\n"


async def test_a_cell_that_forks_answers_once(sandbox):
    await sandbox.run_python("import os; pid = os.fork()")
    assert [(await sandbox.run_python(f"pid > 0, {n}")).stdout for n in range(5)] == [
        f"(True, {n})\n" for n in range(5)
    ]


async def test_an_exception_that_cannot_be_shown_is_still_an_error(sandbox):
    result = await python(
        sandbox,
        """
        class Hostile(Exception):
            def __str__(self): raise self
            __repr__ = __str__
        raise Hostile
        """,
    )
    assert (result.outcome, result.exception) == ("error", "Hostile")


async def test_endless_recursion_is_an_error(sandbox):
    result = await sandbox.run_python("def f(): f()\nf()")
    assert (result.outcome, result.exception) == ("error", "RecursionError")


async def test_unicode_survives_both_ways(sandbox):
    assert (await sandbox.run_python("'καλός ' + '日本' + chr(0x1F40D)")).stdout == "'καλός 日本🐍'\n"


async def test_binary_output_is_decoded_with_replacement(sandbox):
    result = await sandbox.run_python("import os; os.write(1, bytes([65, 255, 66])); None")
    assert result.stdout == "A\ufffdB"


async def test_the_standard_input_of_a_cell_is_empty(sandbox):
    assert (await sandbox.run_python("input()")).exception == "EOFError"


async def test_output_of_a_background_thread_is_not_the_next_cells(sandbox):
    await python(
        sandbox,
        """
        import os, threading, time
        threading.Thread(target=lambda: (time.sleep(0.1), os.write(1, b"late"))).start()
        """,
    )
    await asyncio.sleep(0.3)
    assert (await sandbox.run_python("'mine'")).stdout == "'mine'\n"


async def test_a_broken_stdout_is_the_cells_own_error(sandbox):
    result = await sandbox.run_python("import sys; sys.stdout.close()\nprint(1)")
    assert result.outcome == "error"
    assert (await sandbox.run_python("import sys\nsys.stderr.write('x')")).outcome in ("ok", "error")


async def test_a_cell_that_breaks_importing_leaves_later_cells_their_values(sandbox):
    await sandbox.run_python("import builtins, sys\ndel builtins.__import__\nsys.modules['_ast'] = None")
    assert (await sandbox.run_python("6 * 7")).stdout == "42\n"


async def test_a_broken_report_costs_the_interpreter_and_not_the_sandbox(sandbox):
    result = await sandbox.run_python("import os; os.write(4, b'forged and far too long' * 20)")
    assert result.outcome == "killed"
    assert (await sandbox.run_python("2")).stdout == "2\n"


async def test_sets_are_ordered_the_same_in_every_sandbox(spec):
    seen = set()
    for _ in range(3):
        async with opened(spec) as sandbox:
            seen.add((await sandbox.run_python("{'kappa', 'alpha', 'omega', 'delta'}")).stdout)
    assert len(seen) == 1


async def test_a_prelude_runs_now_and_again_after_a_time_out(sandbox):
    assert (await sandbox.set_prelude("print('once')\ndef show(c): print(ord(c))")).stdout == "once\n"
    assert (await sandbox.run_python("while True: pass", timeout_s=0.2)).outcome == "timeout"
    after = await sandbox.run_python("show('a')")
    assert (after.outcome, after.stdout) == ("ok", "97\n")
    assert after.stderr.startswith("[fresh interpreter: ")


async def test_a_prelude_ends_with_a_reset(sandbox):
    await sandbox.set_prelude("secret = 1")
    await sandbox.reset()
    assert (await sandbox.run_python("secret")).exception == "NameError"
    await sandbox.run_python("while True: pass", timeout_s=0.2)
    assert (await sandbox.run_python("secret")).exception == "NameError"
