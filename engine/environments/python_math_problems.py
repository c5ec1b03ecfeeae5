"""The problems of python-math: procedural, numbered, and split by their text.

Problem ``n`` of a split is a function of (dataset seed, split, n) and nothing else.  A question
belongs to one split for good, by a hash of its text, so no seed can leak a held-out question
into training.  Answers are spread so widely that no constant answer is right in 1 % of the tasks.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from engine.seeds import derived_seed
from engine.spec.trajectory import Split

CELLS = "abcdefgh"
HELDOUT_SHARE = 5
"""One question in this many is held out."""


@dataclass(frozen=True)
class Problem:
    question: str
    expression: str
    """Python for the answer; needs no name once the hidden numbers stand in it."""
    answer: int
    hidden: dict[str, int] = field(default_factory=dict)
    """The numbers of the cells that the question names, in the order of the question."""
    locked: bool = False
    """Whether each cell must be opened with what the one before it holds, which is text."""


def problem(seed: int, split: Split, number: int, level: int) -> Problem:
    """The first draw of this problem's own stream whose question belongs to the split."""
    rng = Random(derived_seed("python-math", seed, split, number, level))
    draw = _DRAW_OF_LEVEL[level]
    while split_of(drawn := draw(rng)) != split:
        pass
    return drawn


def split_of(drawn: Problem) -> Split:
    digest = hashlib.blake2b(drawn.question.encode(), digest_size=8).digest()
    return "heldout" if int.from_bytes(digest, "big") % HELDOUT_SHARE == 0 else "train"


def _one_operation(rng: Random) -> Problem:
    operator = rng.choice("+-*")
    low, high = (10, 99) if operator == "*" else (100, 999)
    a, b = rng.randint(low, high), rng.randint(low, high)
    answer = {"+": a + b, "-": a - b, "*": a * b}[operator]
    return _plain(f"{a}{operator}{b}", answer)


_LONG_FORMS: list[tuple[str, Callable[[int, int, int, int], int]]] = [
    ("({a}+{b})*{c}", lambda a, b, c, d: (a + b) * c),
    ("{a}*({b}-{c})", lambda a, b, c, d: a * (b - c)),
    ("{a}*{b}-{c}", lambda a, b, c, d: a * b - c),
    ("{a}+{b}*{c}", lambda a, b, c, d: a + b * c),
    ("({a}+{b})*({c}-{d})", lambda a, b, c, d: (a + b) * (c - d)),
    ("{a}*{b}+{c}*{d}", lambda a, b, c, d: a * b + c * d),
]


def _long_expression(rng: Random) -> Problem:
    form, value = rng.choice(_LONG_FORMS)
    a, b, c, d = (rng.randint(11, 99) for _ in range(4))
    return _plain(form.format(a=a, b=b, c=c, d=d), value(a, b, c, d))


_HIDDEN_FORMS: list[tuple[str, Callable[[int, int, int], int]]] = [
    ("{x}*{y}+{c}", lambda x, y, c: x * y + c),
    ("{x}*{y}-{c}", lambda x, y, c: x * y - c),
    ("{x}+{y}*{c}", lambda x, y, c: x + y * c),
]


def _hidden_numbers(rng: Random) -> Problem:
    form, value = rng.choice(_HIDDEN_FORMS)
    first, second = rng.sample(CELLS, 2)
    x, y, c = (rng.randint(11, 99) for _ in range(3))
    return Problem(
        question=form.format(x=f"cell {first}", y=f"cell {second}", c=c) + "=?",
        expression=form.format(x=x, y=y, c=c),
        answer=value(x, y, c),
        hidden={first: x, second: y},
    )


_LOCKED_FORMS: list[tuple[str, Callable[[int, int, int], int]]] = [
    ("{x}*{y}+{z}", lambda x, y, z: x * y + z),
    ("{x}*{y}-{z}", lambda x, y, z: x * y - z),
    ("{x}+{y}*{z}", lambda x, y, z: x + y * z),
]


def _locked_numbers(rng: Random) -> Problem:
    form, value = rng.choice(_LOCKED_FORMS)
    names = rng.sample(CELLS, 3)
    x, y, z = (rng.randint(11, 99) for _ in names)
    first, second, third = (f"cell {name}" for name in names)
    return Problem(
        question=form.format(x=first, y=second, z=third) + "=?",
        expression=form.format(x=x, y=y, z=z),
        answer=value(x, y, z),
        hidden=dict(zip(names, (x, y, z), strict=True)),
        locked=True,
    )


def _plain(expression: str, answer: int) -> Problem:
    return Problem(question=f"{expression}=?", expression=expression, answer=answer)


_DRAW_OF_LEVEL: dict[int, Callable[[Random], Problem]] = {
    1: _one_operation,
    2: _long_expression,
    3: _hidden_numbers,
    4: _locked_numbers,
}
