"""What this machine lacks for making sandboxes, said once and clearly."""

import asyncio
import errno
import marshal
import os
import shutil
import subprocess
from functools import cache
from importlib.resources import files

from sandboxes.backends.namespaces.arguments import SANDBOX_PYTHON
from sandboxes.backends.namespaces.limits import host_id
from sandboxes.descriptors import REMEDIES as REMEDIES_WITHOUT_DESCRIPTORS
from sandboxes.interface import SandboxUnavailable

PACKAGE = "sandboxes.backends.namespaces.inside"
INSIDE = (
    "frames", "libc", "pauses", "copies", "guest", "processes", "files", "trees", "selection", "events", "jobs",
    "snapshots", "observed", "agent",
)  # fmt: skip
"""In the order of their imports; the last one has ``main``."""
ZYGOTE = (*INSIDE, "walls", "zygote")
COMPILE = """\
import marshal, sys
if sys.version_info < (3, 10):
    sys.exit("sandboxes need Python 3.10 or later there")
sources = marshal.load(sys.stdin.buffer)
code = [(name, compile(text, "<%s>" % name, "exec", dont_inherit=True, optimize=2)) for name, text in sources]
sys.stdout.buffer.write(marshal.dumps(code))
"""
SYSTEM_PATH = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"

REMEDIES = (
    (("new namespace", "uid map", "user.max_user_namespaces"),
     "allow unprivileged user namespaces: sysctl -w kernel.unprivileged_userns_clone=1 user.max_user_namespaces=65536"
     " (on Ubuntu also kernel.apparmor_restrict_unprivileged_userns=0)"),
    (("mount proc", "Can't mount"),
     "run outside of a container, or start the container with --security-opt systempaths=unconfined"),
    (("Too many open files",), REMEDIES_WITHOUT_DESCRIPTORS[errno.EMFILE]),
    (("Unknown option", "unknown option"), "install bubblewrap 0.7 or later"),
    (("netns entry:",),
     "watched sandboxes need a kernel with IPv6, seccomp listeners, and nftables with tproxy, socket, limit, log,"
     " reject: load nf_tables, nft_tproxy, nft_socket, nft_log, nft_limit, nft_reject_inet, nfnetlink_log,"
     " or do without network"),
    (("execvp",), f"install the system's Python at {SANDBOX_PYTHON}: apt-get install python3"),
)  # fmt: skip


def bwrap_path() -> str:
    return _program("bwrap", "apt-get install bubblewrap")


def as_nobody_in_particular() -> list[str]:
    """Return what to put before a command line so that root does not run it as root; an ordinary user needs nothing."""
    if os.geteuid() != 0:
        return []
    identity = host_id()
    # It stays at the root where it is.  setpriv is made for this, and takes 0.7 ms longer to load its libraries.
    chroot = _program("chroot", "apt-get install coreutils")
    return [chroot, f"--userspec=+{identity}:+{identity}", "--groups=", "/"]


def _program(name: str, remedy: str) -> str:
    found = shutil.which(name, path=SYSTEM_PATH)
    if found is None:
        raise SandboxUnavailable(f"{name} is not installed: {remedy}")
    return found


async def agent_code() -> bytes:
    """The modules of the agent, compiled by the Python that will run them: ours may be another version."""
    return await asyncio.to_thread(_compiled, INSIDE)


async def zygote_code() -> bytes:
    """The modules of a zygote, compiled in the same way."""
    return await asyncio.to_thread(_compiled, ZYGOTE)


def agent_texts(modules: tuple[str, ...] = INSIDE) -> bytes:
    """The modules of the agent, or of a zygote, as source, for a Python that is not this machine's."""
    parents = [".".join(PACKAGE.split(".")[: depth + 1]) for depth in range(PACKAGE.count(".") + 1)]
    texts = [(name, "") for name in parents]
    texts += [(f"{PACKAGE}.{name}", (files(PACKAGE) / f"{name}.py").read_text("utf-8")) for name in modules]
    return marshal.dumps(texts, 2)


@cache
def _compiled(modules: tuple[str, ...]) -> bytes:
    if not os.access(SANDBOX_PYTHON, os.X_OK):
        raise SandboxUnavailable(f"sandboxes need a Python at {SANDBOX_PYTHON}: apt-get install python3")
    compiled = subprocess.run(
        [SANDBOX_PYTHON, "-I", "-S", "-c", COMPILE], input=agent_texts(modules), capture_output=True, env={}, cwd="/"
    )
    if compiled.returncode != 0:
        raise SandboxUnavailable(
            f"{SANDBOX_PYTHON} cannot run the agent: {compiled.stderr.decode(errors='replace')[-300:]}"
        )
    return compiled.stdout


def unavailable(complaint: str) -> SandboxUnavailable:
    """Return what bubblewrap said, with what to do about it."""
    complaint = complaint.strip() or "bubblewrap ended without a word"
    for signs, remedy in REMEDIES:
        if any(sign in complaint for sign in signs):
            return SandboxUnavailable(f"{complaint}; {remedy}")
    return SandboxUnavailable(complaint)
