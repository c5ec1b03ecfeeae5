"""What a process of a sandbox did, as the kernel told the observer, never as the process tells it."""

from typing import Any, Literal

from pydantic import Field, model_validator

from sandboxes.egress.connection_attempt import Frozen, Label
from sandboxes.egress.detectors.abridged import abridged

ARGUMENTS = 256
ARGV_CHARACTERS = 16 * 1024
PATH_CHARACTERS = 4096

Stream = Literal["closed", "null", "file", "pipe", "terminal", "unix", "inet", "other"]
"""What a descriptor is; ``inet`` is a connected or listening socket of the network."""
Operation = Literal["read", "write", "delete", "rename", "link", "mode"]
"""``write``: opened for writing, created or cut; ``link``: a hard or symbolic link, or a mount, made at ``path``."""


class ObservedAction(Frozen):
    """One of three: a program was started, a file was touched, a system call was refused."""

    sandbox: Label
    at: float
    label: Label | None = None
    """The tool call that was running."""
    kind: Literal["program", "file", "refused"]
    pid: int
    """By the machine's number.  0: nobody knows which."""
    inside: int = 0
    """The number of a started program as the sandbox has it."""
    parent: int
    program: str = Field(max_length=PATH_CHARACTERS)
    """Path of the executable that acts; for ``program`` the one that is started.  ``memfd:NAME`` for memory."""
    parent_program: str = Field(default="", max_length=PATH_CHARACTERS)
    argv: tuple[str, ...] = ()
    """The words of a started program, bounded: both ends of what is too long."""
    streams: tuple[Stream, Stream, Stream] | None = None
    """Standard input, output and error of a started program."""
    pipes: tuple[int, int, int] = (0, 0, 0)
    """Which pipes these are, by the kernel's number; 0 where there is none."""
    parent_sockets: int = 0
    """How many network sockets the process or its parent holds beside those three."""
    environment: tuple[str, ...] = ()
    """``NAME=value`` of those variables that change what other programs do (LD_PRELOAD, PYTHONPATH, ...)."""
    folder: str = ""
    """The working folder of a started program."""
    operation: Operation | None = None
    path: str = Field(default="", max_length=PATH_CHARACTERS)
    """Absolute, as the sandbox sees it, links followed as far as they exist."""
    target: str = Field(default="", max_length=PATH_CHARACTERS)
    """The other path of a rename or a link."""
    call: str = ""
    """Name of the refused system call; ``fork``: the sandbox had as many processes and threads as it may, at so many
    looks, 50 ms apart, as ``count`` says; ``crowd``: at least half as many."""
    count: int = Field(default=1, ge=1)
    """How many alike actions this one stands for."""
    found: bool = True
    """Whether the file was there before."""
    cut: frozenset[str] = frozenset()
    """Which of ``argv`` and ``environment`` were longer than what is kept of them."""
    sequence: int = Field(default=0, ge=0)
    """1, 2, 3 ... in the order in which the kernel asked; 0: nobody numbers them."""

    @model_validator(mode="before")
    @classmethod
    def _bounded(cls, given: Any) -> Any:
        if not isinstance(given, dict) or not isinstance(given.get("argv"), list | tuple):
            return given
        argv = [str(word) for word in given["argv"]]
        kept = abridged(argv, ARGUMENTS, ARGV_CHARACTERS)
        cut = {"argv"} if kept != argv else set()
        return given | {"argv": tuple(kept), "cut": cut.union(given.get("cut", ()))}
