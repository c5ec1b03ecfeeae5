"""The machine on which the numbers were taken."""

import os
import platform
import resource
import time
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

LOOK_EVERY_S = 1.0
QUIET_FOR_S = 5.0


def description() -> dict[str, str | int | float]:
    """Cores are those that this process may use."""
    return {
        "cpu": _cpu_name(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "load_1min": round(os.getloadavg()[0], 2),
    }


def _cpu_name() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


@dataclass(frozen=True)
class CoreTime:
    """Seconds that the given cores and our own finished children have worked so far."""

    at: float
    busy: float
    ours: float

    @classmethod
    def now(cls, cores: Collection[int]) -> "CoreTime":
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        return cls(time.perf_counter(), _busy_seconds(cores), usage.ru_utime + usage.ru_stime)

    def others_share_until(self, end: "CoreTime", cores: int) -> float:
        """The share of the cores' time that went elsewhere: what was neither idle nor used by children that have been
        waited for."""
        foreign = (end.busy - self.busy) - (end.ours - self.ours)
        return max(0.0, foreign / ((end.at - self.at) * cores))


def wait_until_quiet(cores: Collection[int], share: float, deadline: float) -> None:
    """Return when others take less than ``share`` of the cores, or at the deadline (by ``time.monotonic``)."""
    quiet_since = None
    while time.monotonic() < deadline:
        begin = CoreTime.now(cores)
        time.sleep(LOOK_EVERY_S)
        if begin.others_share_until(CoreTime.now(cores), len(cores)) > share:
            quiet_since = None
            continue
        quiet_since = quiet_since or time.monotonic()
        if time.monotonic() - quiet_since >= QUIET_FOR_S:
            return


def _busy_seconds(cores: Collection[int]) -> float:
    """Read from /proc/stat: everything but idle and iowait."""
    names = {f"cpu{core}" for core in cores}
    lines = [line.split() for line in Path("/proc/stat").read_text().splitlines()]
    ticks = sum(sum(map(int, [*line[1:4], *line[6:9]])) for line in lines if line[0] in names)
    return ticks / os.sysconf("SC_CLK_TCK")
