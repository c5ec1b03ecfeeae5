"""A server outside, on a sandbox's own loopback: reached by this sandbox, and by nobody else."""

import asyncio

import pytest

from sandboxes.interface import SandboxLost, SandboxUnavailable
from sandboxes.opened import opened
from sandboxes.spec import SandboxSpec

SPEC = SandboxSpec(network="watched", snapshots=False)
ASK = """
import socket
try:
    with socket.create_connection(("127.0.0.1", 929), 2) as made:
        print(made.recv(100).decode())
except OSError as error:
    print(type(error).__name__)
"""
BIND = """
import socket
for port in (929, 930):
    try:
        socket.socket().bind(("127.0.0.1", port))
        print("bound")
    except OSError as error:
        print(type(error).__name__)
"""


async def greet(reader, writer):
    writer.write(b"hello")
    writer.close()


@pytest.mark.parametrize("spec", [SPEC, SandboxSpec(snapshots=False)], ids=["watched", "no-network"])
async def test_its_programs_reach_it_and_those_of_another_sandbox_and_this_machine_do_not(spec):
    async with opened(spec) as sandbox, opened(spec) as other:
        server = await asyncio.start_server(greet, sock=await sandbox.listen(929))
        async with server:
            assert (await sandbox.run_python(ASK)).stdout == "hello\n"
            assert await sandbox.egress() == []
            assert (await other.run_python(ASK)).stdout == "ConnectionRefusedError\n"
            with pytest.raises(ConnectionRefusedError):
                await asyncio.open_connection("127.0.0.1", 929)
        assert (await sandbox.run_python(ASK)).stdout == "ConnectionRefusedError\n"


async def test_nothing_in_the_sandbox_can_take_its_place_and_a_port_is_taken_once():
    async with opened(SPEC) as sandbox:
        assert (await sandbox.run_python(BIND)).stdout == "PermissionError\nPermissionError\n"
        listener = await sandbox.listen(929)
        with pytest.raises(SandboxUnavailable, match="port 929"):
            await sandbox.listen(929)
        listener.close()
    with pytest.raises(SandboxLost):
        await sandbox.listen(929)
