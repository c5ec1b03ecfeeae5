"""What every backend promises of the walls between a sandbox and everything else."""

import asyncio
import os
import socket
import time

import pytest

from sandboxes.backends.namespaces.limits import HOST_IDS_FROM
from sandboxes.opened import opened
from tests.sandboxes.asking import cell_output, errno_of, python, shell


async def test_sandboxes_do_not_see_each_other(spec):
    async with opened(spec) as one, opened(spec) as two:
        await shell(one, "echo mine > /tmp/f; echo mine > /work/f; sleep 60 &")
        assert (await shell(two, "ls /tmp /work")).stdout == "/tmp:\n\n/work:\n"
        assert "sleep" not in (await shell(two, "cat /proc/[0-9]*/comm")).stdout


async def test_proc_does_not_show_the_host(sandbox):
    numbers = (await sandbox.run_python("import os; [int(p) for p in os.listdir('/proc') if p.isdigit()]")).stdout
    assert max(eval(numbers)) < 100
    assert (await shell(sandbox, "cat /proc/1/environ")).stdout == ""


async def test_the_file_system_is_read_only_but_for_work_and_tmp(sandbox):
    for path in ("/x", "/usr/x", "/etc/x", "/dev/x", "/usr/bin/x"):
        assert await errno_of(sandbox, f"open({path!r}, 'w')") in ("EROFS", "EACCES", "EPERM"), path
    for path in ("/work/x", "/tmp/x", "/dev/shm/x"):
        assert await errno_of(sandbox, f"open({path!r}, 'w')") == "none"


async def test_nothing_of_the_hosts_etc_root_home_or_sys_is_there(sandbox, spec):
    listing = (await shell(sandbox, "ls -A / /etc /dev; ls /root /home /sys /var 2>/dev/null")).stdout.split()
    forbidden = {"root", "home", "sys", "var", "run", "shadow", "hostname", "kvm", "ptmx"}
    if spec.network == "none":
        forbidden |= {"hosts", "resolv.conf"}  # a watched sandbox has its own
    if spec.backend == "docker":
        forbidden -= {"sys", "hostname", "hosts", "resolv.conf", "ptmx"}  # Docker's own; its /sys is empty
    assert not forbidden & set(listing)


async def test_no_capability_no_root_no_new_privileges(sandbox, spec):
    status = (await shell(sandbox, "cat /proc/self/status")).stdout
    fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    assert {fields[f"Cap{kind}"] for kind in ("Inh", "Prm", "Eff", "Bnd", "Amb")} == {"0" * 16}
    assert (fields["NoNewPrivs"], fields["Seccomp"]) == ("1", "2")
    user = fields["Uid"].split()[0]
    assert fields["Uid"].split() == [user] * 4
    assert user == "1000" if spec.backend == "namespaces" else int(user) >= HOST_IDS_FROM
    assert await errno_of(sandbox, "os.setuid(0)") in ("EPERM", "EINVAL")


async def test_no_descriptor_of_the_host_or_the_agent_is_open(sandbox):
    secret = os.open("/etc/hostname", os.O_RDONLY)
    os.set_inheritable(secret, True)
    try:
        open_in_cell = (
            await sandbox.run_python("import os; sorted(int(n) for n in os.listdir('/proc/self/fd'))")
        ).stdout
        open_in_program = (await shell(sandbox, "ls /proc/self/fd")).stdout.split()
    finally:
        os.close(secret)
    assert open_in_cell == "[0, 1, 2, 3, 4, 5]\n"  # 3 and 4 are the cell's own pipes, 5 the listing
    assert open_in_program == ["0", "1", "2", "3"]


async def test_nobody_answers_out_there_or_on_the_hosts_loopback(sandbox):
    greeted = []

    async def greet(reader, writer):
        greeted.append(writer)
        writer.write(b"the host")
        writer.close()

    server = await asyncio.start_server(greet, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    heard = await cell_output(
        sandbox,
        f"""
        import socket
        def heard(address, port):
            try:
                with socket.create_connection((address, port), timeout=3) as made:
                    return made.recv(100)
            except OSError:
                return b""
        heard("127.0.0.1", {port}) + heard("192.0.2.1", 80) + heard("2001:db8::1", 80)
        """,
    )
    server.close()
    assert (heard, greeted) == ("b''", [])
    assert (await shell(sandbox, "cat /proc/net/dev")).stdout.count(":") == 1, "only its own loopback"


async def test_the_hosts_abstract_sockets_are_out_of_reach(sandbox):
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(f"\0palestra-{os.getpid()}")
        server.listen()
        call = f"socket.socket(socket.AF_UNIX).connect(chr(0) + 'palestra-{os.getpid()}')"
        assert await errno_of(sandbox, call) == "ECONNREFUSED"


@pytest.mark.parametrize("family", ["AF_VSOCK", "AF_PACKET", "AF_NETLINK", "AF_ALG", "AF_BLUETOOTH"])
async def test_a_socket_family_with_no_business_here_does_not_exist(sandbox, family):
    answer = await errno_of(sandbox, f"socket.socket(socket.{family}, socket.SOCK_DGRAM)")
    assert answer in ("EAFNOSUPPORT", "EPERM")


@pytest.mark.parametrize(
    ("attempt", "answer"),
    [
        ("call('unshare', 0x10000000)", "EPERM"),
        ("call('unshare', 0x00020000)", "EPERM"),
        ("call('setns', 0, 0)", "EPERM"),
        ("call('mount', b'none', b'/tmp', b'tmpfs', 0, 0)", "EPERM"),
        ("call('umount2', b'/usr', 2)", "EPERM"),
        ("call('chroot', b'/tmp')", "EPERM"),
        ("call('ptrace', 16, 1, 0, 0)", "EPERM"),
        ("call('syscall', 56, 0x10000011, 0, 0, 0, 0)", "EPERM"),  # clone(CLONE_NEWUSER)
        ("call('syscall', 435, 0, 0)", "ENOSYS"),  # clone3
        ("call('syscall', 425, 8, 0)", "ENOSYS"),  # io_uring_setup
        ("call('syscall', 321, 0, 0, 0)", "EPERM"),  # bpf
        ("call('syscall', 323, 0)", "EPERM"),  # userfaultfd
        ("call('syscall', 298, 0, 0, -1, -1, 0)", "EPERM"),  # perf_event_open
        ("call('syscall', 250, 0, -3, 1)", "EPERM"),  # keyctl
        ("call('syscall', 310, 1, 0, 0, 0, 0, 0)", "EPERM"),  # process_vm_readv
        ("call('syscall', 319, b'm', 0)", "ENOSYS"),  # memfd_create
        ("call('syscall', 29, 0, 4096, 0o1600)", "ENOSYS"),  # shmget
        ("call('syscall', 206, 1, ctypes.byref(ctypes.c_ulong(0)))", "ENOSYS"),  # io_setup
        ("os.sched_setaffinity(1, {0})", "EPERM"),
        ("os.setpriority(os.PRIO_PROCESS, 1, 19)", "EPERM"),
        ("os.setpriority(os.PRIO_USER, 0, 19)", "EPERM"),
        ("os.setpriority(os.PRIO_PGRP, 0, 19)", "EPERM"),
        ("call('syscall', 251, 3, 1000, 3 << 13)", "EPERM"),  # ioprio_set
        ("import resource; resource.prlimit(1, resource.RLIMIT_NOFILE, (3, 3))", "EPERM"),
        ("open('/proc/1/mem', 'rb')", "EACCES"),
        ("os.listdir('/proc/1/fd')", "EACCES"),
        ("os.readlink('/proc/1/root')", "EACCES"),
        ("import fcntl; fcntl.ioctl(0, 0x5412, b'x')", "EPERM"),  # TIOCSTI
    ],
)
async def test_a_way_out_is_closed(sandbox, attempt, answer):
    assert await errno_of(sandbox, attempt) == answer


async def test_calls_with_foreign_numbers_kill_their_caller(sandbox):
    result = await sandbox.run_python("import ctypes; ctypes.CDLL(None).syscall(0x40000000 + 39)")  # x32 getpid
    assert (result.outcome, result.exit_code) == ("killed", -31)


async def test_set_user_id_programs_give_nothing(sandbox):
    assert (await shell(sandbox, "su -c id || mount -t tmpfs x /tmp")).outcome == "error"


async def test_guests_can_signal_neither_the_agent_nor_the_host(sandbox):
    result = await python(
        sandbox,
        """
        import os, signal
        for number in (signal.SIGKILL, signal.SIGSTOP, signal.SIGINT, signal.SIGTERM, signal.SIGCHLD):
            os.kill(os.getppid(), number)
        os.getppid()
        """,
    )
    assert (result.outcome, result.stdout) == ("ok", "1\n")
    assert (await shell(sandbox, "kill -9 -1; sleep 0.1; echo still here")).stdout == "still here\n"
    assert (await sandbox.run_python("1")).stdout == "1\n"


async def test_the_host_name_tells_nothing_of_the_host(sandbox):
    assert (await sandbox.run_python("import os; os.uname().nodename")).stdout == "'sandbox'\n"


async def test_the_clock_runs_and_cannot_be_set(sandbox):
    before = time.time()
    seen = float((await sandbox.run_python("import time; time.time()")).stdout)
    assert before - 1 < seen < time.time() + 1
    assert await errno_of(sandbox, "import time; time.clock_settime(time.CLOCK_REALTIME, 0)") == "EPERM"
