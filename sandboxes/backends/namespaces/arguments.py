"""The arguments of bubblewrap: the security policy of a sandbox, in one function.

What is not granted here does not exist in the sandbox.  ``seccomp.py`` takes away system calls on top.
"""

import os
from dataclasses import dataclass

from sandboxes.backends.namespaces.inside.walls import CAPABILITIES
from sandboxes.spec import SandboxSpec

SANDBOX_ID = 1000
HOSTNAME = "sandbox"
SANDBOX_PYTHON = "/usr/bin/python3"
SYSTEM_FOLDERS = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
DEVICES = ("null", "zero", "full", "random", "urandom")
TASK_FOLDERS = ("tests", "solution", "logs")
"""The folders of a terminal task.  They are links to below ``HIDDEN``, whose contents every detector protects."""
HIDDEN = "/tmp/.palestra"
SHARED_BYTES = 2**20
"""The size of /dev/shm beside terminals, where it cannot be /tmp: for semaphores, not for files."""
BOOT = """\
import marshal, os, sys
sys.path[:] = [p for p in sys.path if p]
def exactly(n):
    b = b""
    while len(b) < n:
        b += os.read(fd, n - len(b)) or os._exit(1)
    return b
def received():
    return marshal.loads(exactly(int.from_bytes(exactly(4), "big")))
fd = int(sys.argv[1])
for name, code in received():
    module = sys.modules[name] = type(sys)(name)
    module.__path__ = []
    parent, _, last = name.rpartition(".")
    if parent:
        setattr(sys.modules[parent], last, module)
    exec(code, module.__dict__)
module.main(fd, *received(), *map(int, sys.argv[2:]))
"""
"""Makes modules of the code that the host sends first, and calls ``main`` of the last one.

Takes the descriptor to read from and, if that is another one, the descriptor to answer on.
"""


@dataclass(frozen=True, slots=True)
class Descriptors:
    """File descriptors of ours that bubblewrap is given by number."""

    agent: int
    """Our socket's other end: the only one that the agent inherits in the end."""
    seccomp: int | None
    """The filter of calls; None for a zygote, whose children add it themselves."""
    info: int
    """Where bubblewrap writes the host pid of the sandbox's first process."""
    passwd: int
    group: int
    names: tuple[int, ...] = ()
    """Contents of ``NAME_FILES``, in their order; a watched sandbox only."""


@dataclass(frozen=True, slots=True)
class Program:
    """What is run in place of the agent, and the folders of this machine that it may read beside the system's."""

    argv: tuple[str, ...]
    folders: tuple[tuple[str, str], ...]
    """(here, inside): read-only in the sandbox, whatever they are here."""


def bwrap_arguments(
    bwrap: str, spec: SandboxSpec, fds: Descriptors, *, zygote: bool = False, program: Program | None = None
) -> list[str]:
    """The command line that makes one sandbox and runs the agent in it.

    ``zygote``: or that runs a zygote, which makes one sandbox after the other with what walls.py adds.  ``program``: or
    that runs this.
    """
    return [
        bwrap,
        # A namespace of each kind.  User first: inside, the agent is an ordinary user without capabilities, and
        # outside it is whoever started bwrap, never root (limits.host_id).
        *("--unshare-user", "--uid", str(SANDBOX_ID), "--gid", str(SANDBOX_ID)),
        # Guests see, signal and trace only each other; the end of process 1 is the end of all of them.
        *("--unshare-pid", "--as-pid-1"),
        *_network(spec),
        # System V objects and POSIX queues would outlive their processes and be shared with the host's.
        "--unshare-ipc",
        *("--unshare-uts", "--hostname", HOSTNAME),
        # "try": kernels without cgroup namespaces exist, and then there is no cgroup mount to see either.
        "--unshare-cgroup-try",
        # No capability in the new user namespace, though bwrap would have them all to give.
        *("--cap-drop", "ALL"),
        # A zygote needs those that belong to what it makes, in the new user namespace only; its children give them up.
        *(word for name in (CAPABILITIES if zygote else ()) for word in ("--cap-add", name)),
        # No controlling terminal, so no TIOCSTI into the terminal of whoever runs us.
        "--new-session",
        # The embedder's death, kill -9 included, is the sandbox's.  Follows the parent *thread*: see spawn.py.
        "--die-with-parent",
        # The host's environment holds secrets.  The agent builds that of guests (processes.BASE_ENVIRONMENT).
        "--clearenv",
        *("--setenv", "LC_ALL", "C.UTF-8", "--setenv", "PYTHONHASHSEED", "0"),
        # no_new_privs needs no flag: bwrap always sets it, so set-user-id files give nothing.
        # A zygote's children add the filter themselves: it forbids what they are made with.
        *(() if fds.seccomp is None else ("--seccomp", str(fds.seccomp))),
        *("--info-fd", str(fds.info)),
        *_file_systems(spec, fds, zygote, () if program is None else program.folders),
        *("--chdir", "/work"),
        # -S -s: no site-packages; -B: no bytecode is written.  Not -E, -I: the hash seed comes by the environment,
        # which is ours; an interpreter that orders sets differently every time makes no run repeatable.
        *((SANDBOX_PYTHON, "-S", "-s", "-B", "-c", BOOT, str(fds.agent)) if program is None else program.argv),
    ]


def _network(spec: SandboxSpec) -> list[str]:
    if spec.network == "watched":
        # The network namespace that bwrap was started in (egress.interception): nobody else is in it, and it
        # belongs to a user namespace above the sandbox's own, so that no one in the sandbox may change its rules.
        return []
    # A network stack without a device but its own loopback.  Abstract unix sockets are per stack as well.
    return ["--unshare-net"]


def _file_systems(spec: SandboxSpec, fds: Descriptors, zygote: bool, folders: tuple[tuple[str, str], ...]) -> list[str]:
    size = str(spec.disk_mib * 2**20)
    flags = ["--ro-bind", "/usr", "/usr"]
    for name in SYSTEM_FOLDERS:
        # Merged-/usr systems have links here; older ones have folders.
        if os.path.islink(f"/{name}"):
            flags += ["--symlink", os.readlink(f"/{name}"), f"/{name}"]
        elif os.path.isdir(f"/{name}"):
            flags += ["--ro-bind", f"/{name}", f"/{name}"]
    # From /etc: what the loader and Debian's alternatives need, no accounts, no keys, no resolver.
    flags += ["--perms", "0755", "--dir", "/etc"]
    for path in ("/etc/ld.so.cache", "/etc/alternatives"):
        flags += ["--ro-bind-try", path, path]
    flags += ["--perms", "0444", "--ro-bind-data", str(fds.passwd), "/etc/passwd"]
    flags += ["--perms", "0444", "--ro-bind-data", str(fds.group), "/etc/group"]
    for fd, path in zip(fds.names, NAME_FILES, strict=bool(fds.names)):
        flags += ["--perms", "0444", "--ro-bind-data", str(fd), path]
    # A /proc of the new pid namespace: its processes only.
    flags += ["--proc", "/proc"]
    flags += _devices_with_terminals() if spec.terminal else _devices()
    # The only places that can be written, each with a hard size; they are memory and die with the sandbox.
    # A zygote has none itself: each of its children mounts its own.
    for path, mode in (("/work", "0755"), ("/tmp", "1777")):
        flags += ["--perms", mode, *(("--dir", path) if zygote else ("--size", size, "--tmpfs", path))]
    if spec.terminal:
        flags += ["--symlink", "/work", "/app"]
        flags += [word for name in TASK_FOLDERS for word in ("--symlink", f"{HIDDEN}/{name}", f"/{name}")]
    for here, inside in folders:
        flags += ["--ro-bind", here, inside]
    # The root and /dev are tmpfs without a size: nobody may write there.
    return [*flags, "--remount-ro", "/dev", "--remount-ro", "/"]


def _devices() -> list[str]:
    """Not --dev: no terminals, no shared memory of unlimited size."""
    flags = ["--tmpfs", "/dev"]
    for name in DEVICES:
        flags += ["--dev-bind", f"/dev/{name}", f"/dev/{name}"]
    for name, target in (("fd", "/proc/self/fd"), ("stdin", "/proc/self/fd/0"), ("stdout", "/proc/self/fd/1")):
        flags += ["--symlink", target, f"/dev/{name}"]
    return [*flags, "--symlink", "/proc/self/fd/2", "/dev/stderr", "--symlink", "/tmp", "/dev/shm"]


def _devices_with_terminals() -> list[str]:
    """The same devices, and a devpts of the sandbox's own: no terminal of the machine, nor of another sandbox."""
    return ["--dev", "/dev", "--perms", "1777", "--size", str(SHARED_BYTES), "--tmpfs", "/dev/shm"]


PASSWD = f"root:x:0:0::/:/usr/sbin/nologin\nagent:x:{SANDBOX_ID}:{SANDBOX_ID}::/work:/bin/sh\n".encode()
GROUP = f"root:x:0:\nagent:x:{SANDBOX_ID}:\n".encode()
NAME_FILES = {
    "/etc/resolv.conf": b"nameserver 127.0.0.1\noptions attempts:1 timeout:6\n",
    "/etc/hosts": b"127.0.0.1 localhost sandbox\n::1 localhost sandbox\n",
    "/etc/nsswitch.conf": b"hosts: files dns\n",
}
"""How names are resolved in a watched sandbox.  The resolver answers on every address."""
