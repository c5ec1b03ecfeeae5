"""A process that can open no more files makes no sandbox and says so; its gateways refuse and record."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROLOGUE = """
import asyncio, gc, os, resource, sys
from sandboxes.backends.namespaces import probe
from sandboxes.backends.namespaces.spawn import spawner
from sandboxes.egress.interception import rules
from sandboxes.interface import SandboxUnavailable
from sandboxes.opened import opened
from sandboxes.spec import SandboxSpec
from tests.sandboxes.watched_scene import NOWHERE

def used():
    return len(os.listdir("/proc/self/fd")) - 1

def allow(more):
    highest = max(map(int, os.listdir("/proc/self/fd")))
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + more, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))

def take_all():
    taken = []
    try:
        while True:
            taken.append(os.dup(0))
    except OSError:
        return taken
"""
MAKING = """
async def main(network):
    spec = SandboxSpec(network=network)
    async with opened(spec, upstream=NOWHERE) as sandbox:  # everything that is opened once for all is open
        pass
    before, ends = used(), set()
    for more in range(2, 40):
        allow(more)
        try:
            async with opened(spec, upstream=NOWHERE) as sandbox:
                ended = await sandbox.run_python("2 + 2")
                assert ended.outcome == "ok", (more, ended)
                ends.add(ended.stdout)
        except SandboxUnavailable as error:
            assert "open files" in str(error) and "ulimit -n" in str(error), error
            ends.add("unavailable")
        allow(200)
        gc.collect()
        assert used() <= before, (more, used(), before)
    print(sorted(ends))

asyncio.run(main(sys.argv[1]))
"""
SERVING = """
from sandboxes.egress.gateway.gateway import Gateway

looks = 0
accept = Gateway._accept
def counted(self, at_most):
    global looks
    looks += 1
    return accept(self, at_most)
Gateway._accept = counted
CONNECT = '''
import socket
for number in range(20):
    made = socket.socket(); made.settimeout(20)
    try:
        made.connect(("203.0.113.5", 1000 + number))
        made.recv(1)
    except OSError: pass
    made.close()
'''
PATIENT = '''
import socket
made = socket.socket(); made.settimeout(60)
made.connect(("203.0.113.5", 7))
try: made.recv(1)
except OSError: pass
'''

async def main():
    global looks
    records = []
    async with opened(SandboxSpec(network="watched", timeout_s=60), records.append, NOWHERE) as sandbox:
        await sandbox.run_python("1")
        allow(30)
        taken = take_all()
        assert (await sandbox.run_python(CONNECT)).outcome == "ok"
        refused = sorted(record.attempt.port for record in records)
        assert refused == list(range(1000, 1020)), refused
        # Not even the descriptor that is kept for refusals can be had.
        gateway = sandbox._watched._gateway
        os.close(gateway._reserve); gateway._reserve = -1
        taken += take_all()
        looks = 0
        waiting = asyncio.create_task(sandbox.run_python(PATIENT))
        while not looks:
            await asyncio.sleep(0.01)
        await asyncio.sleep(1)
        print("looks", looks < 1000, len(records))
        try:
            await sandbox.inspect()
        except SandboxUnavailable as error:
            print("inspect", error)
        for fd in taken:
            os.close(fd)
        assert (await waiting).outcome == "ok"
        assert (await sandbox.run_python("2 + 2")).stdout == "4\\n"
    print(sorted({record.attempt.port for record in records}), sum(record.count for record in records))

asyncio.run(main())
"""

RESETTING = """
async def main():
    records = []
    async with opened(SandboxSpec(network="watched", timeout_s=60), records.append, NOWHERE) as sandbox:
        await sandbox.run_python("1")
        taken = take_all()
        await asyncio.wait_for(sandbox.reset(), 120)
        for fd in taken:
            os.close(fd)
        assert (await sandbox.run_python("2 + 2")).stdout == "4\\n"
    print("reset", len(records))

allow(30)
asyncio.run(main())
"""


def run(program: str, *arguments: str) -> str:
    argv = [sys.executable, "-P", "-c", PROLOGUE + program, *arguments]
    ended = subprocess.run(argv, capture_output=True, text=True, cwd=ROOT, env={"PYTHONPATH": str(ROOT)}, timeout=300)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


@pytest.mark.parametrize("network", ["none", "watched"])
def test_a_sandbox_that_finds_no_descriptor_is_unavailable_and_leaves_none_open(network):
    assert run(MAKING, network) == "['4\\n', 'unavailable']\n"


def test_a_gateway_without_descriptors_refuses_records_and_does_not_spin():
    looks, inspected, ended = run(SERVING).splitlines()
    assert looks == "looks True 20"
    assert inspected.startswith("inspect Too many open files")
    assert ended == f"{[7, *range(1000, 1020)]} 21"


def test_a_reset_without_descriptors_ends():
    """Without one the kernel does not say that nobody waits to be accepted."""
    assert run(RESETTING) == "reset 0\n"
