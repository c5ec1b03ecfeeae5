"""Programs that try to leave their sandbox, or to look out of it."""

# ruff: noqa: E501  programs of attackers have long lines

import asyncio
import os
from contextlib import suppress

import pytest

from sandboxes.interface import SnapshotUnavailable


async def test_an_attack_that_works_would_be_noticed(arena):
    result = await arena.attack('report({"writes": lambda: write("/work/f", "x"), "fails": lambda: read("/no")})')
    assert result.stdout == "worked: ['writes']\n"


async def test_no_mount_is_made_moved_or_undone(arena):
    result = await arena.attack(r"""
        report({
            "tmpfs": lambda: call("mount", b"none", b"/tmp", b"tmpfs", 0, 0),
            "bind": lambda: call("mount", b"/usr", b"/tmp", 0, 4096, 0),
            "remount": lambda: call("mount", b"none", b"/usr", 0, 32 | 4096, 0),
            "proc": lambda: call("mount", b"proc", b"/tmp", b"proc", 0, 0),
            "umount": lambda: call("umount2", b"/proc", 2),
            "umount root": lambda: call("umount2", b"/", 2),
            "pivot_root": lambda: system((155, 41), b"/tmp", b"/tmp"),
            "chroot": lambda: call("chroot", b"/tmp"),
            "open_tree": lambda: system(428, -100, b"/usr", 1),
            "fsopen": lambda: system(430, b"tmpfs", 0),
            "fspick": lambda: system(433, -100, b"/usr", 0),
            "mount_setattr": lambda: system(442, -100, b"/usr", 0, 0, 0),
            "handle": lambda: system((303, 264), -100, b"/usr", 0, 0, 0),
            "open by handle": lambda: system((304, 265), 3, 0, 0),
            "usr": lambda: write("/usr/bin/python3", "x"),
            "device": lambda: os.mknod("/work/sda", 0o60666, os.makedev(8, 0)),
            "character device": lambda: os.mknod("/tmp/kmem", 0o20666, os.makedev(1, 2)),
        })
    """)
    assert result.stdout == "worked: []\n", result


async def test_no_namespace_is_made_or_entered(arena):
    result = await arena.attack(r"""
        tried = {f"unshare {flag:#x}": lambda flag=flag: call("unshare", flag)
                 for flag in (0x10000000, 0x00020000, 0x40000000, 0x20000000, 0x04000000, 0x08000000, 0x02000000)}
        tried |= {f"clone {flag:#x}": lambda flag=flag: system((56, 220), flag | 17, 0, 0, 0, 0)
                  for flag in (0x10000000, 0x50000000, 0x20000000)}
        for whose in ("self", "1", str(os.getppid())):
            for kind in ("user", "net", "mnt", "pid", "ipc", "uts", "cgroup"):
                tried[f"setns {whose} {kind}"] = lambda whose=whose, kind=kind: call("setns", os.open(f"/proc/{whose}/ns/{kind}", os.O_RDONLY), 0)
        tried["clone3"] = lambda: system(435, ctypes.create_string_buffer(88), 88)
        tried["setns by pidfd"] = lambda: call("setns", os.pidfd_open(os.getpid()), 0x40000000)
        report(tried)
    """)
    assert result.stdout == "worked: []\n", result


async def test_no_other_process_is_traced_or_read(arena):
    """The agent, the interpreter of the user, a sibling: all have the same user id."""
    await arena.sandbox.run_python("secret = 'of the interpreter'")
    result = await arena.attack(r"""
        child = subprocess.Popen(["/bin/sleep", "60"])
        others = sorted({int(name) for name in os.listdir("/proc") if name.isdigit()} - {os.getpid()})
        tried = {}
        for pid in others:
            tried[f"attach {pid}"] = lambda pid=pid: call("ptrace", 16, pid, 0, 0)
            tried[f"seize {pid}"] = lambda pid=pid: call("ptrace", 0x4206, pid, 0, 0)
            tried[f"vm_readv {pid}"] = lambda pid=pid: system((310, 270), pid, 0, 0, 0, 0, 0)
            tried[f"vm_writev {pid}"] = lambda pid=pid: system((311, 271), pid, 0, 0, 0, 0, 0)
            tried[f"getfd {pid}"] = lambda pid=pid: system(438, os.pidfd_open(pid), 0, 0)
            tried[f"kcmp {pid}"] = lambda pid=pid: system((312, 272), os.getpid(), pid, 0, 0, 0)
        tried["traceme"] = lambda: call("ptrace", 0, 0, 0, 0)
        for name in ("mem", "environ", "maps", "auxv", "stack", "syscall", "fd/0", "root/etc/passwd", "cwd/x", "exe", "map_files"):
            tried["agent's " + name] = lambda name=name: read(f"/proc/1/{name}") and None
        report({name: action for name, action in tried.items()})
        child.kill()
    """)
    # What an empty read gives is nothing of the agent's.
    assert [word for word in eval(result.stdout.removeprefix("worked: ")) if word != "agent's environ"] == [], result


async def test_proc_and_sys_cannot_be_written(arena):
    result = await arena.attack(r"""
        def shown(path):
            if not os.listdir(path): raise OSError("an empty folder tells nothing")
        tried = {path: lambda path=path, text=text: write(path, text) for path, text in {
            "/proc/sys/kernel/core_pattern": "|/work/x", "/proc/sys/kernel/modprobe": "/work/x", "/proc/sys/vm/drop_caches": "3",
            "/proc/sys/kernel/hostname": "x", "/proc/sys/fs/binfmt_misc/register": ":x:M::x::/work/x:", "/proc/sysrq-trigger": "b",
            "/proc/self/uid_map": "0 0 1", "/proc/self/gid_map": "0 0 1", "/proc/self/setgroups": "allow", "/proc/1/oom_score_adj": "1000",
            "/proc/self/oom_score_adj": "-1000", "/proc/irq/default_smp_affinity": "1", "/proc/sys/kernel/ns_last_pid": "1",
            "/proc/sys/net/ipv4/ip_unprivileged_port_start": "0", "/proc/acpi/wakeup": "x", "/proc/mtrr": "x", "/proc/timer_list": "x",
        }.items()}
        tried |= {path: lambda path=path: shown(path) for path in ("/sys", "/sys/fs/cgroup", "/proc/1/task/1/fd", "/root", "/home", "/run", "/var")}
        tried |= {path: lambda path=path: read(path) for path in ("/dev/mem", "/dev/kmsg", "/dev/kvm", "/dev/fuse", "/dev/net/tun", "/dev/ptmx",
                  "/dev/vsock", "/dev/vhost-net", "/dev/tty", "/proc/kcore", "/proc/kmsg", "/etc/shadow", "/etc/ssh", "/proc/1/mem")}
        report(tried)
    """)
    assert result.stdout == "worked: []\n", result


async def test_calls_with_a_record_of_escapes_are_closed(arena):
    result = await arena.attack(r"""
        blank = ctypes.create_string_buffer(256)
        report({
            "add_key": lambda: system((248, 217), b"user", b"k", b"v", 1, -3),
            "request_key": lambda: system((249, 218), b"user", b"k", 0, -3),
            "keyctl": lambda: system((250, 219), 0, -3, 1),
            "io_uring_setup": lambda: system(425, 8, blank),
            "io_uring_enter": lambda: system(426, 3, 1, 0, 0, 0, 0),
            "io_uring_register": lambda: system(427, 3, 0, 0, 0),
            "bpf": lambda: system((321, 280), 0, blank, 48),
            "userfaultfd": lambda: system((323, 282), 0),
            "perf_event_open": lambda: system((298, 241), blank, 0, -1, -1, 0),
            "init_module": lambda: system((175, 105), blank, 1, b""),
            "kexec": lambda: system((246, 104), 0, 0, 0, 0),
            "reboot": lambda: system((169, 142), 0xFEE1DEAD, 672274793, 0x1234567, 0),
            "swapon": lambda: system((167, 224), b"/work/s", 0),
            "quotactl": lambda: system((179, 60), 0, b"/", 0, 0),
            "syslog": lambda: system((103, 116), 3, blank, 256),
            "memfd": lambda: system((319, 279), b"m", 0),
            "memfd_secret": lambda: system(447, 0),
            "shmget": lambda: system((29, 194), 7, 4096, 0o1600),
            "mq_open": lambda: system((240, 180), b"q", 0o102, 0o600, 0),
            "fanotify": lambda: system((300, 262), 0, 0),
            "clock": lambda: time.clock_settime(time.CLOCK_REALTIME, 0),
            "host name": lambda: socket.sethostname("x"),
            "personality": lambda: call("personality", 0x0040000) and None,
        })
    """)
    assert result.stdout == "worked: []\n", result


async def test_no_socket_leads_past_the_network_namespace(arena):
    result = await arena.attack(r"""
        def vsock(cid, port):
            made = socket.socket(40, socket.SOCK_STREAM)
            made.connect((cid, port))
        tried = {f"vsock {cid}": lambda cid=cid: vsock(cid, 22) for cid in (0, 1, 2, 3)}
        tried |= {f"family {family} type {kind}": lambda family=family, kind=kind: socket.socket(family, kind)
                  for family in (16, 17, 21, 26, 30, 31, 38, 39, 40, 41, 42, 44) for kind in (1, 2, 3, 5)}
        tried |= {f"unix {path}": lambda path=path: socket.socket(socket.AF_UNIX).connect(path) for path in
                  ("/run/docker.sock", "/var/run/docker.sock", "/run/dbus/system_bus_socket", "/run/systemd/private", "\0/tmp/.X11-unix/X0")}
        report(tried)
    """)
    assert result.stdout == "worked: []\n", result


async def test_abstract_sockets_do_not_join_two_sandboxes(make_arena):
    one, other = await make_arena(), await make_arena()
    listening = asyncio.create_task(
        one.attack("""
            listener = socket.socket(socket.AF_UNIX); listener.bind("\\0meeting"); listener.listen()
            listener.settimeout(1.5); write("/work/there", "")
            try: print(listener.accept())
            except TimeoutError: print("nobody")
        """)
    )
    while "/work/there" not in [file.path for file in (await one.sandbox.inspect()).files]:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    result = await other.attack("""report({"meeting": lambda: socket.socket(socket.AF_UNIX).connect("\\0meeting")})""")
    assert result.stdout == "worked: []\n"
    assert (await listening).stdout == "nobody\n"


async def test_no_descriptor_of_the_embedder_leaks(make_arena, tmp_path):
    (tmp_path / "secret").write_text("of the host")
    held = [os.open(tmp_path / "secret", os.O_RDONLY), os.open("/", os.O_RDONLY | os.O_DIRECTORY)]
    for fd in held:
        os.set_inheritable(fd, True)
    try:
        arena = await make_arena()
        result = await arena.attack("""
            for name in sorted(os.listdir("/proc/self/fd"), key=int):
                try: print(name, os.readlink("/proc/self/fd/" + name))
                except OSError: pass
        """)
    finally:
        for fd in held:
            os.close(fd)
    targets = [line.split()[1] for line in result.stdout.splitlines()]
    assert len(targets) == 3, result
    assert all(target.startswith(("pipe:", "/dev/null")) for target in targets), targets


FLIPPER = """
import itertools
os.makedirs("/work/real", exist_ok=True); write("/work/real/f", "mine"); write("/work/begun", "")
targets = itertools.cycle(["/usr", "/proc/1", "/proc/self", "/etc", "/dev", "/work/real", "../../../../..", "/work/t"])
end = time.monotonic() + 3
while time.monotonic() < end:
    try: os.symlink(next(targets), "/work/new"); os.rename("/work/new", "/work/t")
    except OSError: pass
    try: os.unlink("/work/t"); os.rename("/work/real", "/work/t"); os.rename("/work/t", "/work/real")
    except OSError: pass
"""


async def test_paths_that_change_while_the_host_uses_them_lead_nowhere(arena):
    """The oldest trick: the path is looked at, exchanged, and used."""
    flipping = asyncio.create_task(arena.attack(FLIPPER))
    read, written = set(), 0
    while not flipping.done():
        for path in ("/work/t/f", "/work/t/environ", "/work/t/passwd", "/work/t/mem", "/work/t/fd/3"):
            try:
                read.add(await arena.sandbox.read_file(path))
            except OSError:
                continue
        try:
            await arena.sandbox.write_file("/work/t/f", b"mine")
            written += 1
        except OSError:
            pass
        files = (await arena.sandbox.inspect()).files
        assert all(file.path.startswith(("/work/", "/tmp/")) for file in files)
        assert not any("/usr" in file.path or "bin" in file.path for file in files)
    assert (await flipping).outcome == "ok"
    passwd = (await arena.sandbox.read_file("/etc/passwd")).decode()
    assert {content.decode() for content in read} <= {"mine", "", passwd}
    assert "root:" not in passwd or "/root" not in passwd


async def test_a_snapshot_of_changing_links_keeps_nothing_from_elsewhere(arena):
    await arena.attack("os.symlink('/usr', '/work/u'); os.symlink('/proc/1', '/work/p'); os.link('/work/u', '/work/v')")
    kept = [await arena.sandbox.snapshot()]
    flipping = asyncio.create_task(arena.attack(FLIPPER))
    while not flipping.done() and len(kept) < 6:
        with suppress(SnapshotUnavailable):
            kept.append(await arena.sandbox.snapshot())
        await asyncio.sleep(0.1)
    assert (await flipping).outcome == "ok"
    for snapshot in kept:
        await arena.sandbox.restore(snapshot)
        found = await arena.sandbox.exec(["/bin/sh", "-c", "find /work /tmp -type f | xargs -r ls -s | sort | uniq"])
        names = {line.split()[1] for line in found.stdout.splitlines() if len(line.split()) == 2}
        assert all(name.startswith(("/work/", "/tmp/")) for name in names)
        assert not any("bin" in name or "environ" in name for name in names)


@pytest.mark.parametrize("signal_name", ["SIGKILL", "SIGSTOP", "SIGTERM", "SIGSEGV", "SIGCHLD", "SIGUSR1", "SIGCONT"])
async def test_the_agent_takes_no_signal_of_a_guest(arena, signal_name):
    result = await arena.attack(f"""
        for _ in range(50):
            os.kill(1, signal.{signal_name})
            try: signal.pidfd_send_signal(os.pidfd_open(1), signal.{signal_name})
            except OSError: pass
        print("sent")
    """)
    assert result.stdout == "sent\n"
    assert (await arena.sandbox.run_python("'alive'")).stdout == "'alive'\n"
