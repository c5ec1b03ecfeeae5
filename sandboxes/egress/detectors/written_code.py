"""What a program that is started will run: a text in its arguments, or a file that was written through the facade.

A file is no deed while it is only written, and its text is a hint when somebody runs it.  So texts of files are kept,
bounded, and handed to the detectors as if they were said in the tool call that runs them.
"""

import posixpath
import re
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

from sandboxes.egress.detectors.actions import actions_of, started_command
from sandboxes.egress.detectors.exec_event import ExecEvent
from sandboxes.egress.detectors.finding import DetectorEvent
from sandboxes.egress.detectors.observed_action import ObservedAction
from sandboxes.egress.detectors.reverse_shells import INTERPRETERS
from sandboxes.egress.detectors.shell import SHELLS, Command

FILES = 64
CHARACTERS = 64 * 1024
"""The most characters of one file; longer ones are data or generated."""
NO_PROGRAMS = (
    ".md", ".txt", ".json", ".rst", ".csv", ".html", ".htm", ".xml", ".yaml", ".yml", ".toml", ".ini", ".cfg",
    ".log", ".tsv",
    ".tex", ".css", ".svg", ".jsonl", ".lock", ".diff", ".patch", ".adoc",
)  # fmt: skip


_CODE_FLAGS = frozenset({"-c", "-lc", "-ic", "-e", "-r", "-exec"})


class WrittenCode:
    """One per sandbox."""

    def __init__(self) -> None:
        self._texts: OrderedDict[str, str] = OrderedDict()
        self._read_before: OrderedDict[tuple[str | None, str], None] = OrderedDict()

    def run(self, event: DetectorEvent) -> Iterator[ExecEvent]:
        """Yield what the event makes run beyond what stands in it; each text once in a tool call."""
        if isinstance(event, ExecEvent):
            self._keep(event)
            if event.writes is None:
                for command in list(actions_of(event).commands):
                    yield from self._of_file(event, command)
        elif isinstance(event, ObservedAction) and event.kind == "program":
            started = started_command(event)
            if started is None:
                return
            yield from self._of_program(event, started)
        elif isinstance(event, ObservedAction) and event.operation == "read" and event.label is not None:
            yield from self._of_read(event)

    def _of_program(self, event: ObservedAction, command: Command) -> Iterator[ExecEvent]:
        if command.program in SHELLS or INTERPRETERS.match(command.program):
            text = next((word for flag, word in _pairs(command) if flag in _CODE_FLAGS), "")
            if text and self._is_new(event.label, text):
                yield _text_of(event, argv=(command.program, *command.arguments))
        yield from self._of_file(event, command)

    def _of_read(self, action: ObservedAction) -> Iterator[ExecEvent]:
        """A module is imported, a script is sourced."""
        name = posixpath.basename(action.path)
        text = self._texts.get(name)
        if (
            text is not None
            and INTERPRETERS.match(posixpath.basename(action.program))
            and self._is_new(action.label, text)
        ):
            yield _text_of(action, code=text)

    def _keep(self, event: ExecEvent) -> None:
        if event.writes is None or event.writes.lower().endswith(NO_PROGRAMS) or len(event.code) > CHARACTERS:
            return
        name = posixpath.basename(event.writes)
        self._texts[name] = event.code
        self._texts.move_to_end(name)
        if len(self._texts) > FILES:
            self._texts.popitem(last=False)

    def _of_file(self, event: ExecEvent | ObservedAction, command: Command) -> Iterator[ExecEvent]:
        for word in (command.program, *(word for word in command.arguments[:3] if not re.search(r"\s", word))):
            name = posixpath.basename(word)
            text = self._texts.get(name)
            named = (
                word == command.program
                or command.program in SHELLS | {"source", "."}
                or INTERPRETERS.match(command.program)
            )
            if text is None or not named or not self._is_new(event.label, text):
                continue
            if name.endswith((".sh", ".bash")) or text.startswith(
                ("#!/bin/", "#!/usr/bin/env bash", "#!/usr/bin/env sh", "#!/usr/bin/bash")
            ):
                yield _text_of(event, argv=("bash", "-c", text))
            else:
                yield _text_of(event, code=text)

    def _is_new(self, label: str | None, text: str) -> bool:
        key = (label, text)
        if key in self._read_before:
            return False
        self._read_before[key] = None
        if len(self._read_before) > FILES:
            self._read_before.popitem(last=False)
        return True


def _text_of(event: ExecEvent | ObservedAction, **text: Any) -> ExecEvent:
    observed = isinstance(event, ObservedAction) or event.observed
    return ExecEvent(sandbox=event.sandbox, at=event.at, label=event.label, observed=observed, inner=True, **text)


def _pairs(command: Command) -> Iterator[tuple[str, str]]:
    return zip(command.arguments, command.arguments[1:], strict=False)
