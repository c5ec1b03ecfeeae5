"""From what a sandbox says about an execution to the published classes of tool errors."""

from engine.spec.trajectory import ErrorClass
from sandboxes.interface import ExecResult

_CLASS_OF_EXCEPTION: dict[str, ErrorClass] = {
    "SyntaxError": "syntax",
    "IndentationError": "syntax",
    "TabError": "syntax",
    "NameError": "name",
    "UnboundLocalError": "name",
    "ImportError": "import",
    "ModuleNotFoundError": "import",
    "TypeError": "type",
    "ValueError": "value",
    "UnicodeDecodeError": "value",
    "UnicodeEncodeError": "value",
    "IndexError": "index",
    "KeyError": "index",
    "ZeroDivisionError": "zero-division",
    "TimeoutError": "timeout",
    "MemoryError": "memory",
}


def error_class_of(result: ExecResult) -> ErrorClass | None:
    """Return the class, None exactly when the execution went well."""
    match result.outcome:
        case "ok":
            return None
        case "error":
            return _CLASS_OF_EXCEPTION.get(result.exception or "", "other")
        case outcome:
            return outcome


def shown_to_policy(result: ExecResult, *, limit_characters: int) -> str:
    """The observation's text: the output, or one short line that names the failure.

    A failed call shows nothing of what it printed before it failed.
    """
    if result.outcome == "ok":
        return result.stdout.strip()[:limit_characters]
    name = result.exception if result.outcome == "error" else result.outcome
    return f"Error: {name or 'exit ' + str(result.exit_code)}"[:limit_characters]
