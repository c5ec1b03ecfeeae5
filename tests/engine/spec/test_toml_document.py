"""TOML of people, which is bounded before it is read."""

import tomllib
from typing import Any

import pytest

from engine.spec import toml_document as module
from engine.spec.toml_document import LONGEST_TEXT, MOST_PARTS, BadToml, toml_document

LONG = ".".join(["a"] * (MOST_PARTS + 1))
REACHES_TOMLLIB = AssertionError("it was read")


@pytest.fixture
def unread(monkeypatch: pytest.MonkeyPatch) -> None:
    """``tomllib`` must not see it."""

    def loads(text: str) -> dict[str, Any]:
        raise REACHES_TOMLLIB

    monkeypatch.setattr(module.tomllib, "loads", loads)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (f"{LONG} = 1", 1),
        (f"x = 1\n[{LONG}]", 2),
        (f"\n\n[[ {LONG} ]]", 3),
        (f"x = {{ {LONG} = 1 }}", 1),
        (" . ".join(['"a"', "'a'", "a"] * 6) + " = 1", 1),
        ('x = """a""""\n' + LONG + " = 1", 2),
        ('x = """\\""" a"""""\n' + LONG + " = 1", 2),
        ("x = '''\\'''\n" + LONG + " = 1", 2),
        ('x = "#"\n' + LONG + " = 1", 2),
        ("x = '\\'\n" + LONG + " = 1", 2),
        ('x = ""\n' + LONG + " = 1", 2),
        ("x = [ # '''\n]\n" + LONG + " = 1", 3),
        ('"x\\"" = 1\n' + LONG + " = 1", 2),
        ("a." * 2**16 + "a = 1", 1),
        ("x = {" + "a." * 2**16 + "a = 1}", 1),
    ],
)
@pytest.mark.usefixtures("unread")
def test_a_key_of_very_many_parts_is_refused_before_it_is_read(text: str, line: int) -> None:
    with pytest.raises(BadToml, match=rf"^line {line}: a key of \d+ parts, of which there may be {MOST_PARTS}; "):
        toml_document(text)


@pytest.mark.usefixtures("unread")
def test_a_long_text_is_refused_before_it_is_read() -> None:
    with pytest.raises(BadToml, match=f"^more than {LONGEST_TEXT} characters; make it shorter$"):
        toml_document("#" * (LONGEST_TEXT + 1))
    with pytest.raises(BadToml, match="^more than 3 characters"):
        toml_document("####", longest=3)


@pytest.mark.parametrize(
    "text",
    [
        LONG.rpartition(".")[0] + " = 1",
        f'x = "{LONG}"',
        f"x = '{LONG}'",
        f'x = """\n{LONG} = 1 " ""\n\\""" {LONG}"""',
        f"x = '''\n{LONG} = 1 ' ''\n{LONG}'''",
        f"x = 1 # {LONG}",
        f'"{LONG}"."{LONG}" = 1',
        f'"{"k" * 2000}" = "{"9" * 5000}"  # {"9" * 5000}',
        'x = [1.5, -2.5e3, 1979-05-27T00:32:00.999999-07:00, "a\\"b"]',
        "x = 1.5\n" * 0 + "y = [" + "1.5, " * 100 + "]",
    ],
)
def test_anything_else_is_what_tomllib_says(text: str) -> None:
    assert toml_document(text) == tomllib.loads(text)


@pytest.mark.parametrize("piece", ['"', "'", '\\"', '"\\', "'''", '"""', '""', "a ", ". ", '"a".', "#\n", "a\t"])
def test_looking_for_long_keys_takes_time_in_proportion(piece: str) -> None:
    """A text of 2^18 characters that took time in its square would take hours."""
    with pytest.raises(BadToml):
        toml_document("=" + piece * (2**18 // len(piece) - 1))


@pytest.mark.parametrize("number", ["9" * 5000, "0x" + "f" * 5000, "-" + "1_" * 600 + "1", "1." + "1" * 1001])
@pytest.mark.parametrize("before", ["x = ", "x = [1,\n", "x = { y = "])
@pytest.mark.usefixtures("unread")
def test_a_number_of_thousands_of_digits_is_named_with_its_line(number: str, before: str) -> None:
    line = 2 + before.count("\n")
    with pytest.raises(BadToml, match=rf"^line {line}: a number or word of \d+ characters, .*; write a shorter one$"):
        toml_document('a = "b"\n' + before + number)


@pytest.mark.parametrize("nested", ["[" * 50_000, "{a=" * 50_000])
def test_a_bomb_of_brackets_is_nested_too_deeply(nested: str) -> None:
    with pytest.raises(BadToml, match="nested too deeply; nest it less$"):
        toml_document("x = " + nested)


def test_a_fault_names_field_value_and_remedy() -> None:
    with pytest.raises(BadToml) as bad:
        toml_document("x = 1\ny = [")
    problem = bad.value.problem("policy")
    assert (problem.field, problem.value, problem.remedy) == ("policy", "x = 1\ny = [", "mend the line")
    assert problem.message == "this is no TOML: Invalid value (at end of document)"
