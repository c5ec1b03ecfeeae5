"""What a policy may call in a terminal task, and what it reads then."""

import errno
from collections.abc import Mapping
from typing import Any

from engine.environments.terminal.shell import Shell, ShellResult, ShellUnavailable
from engine.spec.message import ToolRequest, ToolSchema
from engine.spec.trajectory import ErrorClass, ToolCall
from sandboxes.interface import Sandbox

LARGEST_FILE_BYTES = 2**20
"""What ``read_file`` and ``edit_file`` read of a file, and how long a command may be."""


def _schema(name: str, description: str, required: Mapping[str, str], numbers: Mapping[str, str]) -> ToolSchema:
    texts = {argument: {"type": "string", "description": about} for argument, about in required.items()}
    counts = {argument: {"type": "integer", "minimum": 1, "description": about} for argument, about in numbers.items()}
    parameters = {
        "type": "object",
        "properties": {**texts, **counts},
        "required": list(required),
        "additionalProperties": False,
    }
    return ToolSchema(name, description, parameters)


_PATH = "A path; a relative one starts at /work."
TOOLS = (
    _schema(
        "shell",
        "Runs a command in a shell that goes on between calls: its folder, variables and jobs stay. Shows what stands "
        "on its terminal then, and the exit code if it is not 0.",
        {"command": "One or more lines for the shell."},
        {},
    ),
    _schema(
        "read_file",
        "Shows a text file, or some lines of it.",
        {"path": _PATH},
        {"first_line": "The first line to show, counted from 1.", "lines": "How many lines to show."},
    ),
    _schema("write_file", "Writes a file, and the folders above it.", {"path": _PATH, "content": "All of it."}, {}),
    _schema(
        "edit_file",
        "Replaces a text that stands exactly once in a file.",
        {"path": _PATH, "old": "The text that stands there.", "new": "The text that is to stand there."},
        {},
    ),
)


class ToolFailed(Exception):
    """A call did not do what it was asked; the policy reads the message."""

    def __init__(self, error_class: ErrorClass, message: str) -> None:
        super().__init__(message)
        self.error_class = error_class


class Tools:
    """The tools over one sandbox and its shell.  Every output is at most ``output_bytes`` long."""

    def __init__(self, sandbox: Sandbox, shell: Shell, *, output_bytes: int) -> None:
        self._sandbox, self._shell, self._output_bytes = sandbox, shell, output_bytes

    async def run(self, request: ToolRequest, timeout_s: float) -> ToolCall:
        """Make one call; a command ends after ``timeout_s``.  Raises what the sandbox raises."""
        if request.name == "shell":
            return await self._command(request, timeout_s)
        try:
            output = await self._on_file(request.name, request.arguments)
        except ToolFailed as failure:
            return ToolCall.of(request, f"Error: {failure}", error_class=failure.error_class, seconds=0.0)
        except (OSError, ValueError) as error:
            return ToolCall.of(request, f"Error: {_reason(error)}", error_class="other", seconds=0.0)
        return ToolCall.of(request, output, seconds=0.0)

    async def _command(self, request: ToolRequest, timeout_s: float) -> ToolCall:
        command = str(request.arguments["command"])
        if len(command.encode("utf-8", "replace")) > LARGEST_FILE_BYTES:
            reason = f"Error: a command of more than {LARGEST_FILE_BYTES} bytes; write a file, and run that"
            return ToolCall.of(request, reason, error_class="illegal", seconds=0.0)
        try:
            result = await self._shell.run(command, timeout_s)
        except ShellUnavailable as failure:
            if not self._shell.has_begun:
                raise
            return ToolCall.of(request, f"Error: {failure}", error_class="killed", seconds=0.0)
        return ToolCall.of(
            request, shown(result, timeout_s), error_class=error_class_of(result), seconds=result.seconds
        )

    async def _on_file(self, tool: str, arguments: Mapping[str, Any]) -> str:
        path = str(arguments["path"])
        match tool:
            case "read_file":
                return await self._read(path, arguments.get("first_line", 1), arguments.get("lines"))
            case "write_file":
                content = str(arguments["content"]).encode("utf-8", "replace")
                await self._sandbox.write_file(path, content)
                return f"{len(content)} bytes written to {path}"
            case "edit_file":
                return await self._edit(path, str(arguments["old"]), str(arguments["new"]))
        raise ValueError(f"no tool {tool!r}")

    async def _read(self, path: str, first_line: int, lines: int | None) -> str:
        text = (await self._sandbox.read_file(path, limit_bytes=LARGEST_FILE_BYTES)).decode("utf-8", "replace")
        if first_line == 1 and lines is None:
            return cut(text, self._output_bytes)
        all_lines = text.splitlines(keepends=True)
        if first_line > len(all_lines):
            raise ToolFailed("illegal", f"{path} has {len(all_lines)} lines")
        last = len(all_lines) if lines is None else first_line - 1 + lines
        return cut("".join(all_lines[first_line - 1 : last]), self._output_bytes)

    async def _edit(self, path: str, old: str, new: str) -> str:
        content = await self._sandbox.read_file(path, limit_bytes=LARGEST_FILE_BYTES)
        before, after = old.encode("utf-8", "replace"), new.encode("utf-8", "replace")
        number = content.count(before) if before else 0
        if number != 1:
            found = f"the text stands there {number} times" if before else "there is no text to replace"
            raise ToolFailed("illegal", f"{path}: {found}; give one that stands there exactly once")
        await self._sandbox.write_file(path, content.replace(before, after))
        return f"{path} changed"


def shown(result: ShellResult, timeout_s: float) -> str:
    """What the policy reads of a command."""
    notes = ["[a fresh shell: the former one had ended]"] if result.fresh else []
    lines = [*notes, result.output] if result.output else notes
    if result.timed_out:
        lines.append(f"[interrupted after {timeout_s:g} s]")
    if result.ended:
        lines.append("[the shell ended: the next command starts a fresh one in /work]")
    elif result.exit_code:
        lines.append(f"[exit code {result.exit_code}]")
    return "\n".join(line.rstrip("\n") for line in lines)


def error_class_of(result: ShellResult) -> ErrorClass | None:
    """A command that ends with another exit code has been run as it was asked: that is no failed call."""
    if result.timed_out:
        return "timeout"
    return "killed" if result.ended and result.exit_code is None else None


def cut(text: str, limit_bytes: int) -> str:
    """The beginning and the end of what is longer."""
    whole = text.encode()
    if len(whole) <= limit_bytes:
        return text
    half = limit_bytes // 2
    head, tail = whole[:half].decode("utf-8", "ignore"), whole[-half:].decode("utf-8", "ignore")
    return f"{head}\n[{len(whole) - 2 * half} bytes left out]\n{tail}"


def _reason(error: OSError | ValueError) -> str:
    if isinstance(error, OSError) and error.errno == errno.EFBIG:
        return f"the file has more than {LARGEST_FILE_BYTES} bytes; use the shell"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error)
