"""Numbers: an answer is right whose number is near enough to the row's.

Numbers are read as decimals of bounded length and exponent, and never computed from a text: ``9**9**9`` is three
numbers, of which the last is 9.  ``NaN`` and infinities are no numbers.
"""

import re
from collections import deque
from decimal import Context, Decimal, localcontext

from engine.environments.verifiers.contract import WRONG, Verification
from engine.environments.verifiers.extraction import in_last_boxed
from engine.spec.dataset_row import DatasetRow
from engine.spec.verifier import Number

LONGEST_NUMBER = 200
"""In characters."""
LARGEST_EXPONENT = 400
_CONTEXT = Context(prec=4 * (LONGEST_NUMBER + LARGEST_EXPONENT), Emax=10**6, Emin=-(10**6))
"""So many digits that the difference of any two numbers that are read is exact."""
_UNSIGNED = r"(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)(?:\.[0-9]+)?|\.[0-9]+"
_DECIMAL = rf"(?:{_UNSIGNED})(?:[eE][+-]?[0-9]+)?"
_ARGUMENT = rf"\s*(?:\{{\s*[+-]?{_DECIMAL}\s*\}}|[0-9])"
"""TeX takes what stands in braces, or else one digit: ``\\frac12`` is a half."""
_FRACTION = rf"\\[cdt]?frac(?P<above>{_ARGUMENT})(?P<below>{_ARGUMENT})"
_FACTORS = rf"(?:\\[cdt]?frac{_ARGUMENT}{_ARGUMENT}|\.?[0-9])+"
_NUMBER = re.compile(
    r"(?P<sign>(?<![\w.])[+-])?"
    rf"(?:(?P<whole>{_DECIMAL})?\s?{_FRACTION}(?P<factors>{_FACTORS})?"
    rf"|(?P<upper>{_DECIMAL})(?:\s?/\s?(?P<lower>{_DECIMAL}))?)"
    r"(?P<percent>\s?\\?%)?",
    re.ASCII,
)


class NumericVerifier:
    def __init__(self, settings: Number) -> None:
        self._settings = settings

    def lacking(self, row: DatasetRow) -> str | None:
        if row.answer is None:
            return "it has no answer to compare with"
        if number_in(row.answer, percent=self._settings.percent) is None:
            return f"its answer {row.answer[:40]!r} holds no number"
        return None

    async def verified(self, result: str, row: DatasetRow) -> Verification:
        found = number_in(result, percent=self._settings.percent)
        expected = number_in(row.answer or "", percent=self._settings.percent)
        if found is None or expected is None:
            return WRONG
        return Verification(is_near(found, expected, self._settings))


def number_in(text: str, *, percent: str) -> Decimal | None:
    """The number in the last ``\\boxed{}``, or else the last one of the text; None where there is none."""
    text = in_last_boxed(text) or text
    plain = text.replace("\N{MINUS SIGN}", "-").replace("{,}", ",")
    last = deque(_NUMBER.finditer(plain), maxlen=1)
    return _value(last[0], percent) if last else None


def is_near(found: Decimal, expected: Decimal, settings: Number) -> bool:
    """Within either tolerance."""
    with localcontext(_CONTEXT):
        allowed = max(Decimal(settings.absolute_tolerance), Decimal(settings.relative_tolerance) * abs(expected))
        return abs(found - expected) <= allowed


def _value(number: re.Match[str], percent: str) -> Decimal | None:
    if number["upper"] is not None:
        value = _quotient(number["upper"], number["lower"] or "1")
    else:
        value = _tex_fraction(number)
    if value is None:
        return None
    with localcontext(_CONTEXT):
        if number["percent"] and percent == "hundredths":
            value /= 100
        return -value if number["sign"] == "-" else value


def _tex_fraction(number: re.Match[str]) -> Decimal | None:
    """A digit right before the fraction makes it a mixed number.  None for a product, which is not computed."""
    if number["factors"]:
        return None
    above, below = (number[part].strip().strip("{}").strip() for part in ("above", "below"))
    fraction = _quotient(above, below)
    if number["whole"] is None:
        return fraction
    whole, is_mixed = _decimal(number["whole"]), f"{number['whole']}{above}{below}".replace(",", "").isdigit()
    if whole is None or fraction is None or not is_mixed:
        return None
    with localcontext(_CONTEXT):
        return whole + fraction


def _quotient(upper: str, lower: str) -> Decimal | None:
    above, below = _decimal(upper), _decimal(lower)
    if above is None or not below:
        return None
    with localcontext(_CONTEXT):
        return above / below


def _decimal(digits: str) -> Decimal | None:
    """None beyond the bounds."""
    if len(digits) > LONGEST_NUMBER:
        return None
    mantissa, _, exponent = digits.replace(",", "").lower().partition("e")
    if exponent and not -LARGEST_EXPONENT <= int(exponent) <= LARGEST_EXPONENT:
        return None
    return Decimal(f"{mantissa}e{exponent or 0}")
