"""Which files are not worth a word when they are opened: what every program loads, and devices that hold nothing."""

import re

SYSTEM = ("/usr/", "/lib/", "/lib32/", "/lib64/", "/libx32/", "/bin/", "/sbin/", "/etc/alternatives/", "/etc/ssl/")
LOADER_FILES = {
    "/etc/ld.so.cache", "/etc/ld.so.preload", "/etc/localtime", "/etc/nsswitch.conf", "/etc/resolv.conf", "/etc/hosts",
    "/etc/host.conf", "/etc/gai.conf", "/etc/services", "/etc/protocols", "/etc/inputrc", "/etc/mime.types",
}  # fmt: skip
DEVICES = {f"/dev/{name}" for name in ("null", "zero", "full", "random", "urandom", "tty")}
_OTHERS = re.compile(r"/proc/(\d+)/(?:task/\d+/)?(environ|mem|fd|root|cwd|maps|auxv|stack|syscall)(?:/.*)?")
_MACHINE = re.compile(r"/proc/(?:kcore|kallsyms|kmsg|sysrq-trigger|timer_list|sched_debug|keys|1/.*)")


def plain_read(path: str) -> bool:
    """Return whether this text, not resolved yet, can only be of a file that every program reads."""
    if path.startswith(SYSTEM):
        return "/.." not in path  # these folders are read-only: no link of a guest's lies there
    return path in LOADER_FILES or path in DEVICES


def read(path: str, inside: int) -> bool:
    """Return whether reading this resolved path is ordinary; ``inside``: the reader's process number in the sandbox."""
    if path.startswith("/proc/"):
        other = _OTHERS.fullmatch(path)
        if other is not None:
            return int(other[1]) == inside and other[2] != "environ"
        return _MACHINE.fullmatch(path) is None
    return plain_read(path) or _flows(path) or "/__pycache__/" in path or path in ("/", "/proc", "/dev")


def plain_write(path: str) -> bool:
    """Return whether this text, not resolved yet, can only be of a device."""
    return path in DEVICES


def write(path: str) -> bool:
    """Return whether nothing is kept of what is written to this resolved path."""
    return path in DEVICES or _flows(path)


def _flows(path: str) -> bool:
    """A pipe, a socket or a terminal, by whatever name a descriptor of it was opened again."""
    return path.startswith(("pipe:", "socket:", "anon_inode:", "/dev/pts/"))
