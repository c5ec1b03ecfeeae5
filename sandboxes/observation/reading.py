"""What a question is about: a started program, a touched file, a refused call, a socket that no gateway could see.

Everything is read while the caller waits, and made into an action when nobody does any more.  The caller may rewrite
its memory between our reading and the kernel's: ``corrected`` looks again at programs, and docs/security.md says what
stays.
"""

import os
import struct
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from sandboxes.observation import filter as asked
from sandboxes.observation import kernel, ordinary
from sandboxes.observation.guests import AT_FDCWD, Guest, command, executable, link, shown, signed, stream_of

Action = dict[str, Any]
"""Fields of an ``ObservedAction`` by name; ``sandbox`` and ``label`` are the worker's to add."""
AT_SYMLINK_FOLLOW, AT_EMPTY_PATH, AT_REMOVEDIR = 0x400, 0x1000, 0x200
WORDS, WORD_CHARACTERS, ARGV_CHARACTERS = 256, 4096, 16 * 1024
VARIABLES, VARIABLE_CHARACTERS, LOOKED_AT = 32, 512, 2048
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
    replaced: bytes | None = None
    """What a process that starts a program said its arguments were before."""


ORDINARY = Reply()


@dataclass(frozen=True, slots=True)
class Started:
    """A program, to be looked at again once it runs."""

    action: Action
    thread: int
    before: bytes
    """What the process said its arguments were before."""
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
        if not found:
            return ORDINARY  # a shell looks for it in one folder after the other
        given_words = _started_with(thread, arguments[at + 1], arguments[at + 2], heads)
        action = partial(
            _program, guest, time.time(), path, *given_words, guest.streams(), guest.sockets(), guest.folder()
        )
        return Reply(action=action, replaced=guest.command())


def _acting(guest: Guest, at: float, **more: Any) -> Action:
    return {
        "at": at, "pid": guest.pid, "parent": guest.parent, "program": _bounded(guest.program),
        "parent_program": _bounded(guest.parent_program), **more,
    }  # fmt: skip


def _program(
    guest: Guest,
    at: float,
    path: str,
    argv: list[bytes],
    environment: list[bytes],
    links: list[str],
    sockets: int,
    folder: str,
) -> Action:
    streams, pipes = zip(*map(stream_of, links), strict=True)
    return _acting(guest, at) | {
        "kind": "program", "program": _bounded(path), "argv": _words(argv), "streams": list(streams),
        "pipes": list(pipes), "inside": guest.inside, "parent_sockets": sockets, "environment": _variables(environment),
        "folder": _bounded(folder),
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


def _started_with(thread: int, argv: int, environment: int, heads: Sequence[bytes]) -> tuple[list[bytes], list[bytes]]:
    """Its arguments and its environment; ``heads``: how the arrays of both begin."""
    words = _pointers(thread, argv, WORDS, heads[0])
    variables = _pointers(thread, environment, LOOKED_AT, heads[1])
    pieces = kernel.pieces(thread, words + variables)
    return (
        _strings(thread, words, pieces[: len(words)], ARGV_CHARACTERS),
        _strings(thread, variables, pieces[len(words) :], VARIABLE_CHARACTERS),
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


def _strings(thread: int, pointers: list[int], pieces: list[bytes], limit: int) -> list[bytes]:
    """Most are short, and have been read together; the others are read each for itself."""
    return [
        piece[:end] if (end := piece.find(0)) >= 0 else _string(thread, pointer, limit)
        for pointer, piece in zip(pointers, pieces, strict=True)
    ]


def _string(thread: int, pointer: int, limit: int) -> bytes:
    try:
        return kernel.text(thread, pointer, limit)
    except OSError:
        return b""  # the kernel will not read it either


def _words(argv: list[bytes]) -> list[str]:
    left, words = ARGV_CHARACTERS, []
    for raw in argv:
        words.append(shown(os.fsdecode(raw))[:left])
        left -= len(words[-1])
        if left <= 0:
            break
    return words


def _variables(environment: list[bytes]) -> list[str]:
    reported = [raw for raw in environment if raw.startswith(REVEALING) and raw not in USUAL]
    return [shown(os.fsdecode(raw)) for raw in reported[:VARIABLES]]


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
    if ordinary.write(given) if writes else (flags & os.O_DIRECTORY or ordinary.plain_read(given)):
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


def corrected(started: Started) -> Action | None:
    """Return what runs in place of the program that was told, if that can be seen."""
    runs = command(started.thread)
    if not runs or runs == started.before or len(runs) >= kernel.PAGE_BYTES or _alike(runs, started.action):
        return None
    program = executable(link(f"/proc/{started.thread}/exe"))
    argv = [shown(os.fsdecode(word)) for word in runs.rstrip(b"\0").split(b"\0")]
    return started.action | {"at": time.time(), "program": _bounded(program) or started.action["program"], "argv": argv}


def _alike(runs: bytes, reported: Action) -> bool:
    """Whether these arguments are those that were told; a script's have its interpreter's before them."""
    words = runs.rstrip(b"\0").split(b"\0")
    if len(reported["argv"]) <= 1:
        return len(words) <= 1 or words[-1].endswith(os.path.basename(reported["program"]).encode())
    return runs.endswith(b"".join(word.encode() + b"\0" for word in reported["argv"][1:]))
