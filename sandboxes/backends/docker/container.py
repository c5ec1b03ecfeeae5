"""One container: how it is made, which is the security policy of a sandbox of Docker, and how it ends."""

import asyncio
import logging
import os
import secrets
import select
import socket
import stat
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

import docker
from docker.errors import APIError, NotFound
from docker.types import Ulimit

from sandboxes import owner
from sandboxes.backends.docker import daemon
from sandboxes.backends.docker.address import address
from sandboxes.backends.docker.seccomp import profile
from sandboxes.backends.docker.sockets import bound_sockets
from sandboxes.backends.namespaces import inspection
from sandboxes.backends.namespaces.arguments import BOOT, HOSTNAME, TASK_FOLDERS
from sandboxes.backends.namespaces.inside.snapshots import KEPT_DISKS
from sandboxes.backends.namespaces.limits import NOBODY, host_id
from sandboxes.images.registry import Image
from sandboxes.interface import InspectedFile, InspectedProcess, SandboxUnavailable
from sandboxes.spec import SandboxSpec
from sandboxes.teardown import completed

log = logging.getLogger(__name__)
OWNER = "palestra.owner"
"""The label that says whose a container is (``sandboxes.owner``)."""
REQUESTS, ANSWERS = 3, 4
"""Where the agent finds the host's requests, and where it answers: stdin and stdout are for guests to have none of."""
ENVIRONMENT = {"LC_ALL": "C.UTF-8", "PYTHONHASHSEED": "0"}
ONLY_OURS = f"""\
import os
for name in set(os.environ) - {set(ENVIRONMENT)}:
    del os.environ[name]
"""
"""What the image and Docker set is gone before the agent begins: guests have the environment of every other sandbox."""
INTO_PLACE = 'exec "$0" "$@" 3<&0 4>&1'
AGENT_MIB = 64
"""What the agent itself may take, its code and the shell before it included."""
INODES_PER_MIB = 1024
AGENT_FILES = 4096
REMOVE_S = 10.0
PLACES = {"work": "0755", "tmp": "1777", "dev/shm": "1777"}
"""What can be written, with its permissions."""
SHARED_MIB = 1
"""The size of /dev/shm: for semaphores, not for files.  The limit of what is written is ``disk_mib``, of two places."""
EMPTY = "ro,size=4k,nr_inodes=64,mode=0000,nosuid,nodev,noexec"
SOCKET_BUFFERS = "4096 32768 131072"
"""Least, first and most bytes of one connection's buffer, for who does not set them by itself."""
MASKED = (
    "/proc/acpi", "/proc/asound", "/proc/interrupts", "/proc/kcore", "/proc/keys", "/proc/latency_stats",
    "/proc/sched_debug", "/proc/scsi", "/proc/timer_list", "/proc/timer_stats", "/sys/devices/virtual/powercap",
    "/sys/firmware",
)  # fmt: skip
SANDBOX_CPUS = 1.0
FREEZE_S = 5.0
NOT_YET = "unable to freeze"
"""What Docker's runtime says when it gave up while a process was still running, as it does on a busy machine."""
STARTS = 3
DIED_EARLY = "stopped process"
"""Docker's runtime begins as a member of the sandbox: under load it may need more threads for a moment than a small
sandbox has processes, and then it dies before it has become the sandbox."""


def settings(spec: SandboxSpec, user: int) -> dict[str, Any]:
    """The host's part of a container: what it may use, and everything that it may not."""
    owner_is = f"nosuid,nodev,uid={user},gid={user}"
    memory_bytes = sandbox_memory_bytes(spec)
    return {
        # Its own network stack, with nothing but loopback, which the daemon never connects to anything.
        "network_mode": "none",
        "dns": ["127.0.0.1"],
        "dns_opt": ["attempts:1", "timeout:6"],
        # Docker opens the ports below 1024 to everybody; a watched sandbox's gateway and resolver listen there.  Ping
        # is open, so that one is a packet that is seen.
        "sysctls": {
            "net.ipv4.ip_unprivileged_port_start": "1024",
            "net.ipv4.ping_group_range": "0 2147483647",
            # Docker switches IPv6 off, and a family that is not there cannot be watched.
            **({"net.ipv6.conf.all.disable_ipv6": "0"} if spec.network == "watched" else {}),
            "net.ipv4.tcp_rmem": SOCKET_BUFFERS,
            "net.ipv4.tcp_wmem": SOCKET_BUFFERS,
        },
        "ipc_mode": "private",
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges:true", f"seccomp={profile()}"],
        "privileged": False,
        # Only these can be written; they are memory and die with the sandbox.  Nothing of the host is mounted.
        "read_only": True,
        "tmpfs": {
            **{
                f"/{place}": f"{room(spec, place)},mode={mode},{owner_is},{'noexec' if place == 'dev/shm' else 'exec'}"
                for place, mode in PLACES.items()
            },
            # In place of what Docker mounts there: the machine's devices, and queues that would outlive a reset.
            "/sys": EMPTY,
            "/dev/mqueue": EMPTY,
            # Docker's own is a devpts of this container alone.
            **(task_folders(spec, owner_is) if spec.terminal else {"/dev/pts": EMPTY}),
        },
        # Of all processes together, the files among them; no swap.
        "mem_limit": memory_bytes,
        "memswap_limit": memory_bytes,
        "pids_limit": spec.processes + 1,  # and the agent
        "nano_cpus": int(SANDBOX_CPUS * 1e9),
        "ulimits": [
            Ulimit(name="nofile", soft=AGENT_FILES, hard=AGENT_FILES),
            Ulimit(name="core", soft=0, hard=0),
            Ulimit(name="memlock", soft=65536, hard=65536),
            Ulimit(name="msgqueue", soft=0, hard=0),
        ],
        # The agent is process 1 and reaps.
        "init": False,
        "restart_policy": {"Name": "no"},
        "log_config": {"Type": "none"},
    }


def task_folders(spec: SandboxSpec, owner_is: str) -> dict[str, str]:
    """Those of a terminal task, which an image need not have."""
    return {f"/{name}": f"{room(spec, name)},mode=0755,{owner_is},exec" for name in TASK_FOLDERS}


def room(spec: SandboxSpec, place: str) -> str:
    """Return how much can be written there, and how many names."""
    size_mib = SHARED_MIB if place == "dev/shm" else spec.disk_mib
    return f"size={size_mib}m,nr_inodes={size_mib * INODES_PER_MIB}"


def sandbox_memory_bytes(spec: SandboxSpec) -> int:
    """The memory of all processes, the files, and the agent with the snapshots that it keeps."""
    disks = 2 + (len(TASK_FOLDERS) if spec.terminal else 0) + (KEPT_DISKS if spec.snapshots else 0)
    files_mib = spec.disk_mib * disks + SHARED_MIB
    return (spec.memory_mib + files_mib + AGENT_MIB) * 2**20


def masked_paths() -> list[str]:
    """Files of the machine that nobody shall read.

    A mask is ``/dev/null``, which everybody may open: what the kernel keeps for root by itself goes without one.
    """
    return [path for path in MASKED if not is_for_root_only(path)]


def is_for_root_only(path: str) -> bool:
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return False
    return stat.S_ISREG(mode) and not mode & 0o077


@dataclass
class Container:
    """A container from its making to its removal."""

    name: str
    client: docker.APIClient
    stream: socket.socket
    """Its standard streams, attached before it started; the link's to close."""
    init_pid: int = 0
    """The process id of its first process on this machine; 0 if the daemon's processes cannot be seen here."""
    init: int = -1
    """A pidfd of it."""
    limits: Literal["cgroup"] = "cgroup"
    _ending: asyncio.Task[None] | None = None

    @classmethod
    async def start(cls, spec: SandboxSpec, image: Image) -> "Container":
        """Runs an interpreter of the image that waits for the agent's code.  Raises ``SandboxUnavailable``."""
        for _ in range(STARTS - 1):
            try:
                return await cls._start(spec, image)
            except SandboxUnavailable as refusal:
                if DIED_EARLY not in str(refusal):
                    raise
                log.warning("a container is started again: %s", refusal)
        return await cls._start(spec, image)

    @classmethod
    async def _start(cls, spec: SandboxSpec, image: Image) -> "Container":
        client = await asyncio.to_thread(daemon.client)
        own_ids = await daemon.asked(daemon.capabilities, client)
        # A user of the machine that nothing else has, if containers' users are the machine's.
        user = host_id() if own_ids else NOBODY
        name = f"palestra-{secrets.token_hex(8)}"
        entrypoint = [
            "/bin/sh",
            "-c",
            INTO_PLACE,
            image.python,
            "-S",
            "-s",
            "-B",
            "-c",
            ONLY_OURS + BOOT,
            str(REQUESTS),
        ]
        container: Container | None = None
        try:
            number = await daemon.asked(create, client, name, image.digest, entrypoint, settings(spec, user), user)
            container = cls(name, client, await asyncio.to_thread(daemon.attached, name))
            await daemon.asked(client.start, name)
            container.init_pid, container.init = await daemon.asked(first_process, client, number)
            await asyncio.to_thread(bound_sockets, container.init_pid)
        except BaseException as error:
            if container is not None:
                container.stream.close()
            await removed(client, name)
            if isinstance(error, NotFound):
                raise SandboxUnavailable(
                    f"image {image.reference} is registered, but the Docker daemon at {address()} does not"
                    f" have {image.digest}: import it again"
                ) from None
            raise
        return container

    async def stop(self) -> None:
        """No process of it runs any more when this returns.  Raises ``OSError``."""
        give_up_s = time.monotonic() + FREEZE_S
        while True:
            try:
                await daemon.asked(self.client.pause, self.name)
                return
            except (SandboxUnavailable, NotFound) as error:
                if NOT_YET not in str(error) or time.monotonic() > give_up_s:
                    raise OSError(str(error)) from None

    async def inspected(self) -> tuple[list[InspectedProcess], list[InspectedFile], bool]:
        """Processes, files, and whether those are all.  Raises ``OSError`` once it is gone."""
        return await completed(asyncio.to_thread(self._inspected))

    def _inspected(self) -> tuple[list[InspectedProcess], list[InspectedFile], bool]:
        if self.init < 0:
            return [], [], False
        if not alive(self.init):
            raise ProcessLookupError
        processes, all_processes = inspection.processes(self.init_pid)
        try:
            files, all_files = inspection.files(self.init_pid, self.init, tuple(PLACES))
        except PermissionError:
            return processes, [], False  # only root sees the files of another user's process
        return processes, files, all_processes and all_files

    def kill(self) -> None:
        """Begin the end: at once, without waiting."""
        if self._ending is None:
            self._ending = asyncio.ensure_future(removed(self.client, self.name))

    async def dead(self) -> None:
        """After ``kill``: wait until no process of it is left, and no container.  Raises ``SandboxUnavailable``."""
        assert self._ending is not None
        await asyncio.shield(self._ending)

    async def gone(self) -> None:
        """The same, and forget it.  Call once."""
        self.kill()
        try:
            await self.dead()
        finally:
            if self.init >= 0:
                os.close(self.init)


def create(
    client: docker.APIClient, name: str, image: str, entrypoint: list[str], limits: dict[str, Any], user: int
) -> str:
    """Return its id.  Nothing of it runs yet."""
    host = client.create_host_config(**limits)
    # The client has no word for it.
    host["MaskedPaths"] = masked_paths()
    made = client.create_container(
        image,
        name=name,
        command=[],
        entrypoint=entrypoint,
        user=f"{user}:{user}",
        hostname=HOSTNAME,
        working_dir="/work",
        environment=ENVIRONMENT,
        labels={OWNER: owner.mark()},
        healthcheck={"test": ["NONE"]},
        stop_signal="SIGKILL",
        stdin_open=True,
        host_config=host,
    )
    return str(made["Id"])


def first_process(client: docker.APIClient, container: str) -> tuple[int, int]:
    """Its pid here, and a pidfd; 0 and -1 if the daemon's processes are not to be seen on this machine.

    The number is the daemon's word, and may be another process's by now: a cgroup with the container's id in its
    name is the kernel's.
    """
    pid = int(client.inspect_container(container)["State"]["Pid"])
    try:
        pidfd = os.pidfd_open(pid)
    except OSError:
        return 0, -1
    is_it = False
    with suppress(FileNotFoundError, ProcessLookupError, PermissionError):
        with open(f"/proc/{pid}/cgroup", encoding="ascii") as file:
            is_it = container in file.read() and alive(pidfd)
    if not is_it:
        os.close(pidfd)
    return (pid, pidfd) if is_it else (0, -1)


def alive(pidfd: int) -> bool:
    """Asked in a way that needs no permission."""
    ended = select.poll()
    ended.register(pidfd, select.POLLIN)
    return not ended.poll(0)


async def removed(client: docker.APIClient, container: str) -> None:
    """Kill and remove a container, running, frozen or dead.  Raises ``SandboxUnavailable`` if it stays."""
    try:
        await daemon.asked(remove_if_there, client, container)
    except SandboxUnavailable as error:
        raise SandboxUnavailable(f"{error}; remove what is left with `docker rm -f {container}`") from None


def remove_if_there(client: docker.APIClient, container: str) -> bool:
    """Return, when it is gone, whether it was there."""
    give_up_s = time.monotonic() + REMOVE_S
    found = False
    while True:
        try:
            client.remove_container(container, force=True, v=True)
            return True
        except NotFound:
            return found
        except APIError:
            # It ended by itself in that moment, or somebody else removes it as well.
            found = True
            if time.monotonic() > give_up_s:
                raise
            time.sleep(0.02)
