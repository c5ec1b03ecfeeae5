"""What a question is about: a started program, a touched file, a refused call, a socket that no gateway could see.

Everything is read while the caller waits, and made into an action when nobody does any more.  The caller may rewrite
its memory between our reading and the kernel's: ``corrected`` looks again at programs, and docs/security.md says what
stays.
"""

import os
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from sandboxes.egress.detectors.abridged import abridged
from sandboxes.observation import filter as asked
from sandboxes.observation import kernel, ordinary
from sandboxes.observation.guests import (
    ARGUMENTS_BYTES,
    AT_FDCWD,
    ENDED,
    Guest,
    Running,
    executable,
    shown,
    signed,
    stream_of,
)

Action = dict[str, Any]
"""Fields of an ``ObservedAction`` by name; ``sandbox`` and ``label`` are the worker's to add."""
AT_SYMLINK_FOLLOW, AT_EMPTY_PATH, AT_REMOVEDIR = 0x400, 0x1000, 0x200
WORDS, WORD_BYTES, ARGV_CHARACTERS = 256, 128 * 1024, 16 * 1024
"""What is kept of the arguments; and how long the kernel lets one be."""
VARIABLES, VARIABLE_BYTES, VARIABLES_CHARACTERS = 256, 4096, 16 * 1024
LOOKED_AT, LONG_BYTES = 2048, 256 * 1024
"""How much of each array is looked at, and what is read of its long strings."""
WORDS_HEAD, VARIABLES_HEAD = 128, 512
"""Bytes of the arrays that are read at once: more than 15 words and 63 variables are rare."""
KNOWN_S, MOST_KNOWN = 0.05, 256
PATH_CHARACTERS = 4096
REVEALING = (
    b"LD_", b"PYTHON", b"BASH_ENV=", b"ENV=", b"PROMPT_COMMAND=", b"SHELLOPTS=", b"PERL5", b"RUBY", b"NODE_", b"GIT_",
    b"PIP_", b"NPM_", b"npm_config_", b"UV_", b"CARGO_", b"PYTEST_", b"JAVA_TOOL_OPTIONS=", b"_JAVA_OPTIONS=",
    b"GCONV_PATH=", b"SSL_CERT", b"REQUESTS_CA_BUNDLE=", b"CURL_", b"http_proxy=", b"https_proxy=", b"all_proxy=",
    b"HTTP_PROXY=", b"HTTPS_PROXY=", b"ALL_PROXY=", b"EDITOR=", b"PAGER=", b"PATH=", b"HOME=", b"ZDOTDIR=",
    b"XDG_CONFIG_HOME=",
)  # fmt: skip
JUDGED = (
    b"LD_", b"PYTHONSTARTUP=", b"PYTEST_", b"BASH_ENV=", b"NODE_OPTIONS=", b"PERL5OPT=", b"RUBYOPT=", b"PIP_", b"NPM_",
    b"npm_config_", b"UV_", b"CARGO_",
)  # fmt: skip
"""Those that a rule judges by themselves."""
USUAL = {b"PATH=/usr/local/bin:/usr/bin:/bin", b"HOME=/work", b"PYTHONHASHSEED=0", b"PYTHONDONTWRITEBYTECODE=1"}
"""What every guest is given (inside.processes)."""


@dataclass(frozen=True, slots=True)
class Reply:
    """What to answer, and what to report."""

    error: int = 0
    """0: let it happen."""
    action: Callable[[], Action] | None = None
    """Makes the action of what was read; it takes longer than the reading, so it is called when nobody waits."""
    socket: tuple[int, int, int] | None = None
    """Family, type and protocol."""
    starts: tuple[Guest, Running] | None = None
    """Who starts a program, and what it ran before."""


ORDINARY = Reply()


@dataclass(frozen=True, slots=True)
class Started:
    """A program, to be looked at again once it runs."""

    starter: Guest
    before: Running
    """What its process ran before."""
    action: Action | None = None
    """What was reported; None where no program was found: mostly the kernel finds none either."""
    at: float = field(default_factory=time.monotonic)


class Reader:
    """The reader of one sandbox."""

    def __init__(self, root: int, agent: int) -> None:
        self._root, self._agent = root, agent
        numbers = asked.call_numbers()
        self._names = {number: name for name, number in numbers.items()}
        self._refusals = {numbers[name]: error for name, error in asked.refusals().items() if name in numbers}
        self._socket = numbers["socket"]
        self._openings = {numbers[name]: at for name, at in _OPENS.items() if name in numbers}
        self._known: dict[int, Guest] = {}

    def read(self, question: kernel.Question) -> Reply:
        """Raises ``OSError`` where the caller cannot be looked at: it is gone, or its memory is not there."""
        call, arguments = question.call, question.arguments
        opening = self._openings.get(call)
        if opening is not None and question.thread != self._agent:
            return _opening(*opening, question.thread, arguments, self._guest)
        if call == self._socket:
            family, kind, protocol = (value & 0xFFFFFFFF for value in arguments[:3])
            kind &= asked.TYPE_MASK
            return Reply(asked.socket_error(family, kind), socket=(family, kind, protocol))
        name = self._names[call]
        if call in self._refusals:
            return Reply(self._refusals[call], self._refused(question, name))
        if question.thread == self._agent:
            return ORDINARY  # what is done from outside
        if name in asked.PROGRAM_CALLS:
            return self._program(question, name)
        return _file(name, question.thread, arguments, self._guest)

    def refusal(self, call: int) -> int:
        """Return what this call is refused with whoever asks; 0 if it is not."""
        return self._refusals.get(call, 0)

    def _guest(self, thread: int) -> Guest:
        """Known for a moment: too short for its number to become another's."""
        now = time.monotonic()
        known = self._known.get(thread)
        if known is None or now - known.since > KNOWN_S:
            if len(self._known) >= MOST_KNOWN:
                self._known.clear()
            known = self._known[thread] = Guest(thread, self._root, self._agent)
        return known

    def _refused(self, question: kernel.Question, name: str) -> Callable[[], Action]:
        try:
            guest = self._guest(question.thread)
        except OSError:  # the refusal is to be told whatever becomes of its caller
            return self.unread(question)
        return partial(_acting, guest, time.time(), kind="refused", call=name)

    def unread(self, question: kernel.Question) -> Callable[[], Action]:
        """A refused call of which no more is known."""
        call = self._names.get(question.call, str(question.call))
        fields = {"at": time.time(), "pid": question.thread, "parent": 0, "program": "", "kind": "refused"}
        return lambda: {**fields, "call": call}

    def _program(self, question: kernel.Question, name: str) -> Reply:
        thread, arguments = question.thread, question.arguments
        folder, at, flags = AT_FDCWD, 0, 0
        if name == "execveat":
            folder, at, flags = signed(arguments[0]), 1, arguments[4]
        guest = Guest(thread, self._root, self._agent)
        self._known.clear()  # it becomes another program, with all its threads, and others may have it for a parent
        given, *heads = _path_and_arrays(thread, *arguments[at : at + 3])
        if not given and flags & AT_EMPTY_PATH:
            path, found = executable(guest.descriptor(folder)), True
        else:
            path, found = guest.path(folder, given, follow=True)
        replaced = guest.runs()
        if not found:  # a shell looks for it in one folder after the other
            return Reply(starts=(guest, replaced))
        given_with = _given_with(thread, arguments[at + 1], arguments[at + 2], heads)
        action = partial(
            _program, guest, time.time(), path, given_with, guest.streams(), guest.sockets(), guest.folder()
        )
        return Reply(action=action, starts=(guest, replaced))

    def look(self, started: Started) -> tuple[bool, Action | None]:
        """Return whether that is the last look at a program, and what runs in place of what was reported.

        Of what has not begun, as far as can be seen, there is nothing to report yet.
        """
        try:
            guest = Guest(started.starter.pid, self._root, self._agent)
            runs = guest.runs()
            if not begun(started, runs):
                return runs == ENDED, None
            if not differs(started, runs):
                return True, None
            if started.action is not None:
                return True, corrected(started, runs)
            variables = guest.environment()
            given = _Given(
                _split(runs.command),
                _split(variables),
                cut=("environment",) if len(variables) == ARGUMENTS_BYTES else (),
            )
            streams, sockets, folder = guest.streams(), guest.sockets(), guest.folder()
            return True, _program(guest, time.time(), runs.program, given, streams, sockets, folder)
        except OSError:
            return True, None  # it has ended


@dataclass(frozen=True, slots=True)
class _Given:
    """What a program is started with: each text as far as it was read, and whether that is all of it."""

    argv: list[tuple[bytes, bool]]
    environment: list[tuple[bytes, bool]]
    cut: tuple[str, ...] = ()
    """Which of them have more than is looked at."""

    def fields(self) -> Action:
        revealing = [text for text in self.environment if text[0].startswith(REVEALING) and text[0] not in USUAL]
        revealing.sort(key=lambda text: not text[0].startswith(JUDGED))
        cut = set(self.cut)
        fields: Action = {}
        for name, texts, words, characters in (
            ("argv", self.argv, WORDS, ARGV_CHARACTERS),
            ("environment", revealing, VARIABLES, VARIABLES_CHARACTERS),
        ):
            read = [shown(os.fsdecode(raw)) for raw, _ in texts]
            fields[name] = abridged(read, words, characters)
            if fields[name] != read or not all(whole for _, whole in texts):
                cut.add(name)
        return fields | {"cut": sorted(cut)}


def _split(texts: bytes) -> list[tuple[bytes, bool]]:
    """Arguments or variables as /proc has them."""
    return [(raw, True) for raw in texts.removesuffix(b"\0").split(b"\0")]


def _acting(guest: Guest, at: float, **more: Any) -> Action:
    return {
        "at": at, "pid": guest.pid, "parent": guest.parent, "program": _bounded(guest.program),
        "parent_program": _bounded(guest.parent_program), **more,
    }  # fmt: skip


def _program(guest: Guest, at: float, path: str, given: _Given, links: list[str], sockets: int, folder: str) -> Action:
    streams, pipes = zip(*map(stream_of, links), strict=True)
    return _acting(guest, at) | given.fields() | {
        "kind": "program", "program": _bounded(path), "streams": list(streams), "pipes": list(pipes),
        "inside": guest.inside, "parent_sockets": sockets, "folder": _bounded(folder),
    }  # fmt: skip


def _bounded(text: str) -> str:
    return shown(text)[:PATH_CHARACTERS]


def _path_and_arrays(thread: int, path: int, argv: int, environment: int) -> tuple[bytes, bytes, bytes]:
    """A program's path as it was given, and how the arrays begin: ordinary ones are read by one call of ours."""
    head, words, variables = kernel.together(
        thread, (path, argv, environment), (kernel.SHORT_BYTES, WORDS_HEAD, VARIABLES_HEAD)
    )
    given, end, _ = head.partition(b"\0")
    return given if end else kernel.text(thread, path), words, variables


def _given_with(thread: int, argv: int, environment: int, heads: Sequence[bytes]) -> _Given:
    """``heads``: how the arrays of both begin."""
    words = _pointers(thread, argv, LOOKED_AT, heads[0])
    variables = _pointers(thread, environment, LOOKED_AT, heads[1])
    cut = []
    if len(words) > WORDS:
        words = words[: WORDS // 2] + words[-(WORDS // 2) :]
        cut.append("argv")
    if len(variables) >= LOOKED_AT:
        cut.append("environment")
    pieces = kernel.pieces(thread, words + variables)
    return _Given(
        list(_strings(thread, words, pieces[: len(words)], WORD_BYTES)),
        list(_strings(thread, variables, pieces[len(words) :], VARIABLE_BYTES)),
        tuple(cut),
    )


def _pointers(thread: int, address: int, most: int, raw: bytes) -> list[int]:
    """An array that ends with a null pointer, of which ``raw`` has been read."""
    found: list[int] = []
    while address and len(found) < most:
        if len(raw) < kernel.POINTER_BYTES:  # nothing yet, or one that lies on two pages
            room = kernel.PAGE_BYTES - address % kernel.PAGE_BYTES
            size = max(kernel.POINTER_BYTES, min(room, kernel.POINTER_BYTES * (most - len(found))))
            raw = kernel.memory(thread, address, size)
        pointers = struct.unpack(f"={len(raw) // 8}Q", raw[: len(raw) // 8 * 8])
        if not pointers:
            break
        if 0 in pointers:
            return found + list(pointers[: pointers.index(0)])
        found += pointers
        address += kernel.POINTER_BYTES * len(pointers)
        raw = b""
    return found


def _strings(thread: int, pointers: list[int], pieces: list[bytes], limit: int) -> Iterator[tuple[bytes, bool]]:
    """Each, and whether that is all of it.

    Most are short, and have been read together.  The others are read each for itself, and little of each once
    ``LONG_BYTES`` were read.
    """
    left = LONG_BYTES
    for pointer, piece in zip(pointers, pieces, strict=True):
        end = piece.find(0)
        if end >= 0:
            yield piece[:end], True
            continue
        most = limit if left > 0 else kernel.SHORT_BYTES
        text = _string(thread, pointer, most)
        left -= len(text)
        yield text, len(text) < most


def _string(thread: int, pointer: int, limit: int) -> bytes:
    try:
        return kernel.text(thread, pointer, limit)
    except OSError:
        return b""  # the kernel will not read it either


# -- files -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a call's path is: which argument names the folder (-1: none), and which the path."""

    path: int
    folder: int = -1


_PLAIN = {
    # Operation, path, whether a link at its end is followed, and the other path.
    "truncate": ("write", _Place(0), True, None),
    "creat": ("write", _Place(0), True, None),
    "unlink": ("delete", _Place(0), False, None),
    "rmdir": ("delete", _Place(0), False, None),
    "unlinkat": ("delete", _Place(1, 0), False, None),
    "rename": ("rename", _Place(0), False, _Place(1)),
    "renameat": ("rename", _Place(1, 0), False, _Place(3, 2)),
    "renameat2": ("rename", _Place(1, 0), False, _Place(3, 2)),
    # ``path`` is the link that is made.
    "link": ("link", _Place(1), False, _Place(0)),
    "linkat": ("link", _Place(3, 2), False, _Place(1, 0)),
    "chmod": ("mode", _Place(0), True, None),
    "fchmodat": ("mode", _Place(1, 0), True, None),
    "fchmodat2": ("mode", _Place(1, 0), True, None),
}
_SYMLINKS = {"symlink": (0, _Place(1)), "symlinkat": (0, _Place(2, 1))}
_OPENS = {"open": (_Place(0), 1, False), "openat": (_Place(1, 0), 2, False), "openat2": (_Place(1, 0), 2, True)}
"""The path, which argument has the flags, and whether that is where they lie."""


def _file(name: str, thread: int, arguments: tuple[int, ...], guest_of: Callable[[int], Guest]) -> Reply:
    guest = guest_of(thread)
    if name == "fchmod":
        path = guest.descriptor(signed(arguments[0]))
        return _touched(guest, "mode", path, True) if path.startswith("/") else ORDINARY
    if name in _SYMLINKS:
        to, place = _SYMLINKS[name]
        path, found = _path(guest, thread, arguments, place, follow=False)
        return _touched(guest, "link", path, found, os.fsdecode(kernel.text(thread, arguments[to])))
    operation, place, follow, other = _PLAIN[name]
    path, found = _path(guest, thread, arguments, place, follow=follow)
    target = "" if other is None else _path(guest, thread, arguments, other, follow=False)[0]
    if operation == "write" and ordinary.write(path):
        return ORDINARY
    return _touched(guest, operation, path, found, target)


def _opening(
    place: _Place,
    flags_at: int,
    by_pointer: bool,
    thread: int,
    arguments: tuple[int, ...],
    guest_of: Callable[[int], Guest],
) -> Reply:
    flags = arguments[flags_at]
    if by_pointer:
        flags = struct.unpack("=Q", kernel.memory(thread, flags, 8))[0]
    if flags & os.O_PATH:
        return ORDINARY  # a handle, by which nothing can be read or written
    raw = kernel.text(thread, arguments[place.path])
    given = os.fsdecode(raw)
    writes = bool(flags & asked.WRITING)
    if ordinary.plain_write(given) if writes else (flags & os.O_DIRECTORY or ordinary.plain_read(given)):
        return ORDINARY
    guest = guest_of(thread)
    folder = AT_FDCWD if place.folder < 0 else signed(arguments[place.folder])
    follow = not flags & os.O_NOFOLLOW and not (flags & os.O_CREAT and flags & os.O_EXCL)
    path, found = guest.path(folder, raw, follow=follow)
    if ordinary.write(path) if writes else ordinary.read(path, guest.inside):
        return ORDINARY
    return _touched(guest, "write" if writes else "read", path, found)


def _path(guest: Guest, thread: int, arguments: tuple[int, ...], place: _Place, *, follow: bool) -> tuple[str, bool]:
    raw = kernel.text(thread, arguments[place.path])
    folder = AT_FDCWD if place.folder < 0 else signed(arguments[place.folder])
    if not raw and folder >= 0:
        return executable(guest.descriptor(folder)), True
    return guest.path(folder, raw, follow=follow)


def _touched(guest: Guest, operation: str, path: str, found: bool, target: str = "") -> Reply:
    return Reply(action=partial(_touch, guest, time.time(), operation, path, found, target))


def _touch(guest: Guest, at: float, operation: str, path: str, found: bool, target: str) -> Action:
    return _acting(guest, at) | {
        "kind": "file", "operation": operation, "path": _bounded(path), "target": _bounded(target), "found": found
    }  # fmt: skip


# -- a second look ---------------------------------------------------------------------------------


def begun(started: Started, runs: Running) -> bool:
    """Return whether something else runs than before; the command line is empty while the kernel makes it."""
    return bool(runs.command) and runs != started.before


def differs(started: Started, runs: Running) -> bool:
    """Return whether something runs that was not reported."""
    if not begun(started, runs):
        return False
    if started.action is None:
        return True
    return "argv" not in started.action["cut"] and not _alike(runs.command, started.action)


def corrected(started: Started, runs: Running) -> Action:
    """Return what runs, or did before the next one was started, in place of the program that was reported."""
    starter = started.starter
    action = started.action or _acting(starter, started.at, kind="program", inside=starter.inside)
    given = _Given(_split(runs.command), []).fields()
    return action | {
        "at": time.time(), "program": _bounded(runs.program) or action["program"], "argv": given["argv"],
        "cut": given["cut"],
    }  # fmt: skip


def _alike(runs: bytes, reported: Action) -> bool:
    """Whether these arguments are those that were reported; a script's have its interpreter's before them."""
    words = [shown(os.fsdecode(raw)) for raw, _ in _split(runs)]
    further: list[str] = reported["argv"][1:]
    if not further:
        return len(words) <= 1 or words[-1].endswith(os.path.basename(reported["program"]))
    return words[-len(further) :] == further
