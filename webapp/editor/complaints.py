"""What is wrong with a spec, in sentences for the person who fills the form.

``engine.spec.problems`` tells programs and authors of TOML; here the bounds are put into words, and
each complaint knows the control that it is about.
"""

import re
from dataclasses import dataclass
from typing import Any

from engine.spec.problems import Problem

_BOUNDS = (
    (r"Input should be greater than or equal to (\S+)", "{value} is less than {bound}; give {bound} or more"),
    (r"Input should be greater than (\S+)", "{value} is not more than {bound}; give more than {bound}"),
    (r"Input should be less than or equal to (\S+)", "{value} is more than {bound}; give {bound} or less"),
    (r"Input should be less than (\S+)", "{value} is not less than {bound}; give less than {bound}"),
    (r"String should have at least 1 character", "this is empty; write something"),
    (r"String should have at most (\S+) characters?", "this is too long; give at most {bound} characters"),
)
_LONGEST_VALUE = 60
_VAGUE = "a value of the documented type"


@dataclass(frozen=True)
class Complaint:
    subject: str
    """The label and the path of what is wrong, e.g. ``Steps (schedule.steps)``."""
    text: str
    target: str = ""
    """The id of the control in the form; empty where the form has no place for it."""


def sentence(problem: Problem) -> str:
    """Value, what is wrong with it, remedy; e.g. ``0 is less than 1; give 1 or more``."""
    value = _given(problem.value)
    for pattern, words in _BOUNDS:
        if found := re.fullmatch(pattern, problem.message):
            return words.format(value=value, bound=found[found.lastindex or 0])
    kind = problem.remedy.removeprefix("give ")
    if problem.message.startswith("Input should be a valid") and kind not in (problem.remedy, _VAGUE):
        return f"{value} is not {kind}; give {kind}"
    message = problem.message[:1].upper() + problem.message[1:]
    shows_value = problem.value != "(missing)" and not isinstance(problem.value, (dict, list))
    return f"{message}{f' (you gave {value})' if shows_value else ''}; {problem.remedy}"


def loose(problem: Problem) -> Complaint:
    """One that no control of the form is about: its path is all that can be named."""
    return Complaint(problem.field or "The document", sentence(problem))


def _given(value: Any) -> str:
    if value is None or value == "":
        return "nothing"
    text = ascii(value)[1:-1] if isinstance(value, str) and not value.isprintable() else str(value)
    return text if len(text) <= _LONGEST_VALUE else text[: _LONGEST_VALUE - 1] + "…"
