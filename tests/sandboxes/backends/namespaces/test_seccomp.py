"""The filter, judged by interpreting it as the kernel would."""

import errno
import struct

import pytest

from sandboxes.backends.namespaces import seccomp
from sandboxes.backends.namespaces.syscalls import AARCH64, X86_64, Architecture

MACHINES = pytest.mark.parametrize("machine", [X86_64, AARCH64], ids=["x86_64", "aarch64"])


def decision(machine: Architecture, number: int, *arguments: int, audit: int | None = None) -> int:
    """What the program returns for a call: classic BPF, of which it uses five opcodes."""
    data = struct.pack("=IIQ6Q", number, machine.audit if audit is None else audit, 0, *(arguments + (0,) * 6)[:6])
    program = list(struct.iter_unpack("=HBBI", seccomp.deny_filter(machine)))
    at, register = 0, 0
    while True:
        code, if_true, if_false, value = program[at]
        at += 1
        if code == seccomp.LOAD:
            (register,) = struct.unpack_from("=I", data, value)
        elif code == seccomp.RETURN:
            return value
        else:
            holds = {
                seccomp.JUMP_EQUAL: register == value,
                seccomp.JUMP_AT_LEAST: register >= value,
                seccomp.JUMP_ANY_BIT: bool(register & value),
            }[code]
            at += if_true if holds else if_false


def refusal(code: int) -> int:
    return seccomp.ERRNO | code


@MACHINES
def test_every_name_in_the_lists_is_refused(machine):
    for names, code in ((seccomp.NOT_PERMITTED, errno.EPERM), (seccomp.NOT_IMPLEMENTED, errno.ENOSYS)):
        for name in names:
            if name in machine.numbers:
                assert decision(machine, machine.numbers[name]) == refusal(code), name


@MACHINES
def test_only_calls_of_the_other_architecture_are_missing_in_a_table(machine):
    names = {*seccomp.NOT_PERMITTED, *seccomp.NOT_IMPLEMENTED, *seccomp.SELF_ONLY}
    assert names - set(machine.numbers) <= {"modify_ldt", "iopl", "ioperm"}


@MACHINES
def test_every_call_that_is_not_listed_is_allowed(machine):
    listed = set(machine.numbers.values())
    assert {decision(machine, number) for number in range(600) if number not in listed} == {seccomp.ALLOW}


@MACHINES
def test_foreign_and_x32_calls_kill(machine):
    assert decision(machine, 1, audit=0x40000003) == seccomp.KILL_PROCESS  # i386
    assert decision(machine, 0x40000001) == seccomp.KILL_PROCESS


@MACHINES
def test_clone_may_make_threads_and_processes_but_no_namespace(machine):
    clone = machine.numbers["clone"]
    assert decision(machine, clone, 0x3D0F00) == decision(machine, clone, 17) == seccomp.ALLOW
    for bit in (17, 25, 26, 27, 28, 29, 30):
        assert decision(machine, clone, 17 | 1 << bit) == refusal(errno.EPERM)


@MACHINES
def test_limits_and_priorities_may_be_changed_of_oneself_only(machine):
    for name, wanted in seccomp.SELF_ONLY.items():
        number = machine.numbers[name]
        mine = [wanted.get(index, 0) for index in range(6)]
        assert decision(machine, number, *mine) == seccomp.ALLOW
        for index, value in wanted.items():
            other = [*mine[:index], value + 1, *mine[index + 1 :]]
            assert decision(machine, number, *other) == refusal(errno.EPERM), (name, other)


@MACHINES
def test_no_priority_is_changed_by_user_or_group(machine):
    for name, others in (("setpriority", (1, 2)), ("ioprio_set", (0, 2, 3))):
        for which in others:
            assert decision(machine, machine.numbers[name], which, 0, 5) == refusal(errno.EPERM), (name, which)


@MACHINES
def test_sockets_are_of_three_families(machine):
    allowed = {f for f in range(64) if decision(machine, machine.numbers["socket"], f) == seccomp.ALLOW}
    assert allowed == {1, 2, 10}


@MACHINES
def test_of_ioctl_only_typing_into_terminals_is_refused(machine):
    ioctl = machine.numbers["ioctl"]
    assert decision(machine, ioctl, 0, 0x5412) == decision(machine, ioctl, 0, 0x541C) == refusal(errno.EPERM)
    assert decision(machine, ioctl, 0, 0x5413) == seccomp.ALLOW
