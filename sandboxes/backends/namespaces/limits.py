"""What a ``SandboxSpec`` means in the kernel's terms.

Guests get these limits between fork and their first own instruction, with soft equal to hard.
RLIMIT_NPROC counts the processes and threads of one user id *in one user namespace* (Linux 5.14 and
later), so it counts exactly one sandbox; the kernel ignores it for root's own id, which no sandbox has.
"""

import secrets

from sandboxes.cgroups.group import Bounds
from sandboxes.spec import SandboxSpec

OPEN_FILES = 256
OWN_MIB = 32
"""The memory of a sandbox itself: bubblewrap, the agent, page tables, the kernel's records of files, pipes and
sockets."""
OWN_PROCESSES = 5
"""bubblewrap, the zygote, the agent, and two for the moment in which a sandbox is made."""
ALONE, WITH_ZYGOTE = 1, 2
"""Processes in the user namespace of a sandbox beside its guests: the agent; and its zygote."""
HOST_IDS_FROM, HOST_IDS = 1_900_000_000, 2**24
NOBODY = 65534


def rlimits(spec: SandboxSpec, others: int = ALONE) -> dict[str, int]:
    """The limits of each guest process, by their names in ``resource``."""
    return {
        "RLIMIT_AS": spec.memory_mib * 2**20,
        "RLIMIT_NPROC": spec.processes + others,
        "RLIMIT_FSIZE": spec.disk_mib * 2**20,
        "RLIMIT_NOFILE": OPEN_FILES,
        "RLIMIT_CORE": 0,
        "RLIMIT_MEMLOCK": 65536,
        "RLIMIT_SIGPENDING": 1024,
        "RLIMIT_MSGQUEUE": 0,
    }


def bounds(spec: SandboxSpec) -> Bounds:
    """Return what all processes of a sandbox may have together, where cgroups can be made.

    Beyond what each process may have: files are memory, and so are the copies of them that snapshots keep.
    """
    files_mib = 2 * spec.disk_mib * (2 if spec.snapshots else 1)
    return Bounds((spec.memory_mib + files_mib + OWN_MIB) * 2**20, spec.processes + OWN_PROCESSES)


def host_id() -> int:
    """The user and group id that a sandbox of root's has on the host.

    One of its own that nothing else has: a guest that left its namespaces would be nobody, and no
    two sandboxes share a quota that the kernel keeps per user.
    """
    with open("/proc/self/uid_map", encoding="ascii") as file:
        mapped = [tuple(int(field) for field in line.split()) for line in file]
    wanted = HOST_IDS_FROM + secrets.randbelow(HOST_IDS)
    if any(first <= wanted < first + count for first, _, count in mapped):
        return wanted
    return NOBODY  # we are root of a container that has no such ids
