"""The profile of a container, read as the daemon reads it."""

import errno
import json

import pytest

from sandboxes.backends.docker.seccomp import all_words_but, profile
from sandboxes.backends.namespaces import seccomp
from sandboxes.observation.filter import DATAGRAM, INET, INET6, PACKET, RAW, STREAM, TCP, UDP


def holds(condition: dict, arguments: tuple[int, ...]) -> bool:
    argument, value = arguments[condition["index"]], condition["value"]
    return {
        "SCMP_CMP_EQ": argument == value,
        "SCMP_CMP_GT": argument > value,
        "SCMP_CMP_MASKED_EQ": argument & value == condition["valueTwo"],
    }[condition["op"]]


def decision(name: str, *arguments: int) -> int:
    """The error that a call gets; 0 if it is allowed."""
    given = (*arguments, *([0] * 6))[:6]
    rules = json.loads(profile())
    matching = [
        rule["errnoRet"] if rule["action"] == "SCMP_ACT_ERRNO" else 0
        for rule in rules["syscalls"]
        if name in rule["names"] and all(holds(condition, given) for condition in rule["args"])
    ]
    assert len(set(matching)) <= 1, f"two rules say different things of {name}{given}"
    return matching[0] if matching else rules["defaultErrnoRet"]


def test_every_call_that_a_sandbox_of_namespaces_goes_without_is_refused_here_too():
    for names, code in ((seccomp.NOT_PERMITTED, errno.EPERM), (seccomp.NOT_IMPLEMENTED, errno.ENOSYS)):
        assert {name: decision(name) for name in names} == dict.fromkeys(names, code)


def test_a_call_that_nobody_knows_yet_is_refused():
    assert decision("of_a_kernel_to_come") == errno.EPERM


def test_ordinary_calls_are_allowed():
    for name in ("read", "write", "openat", "execve", "mmap", "futex", "wait4", "connect", "exit_group", "rseq"):
        assert decision(name) == 0


def test_limits_and_priorities_may_be_changed_of_oneself_only():
    for name, wanted in seccomp.SELF_ONLY.items():
        mine = [wanted.get(index, 0) for index in range(6)]
        assert decision(name, *mine) == 0
        for index, value in wanted.items():
            assert decision(name, *mine[:index], value + 1, *mine[index + 1 :]) == errno.EPERM


def test_options_of_sockets_may_be_set_but_for_flow_labels():
    for level, option in ((1, 8), (6, 1), (41, 26), (41, 31), (41, 33), (1, 32), (0, 32)):
        assert decision("setsockopt", 3, level, option) == 0
    assert decision("setsockopt", 3, 41, 32) == errno.EPERM


def test_clone_makes_threads_and_processes_but_no_namespace():
    assert decision("clone", 0x3D0F00) == decision("clone", 17) == 0
    for bit in (17, 25, 26, 27, 28, 29, 30):
        assert decision("clone", 17 | 1 << bit) == errno.EPERM


def test_sockets_are_those_that_a_gateway_sees():
    for family in (INET, INET6):
        assert decision("socket", family, STREAM, TCP) == decision("socket", family, DATAGRAM | 0o2000000, UDP) == 0
        assert decision("socket", family, RAW, 1) == decision("socket", family, 5, 132) == errno.EPERM
    others = {family for family in range(64) if decision("socket", family, DATAGRAM) == errno.EAFNOSUPPORT}
    assert others == set(range(64)) - set(seccomp.SOCKET_FAMILIES)
    assert decision("socket", PACKET, RAW) == errno.EAFNOSUPPORT
    assert decision("socket", 2 | 40 << 32, STREAM) == errno.EAFNOSUPPORT


@pytest.mark.parametrize("refused", [(0x5412, 0x541C), (10,), (0,), (0xFFFFFFFF, 0)])
def test_the_words_left_out_are_left_out_whatever_stands_above_them(refused):
    pairs = list(all_words_but(refused))
    for word in {*refused, *(bad ^ 1 << bit for bad in refused for bit in range(32))}:
        for high in (0, 1 << 32, 1 << 63):
            matches = sum((word | high) & mask == value for mask, value in pairs)
            assert matches == (word not in refused)


def test_what_is_refused_of_a_call_by_its_second_argument_is_refused():
    for name, refused in (("ioctl", seccomp.TERMINAL_INJECTION), ("fcntl", seccomp.SIGNAL_CHOICE)):
        assert {decision(name, 0, value) for value in refused} == {errno.EPERM}
        assert decision(name, 0, 1) == 0
