"""What a box was told to run.  As told by whoever called ``exec`` or ``run_python``, not by the box."""

from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from sandboxes.egress.attempt import Frozen, Label

ARGUMENT_CHARACTERS = 64 * 1024
ARGUMENTS = 256
CODE_CHARACTERS = 256 * 1024


def _ends(limit: int) -> BeforeValidator:
    """Both ends are kept: padding in front or behind hides nothing, only padding on both sides does."""

    def cut(given: Any) -> Any:
        if isinstance(given, str) and len(given) > limit:
            return given[: limit // 2] + "\n" + given[-(limit // 2) + 1 :]
        return given

    return BeforeValidator(cut)


def _few(given: Any) -> Any:
    return tuple(given)[:ARGUMENTS] if isinstance(given, list | tuple) else given


Argument = Annotated[str, _ends(ARGUMENT_CHARACTERS)]


class ExecEvent(Frozen):
    box: Label
    at: float
    label: Label | None = None
    """The tool call."""
    argv: Annotated[tuple[Argument, ...], BeforeValidator(_few)] = ()
    stdin: Annotated[str, _ends(CODE_CHARACTERS)] = ""
    code: Annotated[str, _ends(CODE_CHARACTERS)] = ""
    """Python that the box's interpreter runs."""
    writes: Label | None = None
    """The path of a file that is written through the facade; its content, if it is a text, is ``code`` or ``stdin``."""
    forks_refused: int = Field(default=0, ge=0)
    """How often the box was denied a further process since the event before, where that is counted."""
