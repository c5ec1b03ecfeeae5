"""Where in an answer its result stands.  Every way takes time in proportion to the answer's length."""

import re

from engine.spec.verifier import Place

_FENCE = re.compile(r"^[ ]{0,3}```[^\n`]*$", re.MULTILINE)
BOXED = r"\boxed{"
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
"""A brace, or a backslash with what it escapes."""


def result_in(answer: str, place: Place, marker: str) -> str | None:
    """The result; None where the answer has none in that place."""
    match place:
        case "whole":
            return answer
        case "marker":
            return after_marker(answer, marker)
        case "boxed":
            return in_last_boxed(answer)
        case "fenced":
            blocks = fenced_blocks(answer)
            return blocks[-1] if blocks else None


def placed(result: str, place: Place, marker: str) -> str | None:
    """An answer that has the result in that place, but for blanks around it; None where the place cannot hold it."""
    answer = _written(result, place, marker)
    found = result_in(answer, place, marker)
    return answer if found is not None and found.strip() == result.strip() else None


def _written(result: str, place: Place, marker: str) -> str:
    match place:
        case "whole":
            return result
        case "marker":
            return f"{marker}\n{result}" if "\n" in result else f"{marker} {result}"
        case "boxed":
            return f"{BOXED}{result}}}"
        case "fenced":
            return f"```\n{result}\n```"


def after_marker(answer: str, marker: str) -> str | None:
    """What follows the last marker: the rest of its line, or of the answer where its line is empty."""
    _, found, rest = answer.rpartition(marker)
    if not found:
        return None
    return rest.partition("\n")[0].strip() or rest.strip() or None


def in_last_boxed(answer: str) -> str | None:
    """What stands in the braces of the last ``\\boxed{``; None where they are not closed."""
    begin = answer.rfind(BOXED)
    if begin < 0:
        return None
    inside, depth = answer[begin + len(BOXED) :], 1
    for brace in _BRACE.finditer(inside):
        depth += {"{": 1, "}": -1}.get(brace[0], 0)
        if depth == 0:
            return inside[: brace.start()]
    return None


def fenced_blocks(answer: str) -> list[str]:
    """What stands between lines of three backticks; a block that is not closed is none."""
    fences = [(fence.start(), fence.end()) for fence in _FENCE.finditer(answer)]
    pairs = zip(fences[::2], fences[1::2], strict=False)
    return [answer[opened + 1 : closed] for (_, opened), (closed, _) in pairs]
