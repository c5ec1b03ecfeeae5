"""What a process takes of its machine: processor time, memory, and the GPUs that it may use.

Each member of a run measures itself, where it is.  A server's processes are measured by the generator that started
them.  Sandboxes are not among it: their limits are their own.
"""

import os
import shutil
import subprocess
import time
from collections.abc import Sequence

import psutil

from engine.spec.usage import GpuUse, ProcessReading, Role, ServerReading, ServerRole

MIB = 2**20
GPUS_EVERY_S = 5.0
"""The driver is asked no more often: an answer takes tenths of a second."""
MOST_LOOKS = 4
"""At the children of a process whose threads end meanwhile."""
DRIVER_S = 10.0
"""How long the driver may take to answer."""
QUERY = ("index", "uuid", "name", "utilization.gpu", "memory.used", "memory.total")


class ProcessMeter:
    """Measures the process that it is made in.  ``has_gpus``: the driver is asked for those that the process sees."""

    def __init__(self, name: str, role: Role, *, has_gpus: bool = False) -> None:
        self._name, self._role = name, role
        self._process = psutil.Process()
        self._driver = shutil.which("nvidia-smi") if has_gpus else None
        self._gpus: tuple[GpuUse, ...] = ()
        self._asked_at = float("-inf")

    def reading(self) -> ProcessReading:
        """Blocks for as long as the driver takes, where there are GPUs."""
        used = self._process.cpu_times()
        return ProcessReading(
            self._name,
            self._role,
            self._process.pid,
            began_at=self._process.create_time(),
            cpu_s=used.user + used.system,
            memory_bytes=self._process.memory_info().rss,
            gpus=self._gpus_now(),
        )

    def _gpus_now(self) -> tuple[GpuUse, ...]:
        if self._driver is not None and time.monotonic() - self._asked_at > GPUS_EVERY_S:
            self._asked_at = time.monotonic()
            self._gpus = tuple(visible_gpus(_table(self._driver), os.environ.get("CUDA_VISIBLE_DEVICES")))
        return self._gpus


def tree_reading(name: str, role: Role, root: int) -> ProcessReading | None:
    """Process ``root`` of this machine with all its children, as one; None where it has ended."""
    try:
        first = psutil.Process(root)
        began_at, members = first.create_time(), [first, *descendants(first)]
    except psutil.NoSuchProcess:
        return None
    taken = [_taken(member) for member in members]
    return ProcessReading(
        name,
        role,
        root,
        began_at=began_at,
        cpu_s=sum(cpu_s for cpu_s, _ in taken),
        memory_bytes=sum(memory for _, memory in taken),
    )


def descendants(root: psutil.Process) -> list[psutil.Process]:
    """Its children and theirs.  Raises ``psutil.NoSuchProcess`` where it has ended."""
    if not os.path.exists(f"/proc/{root.pid}/task/{root.pid}/children"):  # a kernel without CONFIG_PROC_CHILDREN
        looked_for: list[psutil.Process] = root.children(recursive=True)
        return looked_for
    found: list[psutil.Process] = []
    parents = [root.pid]
    while parents:
        for pid in _children(parents.pop()):
            try:
                found.append(psutil.Process(pid))
            except psutil.NoSuchProcess:
                continue
            parents.append(pid)
    return found


def _children(pid: int) -> set[int]:
    """As the kernel lists them, thread by thread.  ``psutil`` looks at all processes there are, and sandboxes are
    hundreds.

    Children of a thread that ends become another one's, which may have been read before: then all are read again.
    """
    found: set[int] = set()
    for _ in range(MOST_LOOKS):
        try:
            threads = [_children_of_thread(pid, thread) for thread in os.listdir(f"/proc/{pid}/task")]
        except FileNotFoundError:
            return set()  # it has ended
        found = set().union(*(children for children in threads if children is not None))
        if None not in threads:
            break
    return found


def _children_of_thread(pid: int, thread: str) -> list[int] | None:
    """None where it has ended."""
    try:
        with open(f"/proc/{pid}/task/{thread}/children") as file:
            return list(map(int, file.read().split()))
    except (FileNotFoundError, ProcessLookupError):
        return None


def server_readings(servers: Sequence[ServerReading]) -> list[ProcessReading]:
    """The processes of those servers that were started on this machine."""
    roles: dict[ServerRole, Role] = {"policy": "server", "judge": "judge"}
    found = [
        tree_reading(f"{roles[server.role]}-{server.number}", roles[server.role], server.pid)
        for server in servers
        if server.pid is not None
    ]
    return [reading for reading in found if reading is not None]


def _taken(process: psutil.Process) -> tuple[float, int]:
    """Processor seconds and resident bytes; nothing of a process that has ended meanwhile."""
    try:
        used = process.cpu_times()
        return used.user + used.system, process.memory_info().rss
    except psutil.NoSuchProcess:
        return 0.0, 0


def visible_gpus(table: str, visible: str | None) -> list[GpuUse]:
    """The rows of the driver's table, in the order of ``QUERY``, whose GPU ``CUDA_VISIBLE_DEVICES`` names by number or
    by UUID; all of them where it is None.  A value that a driver does not report counts as 0."""
    rows = [[field.strip() for field in line.split(",")] for line in table.splitlines() if line.strip()]
    named = None if visible is None else {word.strip() for word in visible.split(",")}
    return [
        GpuUse(
            name=f"{index} {name}",
            busy=min(_amount(busy) / 100, 1.0),
            memory_bytes=round(_amount(used) * MIB),
            total_bytes=round(_amount(total) * MIB),
        )
        for index, uuid, name, busy, used, total in rows
        if named is None or index in named or uuid in named
    ]


def _amount(field: str) -> float:
    """A number, of which the driver writes ``[N/A]`` or ``[Not Supported]`` where it has none."""
    return 0.0 if field.startswith("[") else float(field)


def _table(driver: str) -> str:
    """Empty where the driver fails or does not answer: a meter never ends what it measures."""
    command = [driver, f"--query-gpu={','.join(QUERY)}", "--format=csv,noheader,nounits"]
    try:
        asked = subprocess.run(command, capture_output=True, text=True, timeout=DRIVER_S)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return asked.stdout if asked.returncode == 0 else ""
