"""The processes and files of a sandbox as the host sees them, without asking anybody inside.

Names and contents are hostile: no link is followed, no file but a folder is opened, every list and text is bounded.
"""

import os
import signal
import stat
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

from sandboxes.egress.connection_attempt import printable
from sandboxes.interface import INSPECTED_FILES, INSPECTED_PROCESSES, InspectedFile, InspectedProcess

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
COMMAND_CHARACTERS = 300
PATH_CHARACTERS = 500
DEEPEST = 32
"""Each level of folders costs a descriptor while it is read."""
Kind = Literal["file", "folder", "link", "other"]
KINDS: dict[int, Kind] = {stat.S_IFREG: "file", stat.S_IFDIR: "folder", stat.S_IFLNK: "link"}
FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class Member:
    """One process, as ``/proc/<pid>/stat`` has it."""

    pid: int
    parent: int
    state: str
    """Never ``Z`` as long as one of its threads is left."""
    started: int
    """It is counted in ticks since the boot; with the pid it names one process for good."""
    cpu_seconds: float


def member(pid: int) -> Member | None:
    """Return the process, None if there is none of this id any more."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None  # any other error is ours, and must not make a process that runs look as if it had ended
    ticks = int(fields[11]) + int(fields[12])
    state, threads = fields[0].decode(), int(fields[17])
    if state == "Z" and threads > 1:
        state = _state_of_others(pid)
    return Member(pid, int(fields[1]), state, int(fields[19]), ticks / TICKS_PER_S)


def _state_of_others(pid: int) -> str:
    """The state of a process whose main thread has ended, which looks like a zombie: that of a thread that is left, and
    moves if one does."""
    states = {
        state for thread in _threads(pid) if (state := _state(f"/proc/{pid}/task/{thread}/stat")) not in (None, "Z")
    }
    return next(iter(states - {"T", "t"} or states), "Z")


def _threads(pid: int) -> list[str]:
    try:
        return os.listdir(f"/proc/{pid}/task")
    except (FileNotFoundError, ProcessLookupError):
        return []


def _state(file: str) -> str | None:
    try:
        with open(file, "rb") as opened:
            return opened.read().rpartition(b")")[2].split()[0].decode()
    except (FileNotFoundError, ProcessLookupError):
        return None


def family(init: int) -> list[Member]:
    """Process 1 of a sandbox and its descendants, which are all of the sandbox: it adopts every orphan."""
    everybody = {pid: found for pid in _pids() if (found := member(pid)) is not None}
    inside = {init}

    def belongs(pid: int) -> bool:
        line = []
        while pid not in inside:
            line.append(pid)
            if pid not in everybody or (pid := everybody[pid].parent) in line:
                return False
        inside.update(line)
        return True

    return [found for pid, found in everybody.items() if belongs(pid)]


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def processes(init: int) -> tuple[list[InspectedProcess], bool]:
    """Return the processes, and whether those are all."""
    found = family(init)
    shown = [
        InspectedProcess(process.pid, _command(process.pid), process.state, process.cpu_seconds)
        for process in found[:INSPECTED_PROCESSES]
    ]
    return shown, len(found) <= INSPECTED_PROCESSES


def _command(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            raw = file.read(4 * COMMAND_CHARACTERS).rstrip(b"\0").replace(b"\0", b" ")
    except OSError:
        return ""  # it ended meanwhile
    return printable(raw, COMMAND_CHARACTERS)


def files(init: int, pidfd: int, places: tuple[str, ...] = ("work", "tmp")) -> tuple[list[InspectedFile], bool]:
    """Return what is where it can be written, and whether that is all.

    Raises ``ProcessLookupError`` once the sandbox is gone.
    """
    root = os.open(f"/proc/{init}/root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        signal.pidfd_send_signal(pidfd, 0)  # it is alive: the number has been nobody else's
        found: list[InspectedFile] = []
        complete = True
        for name in places:
            complete = _listed(root, name, f"/{name}", DEEPEST, found) and complete
    finally:
        os.close(root)
    return found, complete


def _listed(above: int, name: str, path: str, levels: int, found: list[InspectedFile]) -> bool:
    """Add what is in a folder and below; return whether that was all."""
    try:
        folder = os.open(name, FOLDER, dir_fd=above)
    except OSError:
        return False  # it became something else meanwhile, or an ordinary user may not look into it
    complete = True
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if len(found) >= INSPECTED_FILES:
                    return False
                with suppress(OSError):  # it is gone already
                    status = entry.stat(follow_symlinks=False)
                    below = f"{path}/{entry.name}"
                    found.append(InspectedFile(printable(os.fsencode(below), PATH_CHARACTERS), *_described(status)))
                    if stat.S_ISDIR(status.st_mode):
                        complete = levels > 0 and _listed(folder, entry.name, below, levels - 1, found) and complete
    finally:
        os.close(folder)
    return complete


def _described(status: os.stat_result) -> tuple[Kind, int]:
    return KINDS.get(stat.S_IFMT(status.st_mode), "other"), status.st_size
