"""What each verifier takes for right, and hostile answers, which cost bounded time and are never right."""

import json
import time
from decimal import Decimal
from typing import Any

import pytest
from pydantic import ValidationError

from engine.environments.contract import VerifierFailed
from engine.environments.verifiers import json_schema
from engine.environments.verifiers.contract import UnusableVerifier
from engine.environments.verifiers.exact import ExactVerifier, normalised
from engine.environments.verifiers.extraction import placed, result_in
from engine.environments.verifiers.json_schema import SchemaVerifier
from engine.environments.verifiers.numeric import NumericVerifier, number_in
from engine.spec.dataset_row import DatasetRow
from engine.spec.verifier import ExactText, JsonSchema, Number


def row(answer: str | None) -> DatasetRow:
    return DatasetRow(id="r", prompt="?", answer=answer)


async def right(verifier: Any, result: str, answer: str | None) -> bool:
    assert verifier.lacking(row(answer)) is None
    return bool((await verifier.verified(result, row(answer))).success)


@pytest.mark.parametrize(
    ("place", "answer", "result"),
    [
        ("whole", " a\n", " a\n"),
        ("marker", "Answer: 3\nno, Answer: 4\nbye", "4"),
        ("marker", "Answer:\n\n 5\n6 ", "5\n6"),
        ("marker", "it is 4", None),
        ("marker", "Answer:  ", None),
        ("boxed", r"\boxed{1} so \boxed{\frac{1}{2}} ok", r"\frac{1}{2}"),
        ("boxed", r"\boxed{1} and \boxed{2", None),
        ("boxed", r"\boxed{\left\{ x_{1} \right.}.", r"\left\{ x_{1} \right."),
        ("boxed", r"\boxed{a \\ \}}", r"a \\ \}"),
        ("fenced", "```python\na = 1\n```\nor\n```\nb\nc\n```", "b\nc\n"),
        ("fenced", "```\nnever closed", None),
    ],
)
def test_the_result_is_the_last_one_in_its_place(place: Any, answer: str, result: str | None) -> None:
    assert result_in(answer, place, "Answer:") == result


@pytest.mark.parametrize("place", ["whole", "marker", "boxed", "fenced"])
@pytest.mark.parametrize("result", ["4", "one\ntwo", r"\{1, 2\}", "\nf(x) = {x}\n"])
def test_a_result_is_found_where_it_was_placed(place: Any, result: str) -> None:
    answer = placed(result, place, "Answer:")
    assert answer is not None
    assert (result_in(answer, place, "Answer:") or "").strip() == result.strip()


@pytest.mark.parametrize(
    ("place", "result"),
    [("marker", "Answer: 4"), ("boxed", "f(x) = {1, 2"), ("boxed", "a} b"), ("fenced", "```py\nx\n```")],
)
def test_a_result_that_its_place_cannot_hold_is_placed_nowhere(place: Any, result: str) -> None:
    assert placed(result, place, "Answer:") is None


@pytest.mark.parametrize(
    ("options", "result", "answer", "expected"),
    [
        ({}, "  Paris ", "Paris", True),
        ({}, "paris", "Paris", False),
        ({}, "New\n York", "New York", True),
        ({"strip": False}, "Paris ", "Paris", False),
        ({"ignore_case": True}, "STRASSE", "Straße", True),
        ({"ignore_punctuation": True}, "«Yes», sir!", "Yes sir", True),
        ({}, "cafe\u0301", "café", True),
        ({"unicode": "none"}, "cafe\u0301", "café", False),
        ({}, "Ｐａｒｉｓ", "Paris", False),
        ({"unicode": "nfkc"}, "Ｐａ\u200bｒｉｓ", "Paris", True),
        ({"unicode": "nfkc", "ignore_case": True}, "Pаris", "Paris", False),
    ],
)
async def test_exact_text(options: dict[str, Any], result: str, answer: str, expected: bool) -> None:
    assert await right(ExactVerifier(ExactText(**options)), result, answer) is expected


def test_an_answer_of_nothing_but_what_is_left_out_cannot_be_compared_with() -> None:
    verifier = ExactVerifier(ExactText(ignore_punctuation=True))
    assert "nothing is left" in str(verifier.lacking(row("...")))
    assert "no answer" in str(verifier.lacking(row(None)))


@pytest.mark.parametrize("options", [{"unicode": "nfkc", "ignore_case": True, "ignore_punctuation": True}, {}])
def test_normalising_twice_changes_nothing_more(options: dict[str, Any]) -> None:
    settings = ExactText(**options)
    for text in ("ǅ ﬁ ß", " a\u00a0b ", "İstanbul!", "\u1e9b\u0323"):
        assert normalised(normalised(text, settings), settings) == normalised(text, settings)


@pytest.mark.parametrize(
    ("options", "result", "answer", "expected"),
    [
        ({}, "So it is 42.", "42", True),
        ({}, "first 41, then 42", "42", True),
        ({}, r"\boxed{42} and not 43", "42", True),
        ({}, "1,234,567.5", "1234567.5", True),
        ({}, "-3", "3", False),
        ({}, "\N{MINUS SIGN}3", "-3", True),
        ({}, "5-3", "3", True),
        ({}, "1/3", "0.33333333", True),
        ({}, r"\boxed{\frac{1}{4}}", "0.25", True),
        ({}, r"-\frac{1}{4}", "-0.25", True),
        ({}, "45%", "0.45", True),
        ({}, r"45\%", "45", False),
        ({"percent": "ignored"}, "45%", "45", True),
        ({}, "6.02e23", "6.02E+23", True),
        ({"absolute_tolerance": 0.5}, "10.5", "10", True),
        ({"absolute_tolerance": 0.5}, "10.51", "10", False),
        ({"relative_tolerance": 0.01}, "101", "100", True),
        ({"relative_tolerance": 0.01}, "101.1", "100", False),
        ({"relative_tolerance": 0.0}, "1.0", "1", True),
        ({}, "10²", "102", False),
        ({}, "four", "4", False),
        ({}, "1/0", "1", False),
        ({"relative_tolerance": 0.0}, "7" * 150 + "1", "7" * 150 + "2", False),
        ({"relative_tolerance": 0.0}, "7" * 150 + "1", "7" * 150 + "1", True),
    ],
)
async def test_numbers(options: dict[str, Any], result: str, answer: str, expected: bool) -> None:
    assert await right(NumericVerifier(Number(**options)), result, answer) is expected


@pytest.mark.parametrize(
    "result",
    [
        "nan", "inf", "-Infinity", "1e999999999", "1e-999999999", "9" * 60_000, "1/" + "9" * 60_000,
        "1" + ",000" * 15_000, r"\boxed{" * 9_000, r"\frac{" * 10_000, "-" * 65_536, "1e" * 30_000, "٤٢",
        r"\frac99" * 9_000, r"\frac" + " " * 60_000, "9" * 30_000 + "." + "9" * 30_000 + r"\frac",
        "9" * 60_000 + r"\frac12",
    ],
)  # fmt: skip
async def test_no_hostile_number_is_right_or_takes_long(result: str) -> None:
    began = time.monotonic()
    assert await right(NumericVerifier(Number(absolute_tolerance=1e300)), result, "42") is (result == "1e" * 30_000)
    assert time.monotonic() - began < 2


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (r"\frac12", "0.5"),
        (r"\boxed{\frac34}", "0.75"),
        (r"\frac{1}2", "0.5"),
        (r"\frac1{8}", "0.125"),
        (r"\frac 3 4", "0.75"),
        (r"\dfrac{1}{4} \tfrac{1}{4} \cfrac{1}{5}", "0.2"),
        (r"-\frac12", "-0.5"),
        (r"\frac{-3}{4}", "-0.75"),
        (r"\frac{1}{-4}", "-0.25"),
        (r"\frac{1{,}000}{8}", "125"),
        (r"\frac{45}{100}\%", "0.0045"),
        (r"2\frac{3}{4}", "2.75"),
        (r"\boxed{1\frac{1}{2}}", "1.5"),
        (r"$2 \dfrac34$", "2.75"),
        (r"-1\frac12", "-1.5"),
        (r"1,000\frac12", "1000.5"),
        (r"it is \frac12.", "0.5"),
        (r"\frac12, or 3", "3"),
        (r"60 \frac{km}{h}", "60"),
        (r"\frac123", None),
        (r"\frac{1}{2}3", None),
        (r"\frac12.5", None),
        (r"\frac12\frac34", None),
        (r"1.5\frac12", None),
        (r"2\frac{-1}{2}", None),
        (r"\frac10", None),
        (r"1\frac10", None),
    ],
)
def test_fractions_are_read_as_tex_reads_them(text: str, value: str | None) -> None:
    assert number_in(text, percent="hundredths") == (None if value is None else Decimal(value))


def test_a_power_is_read_and_never_computed() -> None:
    assert number_in("9**9**9", percent="hundredths") == 9


SCHEMA = '{"type": "object", "required": ["n"], "properties": {"n": {"type": "integer"}}}'


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        ('{"n": 1}', True),
        ('{"n": 1.0}', True),
        ('sure:\n```json\n{"n": 2}\n```\n```\n{}\n```', True),
        ('{"n": true}', False),
        ('{"n": "1"}', False),
        ('{"n": 1, "n": "x"}', False),
        ('{"n": NaN}', False),
        ('{"n": 1e999}', False),
        ('{"n": ' + "9" * 10_000 + "}", False),
        ('{"n": 1, "m": ' + "[" * 30_000 + "]" * 30_000 + "}", False),
        ("[" * 60_000, False),
        ("no JSON", False),
        ("", False),
    ],
)
async def test_json_that_fits_the_schema(result: str, expected: bool) -> None:
    assert await right(SchemaVerifier(JsonSchema(json_schema=SCHEMA)), result, None) is expected


async def test_json_may_have_to_equal_the_rows() -> None:
    verifier = SchemaVerifier(JsonSchema(equals_answer=True))
    assert await right(verifier, '{"b": [1.0], "a": null}', '{"a": null, "b": [1]}')
    assert not await right(verifier, '{"a": true}', '{"a": 1}')
    assert "no JSON" in str(verifier.lacking(row("{")))


async def test_patterns_and_references_are_checked_in_a_process_of_their_own() -> None:
    schema = '{"$defs": {"a": {"pattern": "^a+$"}}, "properties": {"x": {"$ref": "#/$defs/a"}}}'
    verifier = SchemaVerifier(JsonSchema(json_schema=schema))
    assert await right(verifier, '{"x": "aa"}', None)
    assert not await right(verifier, '{"x": "ab"}', None)


async def test_a_long_answer_to_a_schema_of_many_parts_is_checked_in_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_schema, "CHECK_S", 1.0)
    schema = json.dumps({"items": {"anyOf": [{"type": "string"}] * 1000 + [{"type": "integer"}]}})
    verifier = SchemaVerifier(JsonSchema(json_schema=schema))
    with pytest.raises(VerifierFailed, match="within 1 s"):
        await verifier.verified(json.dumps([7] * 10_000), row(None))


async def test_a_pattern_that_takes_for_ever_is_no_reward(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_schema, "CHECK_S", 1.0)
    verifier = SchemaVerifier(JsonSchema(json_schema='{"pattern": "^(a+)+$"}'))
    with pytest.raises(VerifierFailed, match="within 1 s"):
        await verifier.verified('"' + "a" * 60 + '!"', row(None))


async def test_a_reference_to_elsewhere_is_never_fetched() -> None:
    verifier = SchemaVerifier(JsonSchema(json_schema='{"$ref": "http://127.0.0.1:9/schema"}'))
    with pytest.raises(VerifierFailed, match="Unresolvable"):
        await verifier.verified("{}", row(None))


def test_what_is_no_schema_is_refused() -> None:
    with pytest.raises(ValidationError, match="no JSON object"):
        JsonSchema(json_schema="[]")
    with pytest.raises(UnusableVerifier, match="no JSON schema"):
        SchemaVerifier(JsonSchema(json_schema='{"type": 7}'))
