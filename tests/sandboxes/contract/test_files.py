"""What every backend promises of files that go in and come out."""

import asyncio

import pytest

from tests.sandboxes.asking import shell


async def test_files_go_in_and_come_out_unchanged(sandbox):
    content = bytes(range(256)) * 1000
    await sandbox.write_file("a/b/ü.bin", content)
    assert await sandbox.read_file("/work/a/b/ü.bin") == content
    assert (await shell(sandbox, "wc -c < a/b/ü.bin")).stdout.strip() == "256000"


async def test_writing_again_replaces_the_whole_file(sandbox):
    await sandbox.write_file("f", b"long content")
    await sandbox.write_file("f", b"short")
    assert await sandbox.read_file("f") == b"short"


async def test_a_module_that_was_written_can_be_imported(sandbox):
    await sandbox.write_file("tool.py", b"answer = 42")
    assert (await sandbox.run_python("import tool; tool.answer")).stdout == "42\n"


async def test_faults_of_a_path_are_the_callers_oserror(sandbox):
    with pytest.raises(FileNotFoundError):
        await sandbox.read_file("missing")
    with pytest.raises(IsADirectoryError):
        await sandbox.read_file("/usr")
    with pytest.raises(OSError, match="Read-only|read-only"):
        await sandbox.write_file("/usr/x", b"")
    assert sandbox.alive


async def test_a_file_over_the_limit_is_refused(sandbox):
    await sandbox.write_file("f", bytes(1001))
    with pytest.raises(OSError, match="large"):
        await sandbox.read_file("f", limit_bytes=1000)
    assert len(await sandbox.read_file("f", limit_bytes=1001)) == 1001


async def test_paths_and_links_do_not_leave_the_sandbox(sandbox, tmp_path):
    (tmp_path / "host").write_text("of the host")
    await shell(sandbox, f"ln -s {tmp_path}/host out; ln -s ../../../../..{tmp_path} up; ln -s /etc/shadow shadow")
    for path in ("out", "up/host", "../../../.." + str(tmp_path / "host"), "shadow"):
        with pytest.raises(FileNotFoundError):
            await sandbox.read_file(path)
    with pytest.raises(OSError):
        await sandbox.write_file("up/x", b"")
    assert [p.name for p in tmp_path.iterdir()] == ["host"]


async def test_a_link_to_proc_shows_nothing_of_the_agent(sandbox):
    await shell(
        sandbox, "ln -s /proc/self/environ e; ln -s /proc/self/mem m; ln -s /proc/1/fd/3 d; ln -s /proc/1/comm c"
    )
    for path in ("e", "m", "d", "c"):
        with pytest.raises(OSError):
            await sandbox.read_file(path)
        with pytest.raises(OSError):
            await sandbox.write_file(path, b"x")
    assert (await sandbox.run_python("1")).stdout == "1\n"


async def test_a_fifo_or_device_does_not_hold_the_sandbox_up(sandbox):
    await shell(sandbox, "mkfifo pipe; ln -s /dev/zero zero")
    for path in ("pipe", "zero"):
        with pytest.raises(OSError):
            await sandbox.read_file(path)
        with pytest.raises(OSError):
            await sandbox.write_file(path, b"x")


@pytest.mark.parametrize(
    "path", ["a\0b", "\ud800", "", ".", "/", "d/", "n" * 300, "/work/../../..", "/proc/self/mem", "a/" * 1900 + "b"]
)
async def test_what_is_no_path_of_a_file_is_the_callers_oserror(sandbox, path):
    with pytest.raises(OSError):
        await sandbox.read_file(path)
    with pytest.raises(OSError):
        await sandbox.write_file(path, b"x")
    assert (await sandbox.run_python("'alive'")).stdout == "'alive'\n"


@pytest.mark.parametrize("name", ["a b", "new\nline", "-rf", "*", "日本", "'\"$(id)"])
async def test_names_are_taken_as_they_are(sandbox, name):
    await sandbox.write_file(name, b"content")
    assert await sandbox.read_file(f"/work/{name}") == b"content"
    assert (await sandbox.run_python("import os; os.listdir('/work')")).stdout == f"{[name]!r}\n"


async def test_empty_files_and_a_limit_of_nothing_are_fine(sandbox):
    await sandbox.write_file("empty", b"")
    assert await sandbox.read_file("empty", limit_bytes=0) == b""
    await sandbox.write_file("one", b"1")
    with pytest.raises(OSError, match="large"):
        await sandbox.read_file("one", limit_bytes=0)


@pytest.mark.parametrize("limit_bytes", [-1, 2**40, 10**30])
async def test_a_limit_that_is_none_is_the_callers_mistake_and_costs_no_sandbox(sandbox, limit_bytes):
    await sandbox.write_file("one", b"1")
    with pytest.raises(ValueError, match="limit_bytes"):
        await sandbox.read_file("one", limit_bytes=limit_bytes)
    assert await sandbox.read_file("one") == b"1"


async def test_permissions_hold_for_the_host_as_for_the_guest(sandbox):
    await sandbox.write_file("tool", b"#!/bin/sh\necho ran\n")
    assert (await sandbox.exec(["./tool"])).exit_code == 126
    await shell(sandbox, "chmod 755 tool; touch secret; chmod 000 secret; mkdir locked; chmod 500 locked")
    assert (await sandbox.exec(["./tool"])).stdout == "ran\n"
    for call in (sandbox.read_file("secret"), sandbox.write_file("secret", b""), sandbox.write_file("locked/f", b"")):
        with pytest.raises(PermissionError):
            await call


async def test_many_files_at_once_do_not_mix(sandbox):
    contents = {f"f{number}": bytes([number]) * 50_000 for number in range(30)}
    await asyncio.gather(*(sandbox.write_file(name, content) for name, content in contents.items()))
    read = await asyncio.gather(*(sandbox.read_file(name) for name in contents))
    assert dict(zip(contents, read, strict=True)) == contents
