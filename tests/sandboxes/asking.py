"""How tests ask a sandbox, and the host about it."""

import asyncio
import contextlib
import gc
import os
import textwrap
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from sandboxes.backends.namespaces.sandbox import NamespaceSandbox
from sandboxes.interface import ExecResult, Sandbox
from sandboxes.opened import open_sandbox, zygotes_for
from sandboxes.spec import SandboxSpec
from sandboxes.teardown import completed


async def python(sandbox: Sandbox, code: str, **options: float) -> ExecResult:
    return await sandbox.run_python(textwrap.dedent(code), **options)


async def shell(sandbox: Sandbox, script: str, **options: float) -> ExecResult:
    return await sandbox.exec(["/bin/sh", "-c", script], **options)


async def cell_output(sandbox: Sandbox, code: str) -> str:
    """What a cell prints that must not fail."""
    result = await python(sandbox, code)
    assert result.outcome == "ok", result
    return result.stdout.rstrip("\n")


async def printed(sandbox: Sandbox, script: str) -> str:
    """What a script of the shell prints that must not fail."""
    result = await shell(sandbox, script)
    assert result.outcome == "ok", result
    return result.stdout


async def errno_of(sandbox: Sandbox, expression: str) -> str:
    """The name of the error that a call in the sandbox fails with, or ``none``."""
    result = await python(
        sandbox,
        f"""
        import errno, os, socket, ctypes
        libc = ctypes.CDLL(None, use_errno=True)
        def call(name, *arguments):
            if getattr(libc, name)(*arguments) < 0:
                raise OSError(ctypes.get_errno(), name)
        try:
            {expression}
            print("none")
        except OSError as error:
            print(errno.errorcode.get(error.errno, error))
        """,
    )
    assert result.outcome == "ok", result
    return result.stdout.splitlines()[-1]


def host_processes(sign: bytes) -> list[int]:
    """Processes of the host whose command line has ``sign``."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                if sign in file.read():
                    found.append(int(pid))
        except OSError:
            continue
    return found


async def until_running(argument: str, processes: int = 1) -> None:
    """Return when so many processes of the host are ``sleep`` with this argument: none is its shell still."""
    async with asyncio.timeout(60):
        while len(host_processes(f"sleep\0{argument}\0".encode())) < processes:  # noqa: ASYNC110  nothing tells of it
            await asyncio.sleep(0.01)


@asynccontextmanager
async def opened_after_another(spec: SandboxSpec) -> AsyncIterator[Sandbox]:
    """A sandbox whose zygote has made one before."""
    zygotes = zygotes_for(spec)
    assert zygotes is not None
    former = await open_sandbox(spec, zygotes=zygotes)
    await former.run_python("open('/work/former', 'w').close()")
    await former.close()
    sandbox = await open_sandbox(spec, zygotes=zygotes)
    try:
        yield sandbox
    finally:
        await completed(sandbox.close())
        await zygotes.close()


async def starts_cancelled_anywhere(spec: SandboxSpec, *, pause_s: float) -> None:
    """Cancel the start of a sandbox at 40 moments; fail if one leaves a descriptor or a process."""
    await (await NamespaceSandbox.start(spec)).close()  # what is made once per process (the spawner) is not counted
    gc.collect()  # what earlier tests left is not ours to count
    descriptors, before = len(os.listdir("/proc/self/fd")), children()
    for step in range(40):
        start = asyncio.create_task(NamespaceSandbox.start(spec))
        await asyncio.sleep(step * pause_s)
        start.cancel()
        result = (await asyncio.gather(start, return_exceptions=True))[0]
        if isinstance(result, NamespaceSandbox):
            await result.close()
        else:
            assert isinstance(result, asyncio.CancelledError)
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) <= descriptors
    assert children() <= before


def children() -> set[int]:
    """The children of this process; a thread that ends meanwhile leaves its own to another one."""
    found: set[int] = set()
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            found.update(map(int, (task / "children").read_text().split()))
    return found
