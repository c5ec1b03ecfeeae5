"""What is particular to sandboxes that are containers.  What every sandbox promises: tests/sandboxes/contract."""

# ruff: noqa: ASYNC220  an owner is a process that has to be killed from outside

import asyncio
import os
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from docker.errors import APIError

from sandboxes import owner
from sandboxes.backends.docker import daemon
from sandboxes.backends.docker.container import NOT_YET, OWNER, Container
from sandboxes.backends.docker.orphans import orphans, remove_orphans
from sandboxes.backends.docker.sandbox import DockerSandbox
from sandboxes.images.registry import Registry
from sandboxes.interface import SandboxFrozen, SandboxLost, SandboxUnavailable
from sandboxes.opened import open_sandbox, opened
from sandboxes.pool import Pool
from sandboxes.spec import SandboxSpec
from tests.sandboxes.asking import cell_output, errno_of, host_processes, printed, python, until_running

ROOT = Path(__file__).parents[3]
NOT_STILL = APIError(f"Cannot pause container 1: OCI runtime pause failed: {NOT_YET}: unknown")


@pytest.fixture
def spec(docker_image) -> SandboxSpec:
    return SandboxSpec(backend="docker", image=docker_image, timeout_s=10)


@pytest.fixture
async def sandbox(spec):
    async with opened(spec) as sandbox:
        yield sandbox


def containers() -> list[dict]:
    return daemon.client().containers(all=True, filters={"label": OWNER})


def container_of(sandbox: DockerSandbox) -> dict:
    return daemon.client().inspect_container(sandbox._process.name)


async def test_a_container_whose_runtime_died_early_is_started_again(spec, monkeypatch, caplog):
    start, refused = Container._start.__func__, []

    async def first_refused(cls, *given):
        if not refused:
            refused.append("cannot start a stopped process: unknown")
            raise SandboxUnavailable(refused[0])
        return await start(cls, *given)

    monkeypatch.setattr(Container, "_start", classmethod(first_refused))
    async with opened(spec) as sandbox:
        assert await cell_output(sandbox, "print(6 * 7)") == "42"
    assert "started again: cannot start a stopped process" in caplog.text


async def test_no_other_refusal_is_tried_again(spec, monkeypatch):
    refused = []

    async def always_refused(cls, *given):
        refused.append(given)
        raise SandboxUnavailable("no space left on device")

    monkeypatch.setattr(Container, "_start", classmethod(always_refused))
    with pytest.raises(SandboxUnavailable, match="no space"):
        await open_sandbox(spec)
    assert len(refused) == 1


# -- what a container is given ---------------------------------------------------------------------


async def test_the_daemon_is_told_to_give_it_nothing(sandbox):
    found = container_of(sandbox)
    host = found["HostConfig"]
    assert host["NetworkMode"] == "none"
    assert host["ReadonlyRootfs"]
    assert host["CapDrop"] == ["ALL"]
    assert not host["CapAdd"]
    assert not host["Privileged"]
    assert host["IpcMode"] == "private"
    assert (host["PidMode"], host["UTSMode"], host["UsernsMode"]) == ("", "", "")
    assert host["SecurityOpt"][0] == "no-new-privileges:true"
    assert host["SecurityOpt"][1].startswith("seccomp={")
    assert not host["Binds"]
    assert not host["Devices"]
    assert found["Mounts"] == []
    assert host["PidsLimit"] == 17
    assert host["MemorySwap"] == host["Memory"] > 0
    assert host["NanoCpus"] == 10**9
    assert found["Config"]["User"].split(":")[0] not in ("", "0", "1000")


async def test_two_sandboxes_are_two_users_of_the_machine(spec):
    async with opened(spec) as one, opened(spec) as two:
        assert container_of(one)["Config"]["User"] != container_of(two)["Config"]["User"]


async def test_no_socket_of_the_daemon_is_in_the_sandbox(sandbox):
    path = daemon.socket_path()
    assert await errno_of(sandbox, f"socket.socket(socket.AF_UNIX).connect({path!r})") == "ENOENT"
    assert await errno_of(sandbox, "socket.socket(socket.AF_UNIX).connect('/var/run/docker.sock')") == "ENOENT"


@pytest.mark.parametrize(
    ("attempt", "answers"),
    [
        ("open('/proc/sysrq-trigger', 'w')", {"EROFS", "EACCES", "ENOENT"}),
        ("open('/proc/sys/kernel/core_pattern', 'w')", {"EROFS", "EACCES"}),
        ("open('/proc/sys/net/ipv4/ip_forward', 'w')", {"EROFS", "EACCES"}),
        ("open('/proc/kcore', 'rb')", {"EACCES", "ENOENT"}),
        ("os.listdir('/proc/1/root/')", {"EACCES"}),
        ("os.listdir('/proc/1/cwd/')", {"EACCES"}),
        ("open('/proc/1/ns/net')", {"EACCES"}),
        ("os.open('/sys/fs/cgroup/memory/memory.limit_in_bytes', os.O_WRONLY)", {"ENOENT"}),
        ("os.mknod('/tmp/disk', 0o060600, os.makedev(254, 0))", {"EPERM"}),
        ("os.open('/dev/mqueue/q', os.O_CREAT | os.O_RDWR)", {"EROFS", "EACCES"}),
        ("os.open('/dev/ptmx', os.O_RDWR)", {"ENOENT", "EACCES"}),
        ("os.unlink('/etc/resolv.conf')", {"EROFS", "EACCES", "EBUSY"}),
        ("open('/etc/hosts', 'a')", {"EROFS", "EACCES"}),
        ("os.setgroups([0])", {"EPERM"}),
        ("os.chown('/work', 0, 0)", {"EPERM"}),
    ],
)
async def test_a_way_out_of_a_container_is_closed(sandbox, attempt, answers):
    assert await errno_of(sandbox, attempt) in answers


async def test_of_the_machines_devices_nothing_is_shown(sandbox):
    """Whether the empty folder itself may be opened is the runtime's choice: older ones leave it the image's mode."""
    for path in ("/sys", "/dev/mqueue", "/dev/pts"):
        shown = f"import os; print(os.listdir({path!r}) if os.access({path!r}, os.R_OK) else [])"
        assert await cell_output(sandbox, shown) == "[]", path
    assert await errno_of(sandbox, "os.listdir('/sys/fs/cgroup')") in ("ENOENT", "EACCES")


@pytest.mark.parametrize("place", ["/work", "/tmp", "/dev/shm"])
async def test_each_place_that_can_be_written_is_bounded_in_bytes_and_in_names(sandbox, spec, place):
    fill = f"for n in (1, 2):\n  with open(f'{place}/{{n}}', 'wb') as f: f.write(bytes(2**19 * {spec.disk_mib} + 1))"
    assert "No space left" in (await sandbox.run_python(fill)).stderr
    await sandbox.reset()
    names = f"for n in range(1024 * {spec.disk_mib} + 1): open(f'{place}/{{n}}', 'w').close()"
    assert "No space left" in (await sandbox.run_python(names)).stderr


async def test_shared_memory_is_wiped_by_a_reset_and_set_back_by_a_restore(sandbox):
    await sandbox.write_file("/dev/shm/kept", b"then")
    snapshot = await sandbox.snapshot()
    await sandbox.write_file("/dev/shm/kept", b"now")
    await sandbox.restore(snapshot)
    assert await sandbox.read_file("/dev/shm/kept") == b"then"
    assert "/dev/shm/kept" in [file.path for file in (await sandbox.inspect()).files]
    await sandbox.reset()
    assert await cell_output(sandbox, "import os; print(os.listdir('/dev/shm'))") == "[]"


async def test_all_processes_together_get_no_more_memory_than_the_container_has(sandbox):
    """Each stays below its own limit."""
    ended = await cell_output(
        sandbox,
        """
        import os, signal
        def hog():
            taken = bytearray(90 * 2**20)
            for at in range(0, len(taken), 4096):
                taken[at] = 1
            signal.pause()
        children = []
        for _ in range(8):
            pid = os.fork()
            if not pid:
                hog()
            children.append(pid)
        pid, status = os.waitpid(-1, 0)
        print(os.waitstatus_to_exitcode(status))
        for child in set(children) - {pid}:
            os.kill(child, signal.SIGTERM)
        """,
    )
    assert ended == "-9"
    assert sandbox.alive


# -- how it ends -----------------------------------------------------------------------------------


async def test_closing_leaves_no_container_and_no_process(sandbox):
    seconds = f"{os.getpid()}432.10"
    await sandbox.exec(["/bin/sh", "-c", f"setsid sleep {seconds} & setsid sleep {seconds} &"])
    await until_running(seconds, 2)
    await sandbox.close()
    assert host_processes(seconds.encode()) == []
    assert containers() == []


async def test_a_frozen_sandbox_is_closed_like_any_other(sandbox):
    seconds = f"{os.getpid()}321.09"
    await sandbox.exec(["/bin/sh", "-c", f"setsid sleep {seconds} &"])
    await until_running(seconds)
    await sandbox.freeze("to be looked at")
    assert container_of(sandbox)["State"]["Paused"]
    await sandbox.close()
    assert host_processes(seconds.encode()) == []
    assert containers() == []


async def test_a_freeze_that_the_runtime_gives_up_is_asked_for_again(sandbox, monkeypatch):
    pause, refusals = sandbox._process.client.pause, [NOT_STILL, NOT_STILL]

    def hesitant(name):
        if refusals:
            raise refusals.pop()
        pause(name)

    monkeypatch.setattr(sandbox._process.client, "pause", hesitant)
    await sandbox.freeze("to be looked at")
    assert (refusals, container_of(sandbox)["State"]["Paused"]) == ([], True)


@pytest.mark.parametrize("refusal", [NOT_STILL, APIError("no space left on device")])
async def test_a_sandbox_that_cannot_be_frozen_is_killed(sandbox, refusal, monkeypatch):
    seconds = f"{os.getpid()}210.98"
    monkeypatch.setattr("sandboxes.backends.docker.container.FREEZE_S", 0.1)
    await sandbox.exec(["/bin/sh", "-c", f"setsid sleep {seconds} &"])
    await until_running(seconds)
    monkeypatch.setattr(sandbox._process.client, "pause", Mock(side_effect=refusal))
    await sandbox.freeze("it mines")
    assert (host_processes(seconds.encode()), containers()) == ([], [])
    with pytest.raises(SandboxFrozen, match="it mines"):
        await sandbox.run_python("1")
    await sandbox.close()


async def test_a_container_that_was_killed_is_a_lost_sandbox(sandbox):
    running = asyncio.create_task(sandbox.run_python("while True: pass"))
    await asyncio.sleep(0.2)
    daemon.client().kill(sandbox._process.name)
    async with asyncio.timeout(60):
        with pytest.raises(SandboxLost):
            await running


async def test_a_container_that_somebody_removed_is_closed_without_complaint(sandbox):
    daemon.client().remove_container(sandbox._process.name, force=True)
    await sandbox.close()


async def test_a_start_that_is_cancelled_leaves_no_container(spec):
    cancelled = 0
    for wait_s in (0.02, 0.1, 0.2):
        starting = asyncio.create_task(open_sandbox(spec))
        await asyncio.sleep(wait_s)
        starting.cancel()
        try:
            sandbox = await starting
        except asyncio.CancelledError:
            cancelled += 1
        else:  # on a busy machine it may be there before it is cancelled
            await sandbox.close()
    assert cancelled
    assert containers() == []


OWNER_PROGRAM = """
import asyncio, sys
from sandboxes.opened import open_sandbox
from sandboxes.spec import SandboxSpec
async def main():
    sandbox = await open_sandbox(SandboxSpec(backend="docker", image="host"))
    if sys.argv[1] == "frozen":
        await sandbox.freeze("for good")
    print(sandbox._process.name, flush=True)
    await asyncio.sleep(600)
asyncio.run(main())
"""


@pytest.mark.parametrize("state", ["running", "frozen"])
async def test_what_a_killed_owner_leaves_is_removed_and_what_a_living_one_has_is_not(sandbox, state):
    command = [sys.executable, "-c", OWNER_PROGRAM, state]
    killed = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)}
    )
    try:
        name = await asyncio.to_thread(killed.stdout.readline)
    finally:
        killed.kill()
        killed.wait()
        killed.stdout.close()
    name = name.strip()
    try:
        assert name in [container["Names"][0].removeprefix("/") for container in containers()]
        assert orphans() == [name]
        assert remove_orphans() == [name]
        assert orphans() == []
    finally:
        remove_orphans()
    assert (await sandbox.run_python("'alive'")).stdout == "'alive'\n"


@pytest.fixture
def marked(spec):
    """Makes a running container with that mark; all are removed in the end."""
    client, digest = daemon.client(), Registry().resolve(spec.image).digest
    made = []

    def run(mark: str) -> str:
        limits = client.create_host_config(network_mode="none")
        labels = {OWNER: mark}
        made.append(
            client.create_container(digest, ["/bin/sh", "-c", "sleep 100"], labels=labels, host_config=limits)["Id"]
        )
        client.start(made[-1])
        return client.inspect_container(made[-1])["Name"].removeprefix("/")

    yield run
    for container in made:
        client.remove_container(container, force=True)


def test_a_container_whose_owner_nobody_can_tell_is_left_alone(marked):
    marked("?")
    marked(owner.mark().rpartition(":")[0] + ":1")  # of another pid namespace
    assert orphans() == []


def test_a_container_of_an_earlier_boot_is_an_orphan_once_it_does_not_run(marked):
    pid, ticks, _, namespace = owner.mark().split(":")
    name = marked(f"{pid}:{ticks}:00000000-0000-0000-0000-000000000000:{namespace}")
    assert orphans() == []
    daemon.client().kill(name)
    daemon.client().wait(name)
    assert orphans() == [name]


# -- what is missing -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("address", "cell_output"),
    [
        ("unix:///nowhere/docker.sock", "no Docker daemon answers at unix:///nowhere/docker.sock.*namespaces"),
        ("tcp://192.0.2.1:2375", "on this machine only"),
    ],
)
async def test_without_a_daemon_the_remedy_is_reported(spec, monkeypatch, address, cell_output):
    monkeypatch.setenv("DOCKER_HOST", address)
    with pytest.raises(SandboxUnavailable, match=cell_output):
        await open_sandbox(spec)


@pytest.mark.parametrize(
    ("info", "lacking"),
    [({"MemoryLimit": False}, "memory"), ({"PidsLimit": False}, "pids"), ({"CpuCfsQuota": False}, "cpu"),
     ({"SecurityOptions": ["name=apparmor"]}, "seccomp")],
)  # fmt: skip
def test_a_daemon_that_cannot_bound_a_sandbox_makes_none(info, lacking):
    able = {"MemoryLimit": True, "PidsLimit": True, "CpuCfsQuota": True, "SecurityOptions": ["name=seccomp,profile=x"]}
    client = SimpleNamespace(info=lambda: able | info)
    with pytest.raises(SandboxUnavailable, match=lacking):
        daemon.capabilities(client)
    assert daemon.capabilities(SimpleNamespace(info=lambda: able))
    able["SecurityOptions"].append("name=rootless")
    assert not daemon.capabilities(SimpleNamespace(info=lambda: able))


async def test_an_image_that_nobody_registered_makes_no_sandbox(docker_image):
    with pytest.raises(SandboxUnavailable, match="image = 'unknown'.*no such image is registered.*images"):
        await open_sandbox(SandboxSpec(backend="docker", image="unknown"))


async def test_a_registered_image_that_the_daemon_does_not_have_makes_no_sandbox(spec):
    registry = Registry()
    known = registry.resolve(spec.image)
    lost = registry.add(known.model_copy(update={"name": "lost", "digest": "sha256:" + "0" * 64}))
    try:
        with pytest.raises(SandboxUnavailable, match="does not have sha256:000.*import it again"):
            await open_sandbox(SandboxSpec(backend="docker", image="lost"))
    finally:
        registry.remove(lost)
    assert containers() == []


async def test_an_image_whose_python_does_not_run_the_agent_makes_no_sandbox(spec):
    registry = Registry()
    known = registry.resolve(spec.image)
    broken = registry.add(known.model_copy(update={"name": "broken", "python": "/usr/bin/false"}))
    try:
        with pytest.raises(SandboxUnavailable, match="image broken runs no agent"):
            await open_sandbox(SandboxSpec(backend="docker", image="broken"))
    finally:
        registry.remove(broken)
    assert containers() == []


async def test_the_image_of_a_digest_is_the_same_image(spec):
    digest = Registry().resolve(spec.image).digest
    async with opened(spec.model_copy(update={"image": digest})) as sandbox:
        assert container_of(sandbox)["Image"] == digest


# -- as a backend ----------------------------------------------------------------------------------


async def test_a_pool_of_containers_serves_users_in_turn(spec):
    async with Pool(spec, 2) as pool:
        for _ in range(3):
            async with pool.acquire() as sandbox:
                assert (await python(sandbox, "x = 1\nprint('x' in globals())")).stdout == "True\n"
        assert pool.stats().served == 3
    assert containers() == []


async def test_the_agent_is_the_one_of_namespaces_and_keeps_the_protocol_over_a_stream_cut_anywhere(sandbox):
    received = sandbox._link.data_received
    sandbox._link.data_received = lambda data: [received(data[at : at + 1]) for at in range(len(data))]
    assert (await sandbox.run_python("'a' * 20")).stdout == repr("a" * 20) + "\n"


async def test_a_program_in_the_image_that_writes_to_the_agents_stderr_breaks_nothing(sandbox):
    sandbox._link.data_received(b"\2\0\0\0\0\0\0\5hello")
    assert sandbox._link.complaint == b"hello"
    assert (await sandbox.run_python("1")).stdout == "1\n"


async def test_only_the_shell_the_python_and_the_image_are_there(sandbox):
    assert await printed(sandbox, "test -e /usr/bin/bwrap && echo of the host || echo none") == "none\n"
    assert socket.gethostname() not in await printed(sandbox, "cat /etc/hostname /etc/hosts")
