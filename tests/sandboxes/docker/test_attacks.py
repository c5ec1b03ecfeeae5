"""The attackers of tests/sandboxes/attacks in containers, and those that only a container has something for.

One container stages many of them: making one takes as long as most attacks.
"""

import pytest

from sandboxes.backends.docker import sockets
from sandboxes.backends.docker.sockets import SOCKETS_MIB, bound_sockets
from sandboxes.opened import opened
from sandboxes.spec import SandboxSpec
from tests.sandboxes.asking import cell_output, errno_of, shell
from tests.sandboxes.attacks import test_escapes as escapes
from tests.sandboxes.attacks import test_resources as resources
from tests.sandboxes.attacks import test_tampering as tampering
from tests.sandboxes.attacks.conftest import Arena

ESCAPES = [
    escapes.test_an_attack_that_works_would_be_noticed,
    escapes.test_no_mount_is_made_moved_or_undone,
    escapes.test_no_namespace_is_made_or_entered,
    escapes.test_no_other_process_is_traced_or_read,
    escapes.test_proc_and_sys_cannot_be_written,
    escapes.test_calls_with_a_record_of_escapes_are_closed,
    escapes.test_no_socket_leads_past_the_network_namespace,
    escapes.test_a_snapshot_of_changing_links_keeps_nothing_from_elsewhere,
    tampering.test_hidden_tests_are_not_edited_by_what_was_left_behind,
    tampering.test_what_waits_for_hidden_tests_does_not_survive_a_restore,
    tampering.test_a_prelude_is_run_again_as_the_host_wrote_it,
    tampering.test_nobody_speaks_to_the_host_but_the_agent,
]


@pytest.fixture
def spec(docker_image) -> SandboxSpec:
    return SandboxSpec(backend="docker", image=docker_image, timeout_s=20)


@pytest.fixture
async def sandbox(spec):
    async with opened(spec) as sandbox:
        yield sandbox


@pytest.mark.slow
async def test_programs_that_try_to_leave_stay_in_their_container(sandbox):
    for attack in ESCAPES:
        try:
            await attack(Arena(sandbox))
        except BaseException as error:
            error.add_note(f"the attack: {attack.__name__}")
            raise
        await sandbox.reset()


@pytest.mark.parametrize("signal_name", ["SIGKILL", "SIGSTOP", "SIGCHLD"])
async def test_the_agent_of_a_container_takes_no_signal_of_a_guest(sandbox, signal_name):
    await escapes.test_the_agent_takes_no_signal_of_a_guest(Arena(sandbox), signal_name)


@pytest.mark.slow
@pytest.mark.parametrize("program", [resources.BOMB, resources.EACH_LEAVES_TWO])
async def test_a_bomb_goes_off_in_its_container_only(spec, program):
    async with opened(spec) as sandbox, opened(spec) as neighbour:
        result = await Arena(sandbox).attack(program, timeout_s=1)
        assert result.outcome in ("timeout", "output", "killed"), result
        assert (await neighbour.run_python("2 + 2")).stdout == "4\n"
        await sandbox.reset()
        assert (await sandbox.run_python("'alive'")).stdout == "'alive'\n"


async def test_no_descriptor_of_the_host_is_in_a_container(sandbox):
    result = await Arena(sandbox).attack("""
        for name in sorted(os.listdir("/proc/self/fd"), key=int):
            try: print(os.readlink("/proc/self/fd/" + name))
            except OSError: pass
    """)
    assert len(result.stdout.splitlines()) == 3, result
    assert all(target.startswith(("pipe:", "/dev/null")) for target in result.stdout.split()), result


# -- what is particular to containers --------------------------------------------------------------


async def test_shared_memory_is_no_second_disk(sandbox):
    fill = """
        import errno, os
        written = 0
        try:
            with open("/dev/shm/more", "wb", buffering=0) as file:
                while True: written += file.write(bytes(2**16))
        except OSError as error:
            print(written, errno.errorcode[error.errno])
        os.remove("/dev/shm/more")
        names = 0
        try:
            while True: open(f"/dev/shm/{names}", "w").close(); names += 1
        except OSError: print(names <= 1024)
    """
    assert await cell_output(sandbox, fill) == f"{2**20} ENOSPC\nTrue"
    run = "cp /bin/true /tmp/t && /tmp/t && rm -f /dev/shm/*; cp /bin/true /dev/shm/t && /dev/shm/t"
    assert (await shell(sandbox, run)).exit_code == 126, "nothing is executed there"
    await sandbox.reset()
    assert await cell_output(sandbox, "import multiprocessing; print(multiprocessing.Semaphore(2).acquire())") == "True"


async def test_of_the_machine_neither_its_devices_nor_its_timers_are_read(sandbox):
    for path in ("/proc/timer_list", "/proc/kcore", "/proc/sysrq-trigger"):
        assert await errno_of(sandbox, f"open({path!r}, 'rb').read(1)") in ("EACCES", "ENOENT"), path
    for path in ("/sys/class", "/sys/firmware/dmi", "/sys/kernel/mm", "/sys/devices/system/cpu/online"):
        assert await errno_of(sandbox, f"os.stat({path!r})") in ("EACCES", "ENOENT"), path
    for path in ("/proc/keys", "/proc/interrupts", "/proc/acpi"):
        read = f"import os; print(os.listdir({path!r}) if os.path.isdir({path!r}) else open({path!r}).read(100))"
        assert await cell_output(sandbox, read) in ("", "[]"), path


async def test_a_set_user_id_program_of_an_image_gives_nothing(sandbox):
    """The bit stays in the image; no-new-privileges makes the kernel ignore it, whatever the program."""
    found = (await shell(sandbox, "find / -xdev -perm -4000 -user 0")).stdout.split()
    assert "/usr/bin/sleep-as-root" in found, "or this proves nothing"
    reported = await cell_output(
        sandbox,
        """
        import os, subprocess, time
        asleep = subprocess.Popen(["/usr/bin/sleep-as-root", "60"])
        def status(): return dict(line.split(":", 1) for line in open(f"/proc/{asleep.pid}/status"))
        while "sleep" not in status()["Name"]: time.sleep(0.01)
        found = status()
        print(set(found["Uid"].split()) == set(found["Gid"].split()) == {str(os.getuid())}, os.getuid() != 0)
        print(found["NoNewPrivs"].strip(), {int(found[name], 16) for name in ("CapPrm", "CapEff", "CapBnd", "CapAmb")})
        asleep.kill()
        """,
    )
    assert reported == "True True\n1 {0}"
    mounts = await cell_output(sandbox, "print([line.split()[1:4] for line in open('/proc/mounts')])")
    options = {place: flags.split(",") for place, _, flags in eval(mounts)}
    assert all("nosuid" in options[place] for place in ("/work", "/tmp", "/dev/shm", "/proc", "/dev"))
    assert "ro" in options["/"]
    assert await errno_of(sandbox, "os.chown('/work', 0, 0)") == "EPERM"


async def test_buffers_of_connections_are_bounded_beside_the_memory(sandbox):
    """Each process may open 256 files, each connection wants 8 MiB: what nobody reads is held by the kernel."""
    held = await cell_output(
        sandbox,
        """
        import socket
        server = socket.create_server(("127.0.0.1", 0), backlog=100)
        held, kept = 0, []
        for _ in range(40):
            try:
                ours = socket.socket()
                ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2**23)
                ours.settimeout(0.2)
                ours.connect(server.getsockname())
                theirs, _ = server.accept()
                theirs.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2**23)
                kept.append((ours, theirs))
                ours.setblocking(False)
                while True: held += ours.send(bytes(2**16))
            except BlockingIOError: continue
            except OSError: break
        print(held // 2**20)
        """,
    )
    assert int(held) <= 2 * SOCKETS_MIB
    assert (await sandbox.run_python("6 * 7")).stdout == "42\n"


def test_where_nothing_bounds_the_buffers_it_is_reported(caplog):
    sockets._warn.cache_clear()
    assert not bound_sockets(0)
    assert "TCP buffers of containers are outside of their memory limit" in caplog.text
