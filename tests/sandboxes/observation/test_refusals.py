"""Calls that are refused are told, and stay refused whoever asks and however often."""

from sandboxes.backends.namespaces.syscalls import this_machine

NUMBERS = this_machine().numbers
REFUSED = f"""
    import ctypes, os
    libc = ctypes.CDLL(None, use_errno=True)
    def call(name, *arguments):
        ctypes.set_errno(0)
        print(name, getattr(libc, name)(*arguments), ctypes.get_errno())
    call("unshare", 0x10000000)
    call("mount", b"none", b"/tmp", b"tmpfs", 0, None)
    call("ptrace", 16, os.getppid(), 0, 0)
    call("setns", 0, 0)
    call("process_vm_readv", 1, None, 0, None, 0, 0)
    call("syscall", {NUMBERS["bpf"]}, 0, 0, 0)
    call("syscall", {NUMBERS["clone"]}, 0x10000011, 0, 0, 0, 0)
"""


async def test_a_refused_call_fails_and_is_reported(observing):
    async with observing() as seen:
        result = await seen.cell(REFUSED)
        assert [line.split()[1:] for line in result.stdout.splitlines()] == [["-1", "1"]] * 7, result
    assert seen.refused() == dict.fromkeys(
        ["unshare", "mount", "ptrace", "setns", "process_vm_readv", "bpf", "clone"], 1
    )
    assert all(action.program.startswith("/usr/bin/python3") for action in seen.actions)


async def test_sockets_that_no_gateway_could_see_are_recorded_with_their_number(observing):
    async with observing() as seen:
        result = await seen.cell("""
            import socket
            often = [(16, 3, 9), (17, 3, 768), (2, 3, 1)] * 50
            for family, kind, protocol in often + [(16, 3, number) for number in range(1, 500)]:
                try:
                    socket.socket(family, kind, protocol)
                    print("made", family)
                except OSError as error:
                    pass
        """)
        assert result.stdout == "", result
        records = await seen.sandbox.egress()
    assert sum(record.count for record in records) == 150 + 499
    assert b"socket(family=17, type=3, protocol=768)" in {record.opening_up for record in records}
