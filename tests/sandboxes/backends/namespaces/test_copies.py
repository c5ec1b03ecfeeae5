"""The agent's end of a frozen copy's control socket, spoken to by this process."""

import errno
import os
import socket

import pytest

from sandboxes.backends.namespaces.inside import copies


@pytest.fixture
def sockets():
    control, its_control = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    control.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
    control.settimeout(0.1)
    with control, its_control:
        yield control, its_control


def test_who_answers_rightly_but_is_no_child_is_not_believed(sockets):
    control, its_control = sockets
    its_control.send(copies.READY)
    with pytest.raises(OSError) as caught:
        copies.received_number(control, copies.READY)
    assert caught.value.errno == errno.EPROTO


def test_a_living_child_is_believed_and_known_by_the_kernels_word(sockets):
    control, its_control = sockets
    child = os.posix_spawn("/bin/sh", ["sh", "-c", "printf + >&0; sleep 60"], {}, file_actions=[
        (os.POSIX_SPAWN_DUP2, its_control.fileno(), 0)
    ])  # fmt: skip
    try:
        control.settimeout(60)
        assert copies.received_number(control, copies.READY) == child
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)


def test_descriptors_passed_to_the_agent_do_not_become_its_own(sockets):
    control, its_control = sockets
    before = os.listdir("/proc/self/fd")
    socket.send_fds(its_control, [copies.READY], [0, 1, 2])
    with pytest.raises(OSError):
        copies.received_number(control, copies.READY)
    assert len(os.listdir("/proc/self/fd")) == len(before)


def test_a_refusal_is_raised_with_its_reason(sockets):
    control, its_control = sockets
    its_control.send(copies.REFUSED + copies.ERRNO.pack(errno.EAGAIN))
    with pytest.raises(BlockingIOError):
        copies.received_number(control, copies.READY)


def test_silence_is_a_time_out(sockets):
    with pytest.raises(OSError) as caught:
        copies.received_number(sockets[0], copies.READY)
    assert caught.value.errno == errno.ETIMEDOUT
