"""Verifiers: how an environment over a dataset decides whether an answer is right (docs/environments.md, "qa")."""

import json
import re
from typing import Annotated, Any, Literal, Self

from pydantic import Field, StringConstraints, model_validator

from engine.spec.impossible import impossible
from engine.spec.judge import ChatEndpoint
from engine.spec.strict import LARGEST_NUMBER, Strict

Place = Literal["whole", "marker", "boxed", "fenced"]
"""Where in an answer its result stands: all of it; what follows the last marker; the last ``\\boxed{}``; the last
fenced block."""


class _Verifier(Strict):
    """What every verifier reads: the part of an answer that is compared."""

    place: Place = "whole"
    """Where in an answer the result stands: ``whole``: it is the answer; ``marker``: what follows the last marker, to
    the end of its line or, where nothing stands there, of the answer; ``boxed``: in the last ``\\boxed{}``; ``fenced``:
    in the last block between lines of three backticks.  An answer that lacks it is wrong."""
    marker: str = Field(default="Answer:", min_length=1, max_length=100)
    """The marker, for ``place = "marker"`` alone."""


class ExactText(_Verifier):
    """The result is the row's answer, character by character, after both are normalised in the same way."""

    kind: Literal["exact"] = "exact"
    strip: bool = True
    """Whether white space at both ends, and how much of it stands between words, makes no difference."""
    ignore_case: bool = False
    ignore_punctuation: bool = False
    """Whether every character of the Unicode categories P is left out."""
    unicode: Literal["none", "nfc", "nfkc"] = "nfc"
    """Unicode's normal form: ``nfc`` joins letters and accents; ``nfkc`` also equates variants of a character (full
    width, ligatures) and leaves out what is invisible."""


class Number(_Verifier):
    """The result is a number near enough to the row's.  Of a text with several numbers, the last one counts, and one in
    ``\\boxed{}`` before all others."""

    kind: Literal["numeric"] = "numeric"
    absolute_tolerance: float = Field(default=0.0, ge=0, le=1e300)
    relative_tolerance: float = Field(default=1e-6, ge=0, lt=1)
    """It is a share of the row's number.  A number is right that keeps either tolerance."""
    percent: Literal["hundredths", "ignored"] = "hundredths"
    """What ``45%`` is: 0.45, or 45."""


class JsonSchema(_Verifier):
    """The result, or the first fenced block of a whole answer, is JSON that fits a schema."""

    kind: Literal["json-schema"] = "json-schema"
    json_schema: str = Field(default='{"type": "object"}', min_length=2, max_length=2**16)
    """The schema as JSON (draft 2020-12).  References lead into the schema itself alone."""
    equals_answer: bool = False
    """Whether it must also be the same JSON value as the row's answer."""

    @model_validator(mode="after")
    def _schema_is_json(self) -> Self:
        try:
            self.schema_document()
        except (ValueError, RecursionError) as error:
            remedy = 'write a JSON object, e.g. {"type": "object", "required": ["answer"]}'
            raise impossible("json_schema", self.json_schema[:80], f"it is no JSON object: {error}", remedy) from None
        return self

    def schema_document(self) -> dict[str, Any]:
        """Raises ValueError and RecursionError."""
        document = json.loads(self.json_schema)
        if not isinstance(document, dict):
            raise ValueError(f"it is a {type(document).__name__}")
        return document


class UnitTests(_Verifier):
    """The row's tests pass with the result, which is Python code.  Tests and code run in a fresh sandbox each."""

    kind: Literal["unit-tests"] = "unit-tests"
    place: Place = "fenced"
    """Where in an answer the code stands, as for the other verifiers."""
    timeout_s: float = Field(default=10.0, gt=0, le=600)
    """Wall-clock limit of the code, and of the tests, in each round, in seconds."""
    partial_credit: bool = False
    """Whether an answer that does not pass all tests is paid the share that it passes, as the component ``tests``."""


class MathVerify(_Verifier):
    """The result is mathematically equal to the row's answer, as the library math-verify finds: fractions, roots, sets,
    intervals, matrices, equations.

    Both are read as LaTeX.  An expression that nobody has computed is equal to its value: ``2+3`` is right where the
    answer is 5.
    """

    kind: Literal["math-verify"] = "math-verify"
    place: Place = "boxed"
    """Where in an answer the result stands, as for the other verifiers."""
    digits: int = Field(default=6, ge=1, le=15)
    """Decimals are compared after they are rounded to so many places."""


class PythonFunction(_Verifier):
    """A function of the team's own decides, in a fresh sandbox without a network."""

    kind: Literal["python-function"] = "python-function"
    source: str = Field(min_length=1, max_length=2**16)
    """Python source that defines ``verify(result, row)``.  ``result`` is a text, ``row`` a dict with the row's parts
    (id, prompt, messages, answer, tests, metadata) as far as it has them.  It returns True, False, or a score from 0 to
    1.  What else it returns or raises, and a time-out, is ``verifier-failed``.  It must not run the result as code."""
    timeout_s: float = Field(default=10.0, gt=0, le=600)
    """Wall-clock limit in seconds."""
    pass_score: float = Field(default=1.0, gt=0, le=1)
    """From this score on an answer is right."""
    partial_credit: bool = False
    """Whether an answer that is not right is paid its score, as the component ``python-function``."""

    @model_validator(mode="after")
    def _source_defines_it(self) -> Self:
        if re.search(r"^def verify\(", self.source, re.MULTILINE) is None:
            remedy = "write def verify(result, row): ..., at the beginning of a line"
            raise impossible("source", self.source[:80], "it defines no function verify", remedy)
        return self


class Rubric(_Verifier):
    """A language model gives points by a rubric.  Where it gives none, or none that can be read, after the last try,
    the episode is ``verifier-failed`` and teaches nothing."""

    kind: Literal["rubric"] = "rubric"
    rubric: str = Field(min_length=1, max_length=2**14)
    """What earns how many points, in words for the judge, who also reads the question, the row's answer if it has one,
    and the result."""
    points: int = Field(default=10, ge=1, le=100)
    """The most that can be earned.  The score is the share of them that was."""
    judge: ChatEndpoint
    pass_score: float = Field(default=0.7, gt=0, le=1)
    """From this score on an answer is right."""
    partial_credit: bool = False
    """Whether an answer that is not right is paid its score, as the component ``rubric``."""


Verifier = Annotated[
    ExactText | Number | MathVerify | JsonSchema | UnitTests | PythonFunction | Rubric, Field(discriminator="kind")
]


RESERVED = frozenset(
    {"outcome", "tool_errors", "tool_calls", "well_formed", "format", "length", "tests", "python-function", "rubric"}
)
"""Components of a reward that others than ``Component`` pay."""


def partial_component(verifier: Verifier) -> str | None:
    """The component that pays the score of an answer that is not right; None where success alone is paid."""
    if not getattr(verifier, "partial_credit", False):
        return None
    return "tests" if verifier.kind == "unit-tests" else verifier.kind


class Component(Strict):
    """Something that an answer is paid for beside its success, as a component of the reward by its own name."""

    name: Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_-]{0,39}$")]
    reward: float = Field(default=1.0, ge=-LARGEST_NUMBER, le=LARGEST_NUMBER)
    """Paid where its verifier finds the answer right, and in part where it gives a share or a score.
    ``recipe.reward.schedules`` change it over the steps."""
    verifier: Verifier = ExactText()

    @model_validator(mode="after")
    def _name_is_free(self) -> Self:
        if self.name in RESERVED:
            raise impossible("name", self.name, "a component of this name is paid already", "give it another name")
        return self
