"""What memory this machine has, and what the cgroup that we are in has left of it, in either version of cgroups."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class MemoryCgroup:
    """The files of a memory cgroup in ``folder``, and what ``memory.stat`` there calls the page cache that is idle."""

    folder: Path
    limit: str
    use: str
    idle_cache: str

    @property
    def limit_bytes(self) -> int | None:
        """None where there is none."""
        file = self.folder / self.limit
        text = file.read_text().strip() if file.is_file() else ""
        return int(text) if text.isdigit() else None

    @property
    def used_bytes(self) -> int | None:
        """Without the page cache that the kernel gives up before it lets anybody run out of memory, as far as that is
        known.  None where nothing is."""
        use, stat = self.folder / self.use, self.folder / "memory.stat"
        if not use.is_file():
            return None
        counts = dict(line.split() for line in stat.read_text().splitlines()) if stat.is_file() else {}
        return int(use.read_text()) - int(counts.get(self.idle_cache, 0))


CGROUP_V2 = MemoryCgroup(Path("/sys/fs/cgroup"), "memory.max", "memory.current", "inactive_file")
CGROUP_V1 = MemoryCgroup(
    Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"
)


def total_memory(cgroups: Sequence[MemoryCgroup] = (CGROUP_V2, CGROUP_V1)) -> int:
    """Bytes of the machine, or of the container that we are in, if that has less."""
    limits = [limit for cgroup in cgroups if (limit := cgroup.limit_bytes) is not None]
    return min([os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), *limits])
