"""What the connections of a container may hold in buffers that nobody has read.

cgroup v2 counts these as memory of the container.  v1 counts them apart, without a limit, and the option of Docker's
API for one is dropped by its runtimes without a word: so it is written here, before the first guest exists.
"""

import logging
from functools import cache
from pathlib import Path

from sandboxes.cgroups.hierarchies import group_folder

log = logging.getLogger(__name__)
SOCKETS_MIB = 16
LIMIT = "memory.kmem.tcp.limit_in_bytes"


def bound_sockets(pid: int) -> bool:
    """Bound those of the container of process ``pid``; whether they are bounded.  0: it is not to be seen here."""
    try:
        group = _memory_group(pid)
        if group is not None:
            (group / LIMIT).write_text(str(SOCKETS_MIB * 2**20))
        return True
    except OSError as error:
        _warn(str(error))
        return False


def _memory_group(pid: int) -> Path | None:
    """Its folder in cgroup v1; None where v2 has the memory.  Raises ``OSError`` where neither can be found."""
    if not pid:
        raise OSError("the processes of the Docker daemon are not seen here")
    mounts = Path("/proc/self/mountinfo").read_text()
    for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
        _, names, group = line.split(":", 2)
        if "memory" in names.split(","):
            folder = group_folder(mounts, names, group)
            if folder is None:
                raise OSError(f"the cgroup {group} is not mounted here")
            return folder
    return None


@cache
def _warn(why: str) -> None:
    log.warning(
        "TCP buffers of containers are outside of their memory limit here (%s): a container may hold as much of"
        " the machine's memory as net.ipv4.tcp_mem allows to all; use cgroup v2, which counts them",
        why,
    )
