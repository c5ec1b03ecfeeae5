"""Files that are changed are told by the path at which they are, whatever way leads there."""

import re

WAYS = """
    import os
    os.makedirs("deep/er")
    os.symlink("/work/deep", "link")
    os.symlink("/work/dangling-target", "dangling")
    folder = os.open("deep", os.O_RDONLY | os.O_DIRECTORY)
    os.close(os.open("er/by-folder", os.O_WRONLY | os.O_CREAT, dir_fd=folder))
    open("link/by-link", "w").close()
    open("dangling", "w").close()
    os.chdir("deep/er")
    open("../up", "a").close()
    open("/dev/shm/shared", "w").close()
    open("/proc/self/cwd/by-proc", "w").close()
    open(f"/proc/{os.getpid()}/root/work/by-root", "w").close()
    open(f"/proc/self/fd/{folder}/by-fd", "w").close()
    open(b"\\xff", "w").close()
    name = "/tmp/" + "d/" * 100
    os.makedirs(name)
    open(name + "far", "r+" if os.path.exists(name + "far") else "w").close()
"""


async def test_a_written_file_is_reported_where_it_lies(observing):
    async with observing() as seen:
        assert (await seen.cell(WAYS)).outcome == "ok"
    assert seen.files("write") == [
        "/work/deep/er/by-folder", "/work/deep/by-link", "/work/dangling-target", "/work/deep/up", "/tmp/shared",
        "/work/deep/er/by-proc", "/work/by-root", "/work/deep/by-fd", "/work/deep/er/\\xff",
        "/tmp/" + "d/" * 100 + "far",
    ]  # fmt: skip


async def test_a_file_is_the_one_that_the_kernel_finds_whatever_way_leads_there_through_proc(observing):
    async with observing() as seen:
        await seen.sandbox.write_file("grader.py", b"x")
        result = await seen.cell("""
            import os
            os.symlink("/proc/self/root", "/tmp/r")
            handle = os.open("grader.py", os.O_PATH)
            for path in (
                "/proc/self/root/../../../work/grader.py", "/proc/thread-self/../../cwd/grader.py",
                "/tmp/r/work/grader.py", f"/proc/self/root/proc/self/fd/{handle}", f"/dev/fd/{handle}", "new",
                "/tmp/r/work/new", "/tmp/r/work/newer",
            ):
                open(path, "a").close()
            os.dup2(os.open("grader.py", os.O_RDONLY), 0)
            open("/dev/stdin", "a").close()
            os.unlink("/proc/self/cwd/../tmp/r")
            for path in ("/proc/self/root/nowhere/../work/grader.py", "/proc/self/exe/../grader.py", "/proc//"):
                try:
                    open(path, "a")
                except OSError as error:
                    print(type(error).__name__)
        """)
        assert result.stdout.split() == ["FileNotFoundError", "NotADirectoryError", "IsADirectoryError"], result
        wrote = {action.path: action.found for action in seen.actions if action.operation == "write"}
    assert seen.sum(operation="write", path="/work/grader.py", found=True) == 6
    assert seen.files("delete") == ["/tmp/r"]
    assert wrote == {
        "/work/grader.py": True, "/work/new": True, "/work/newer": False,
        "/proc/self/root/work/grader.py": False, "/proc/self/grader.py": False, "/proc": True,
    }  # fmt: skip


async def test_every_kind_of_change_is_reported_with_both_paths(observing):
    async with observing() as seen:
        await seen.sandbox.write_file("old", b"x")
        result = await seen.cell("""
            import os
            os.truncate("old", 0)
            os.chmod("old", 0o600)
            os.fchmod(os.open("old", os.O_RDONLY), 0o755)
            os.rename("old", "new")
            os.link("new", "second")
            os.symlink("/usr/bin/id", "id")
            os.replace("second", "new")
            os.remove("new")
            os.remove("id")
            os.mkdir("folder")
            os.rmdir("folder")
        """)
        assert result.outcome == "ok", result
        files = [action for action in seen.actions if action.kind == "file"]
    reported = list(dict.fromkeys((action.operation, action.path, action.target) for action in files))
    assert seen.sum(operation="mode", path="/work/old") == 2
    assert reported == [
        ("write", "/work/old", ""), ("mode", "/work/old", ""),
        ("rename", "/work/old", "/work/new"), ("link", "/work/second", "/work/new"),
        ("link", "/work/id", "/usr/bin/id"),
        ("rename", "/work/second", "/work/new"), ("delete", "/work/new", ""), ("delete", "/work/id", ""),
        ("delete", "/work/folder", ""),
    ]  # fmt: skip


async def test_what_was_there_before_is_told_from_what_is_new(observing):
    async with observing() as seen:
        await seen.sandbox.write_file("tests/test_sum.py", b"assert True")
        await seen.shell("echo > tests/test_sum.py; echo > tests/conftest.py; cat .aws/credentials")
        reported = {(action.operation, action.path): action.found for action in seen.actions if action.kind == "file"}
    assert reported == {
        ("write", "/work/tests/test_sum.py"): True, ("write", "/work/tests/conftest.py"): False,
        ("read", "/work/.aws/credentials"): False,
    }  # fmt: skip


async def test_what_is_read_by_every_program_is_not_told_and_what_is_no_programs_business_is(observing):
    async with observing() as seen:
        await seen.cell(
            "import json, decimal, xml.dom; open('/dev/null', 'w').write('x'); open('/proc/cpuinfo').read()"
        )
        await seen.shell("cat /usr/share/common-licenses/GPL-3 > /dev/null; ls /work /proc > /dev/null")
        assert [action.path for action in seen.actions if action.kind == "file"] == []
        await seen.shell("sleep 60 & cat /proc/1/environ /proc/$!/environ /etc/passwd /usr/../etc/group; kill $!")
        [first, second, *rest] = seen.files("read")
        assert (first, rest) == ("/proc/1/environ", ["/etc/passwd", "/etc/group"])
        assert re.fullmatch(r"/proc/\d+/environ", second)


async def test_interpreters_read_unseen_as_the_documents_say(observing):
    """With O_CLOEXEC, as they read their own modules.  What they write is seen."""
    async with observing() as seen:
        await seen.cell("open('/etc/passwd').close(); open('mine', 'w').close()")
        assert [action.path for action in seen.actions] == ["/work/mine"]


async def test_what_is_done_from_outside_is_no_action_of_the_sandbox(observing):
    async with observing() as seen:
        await seen.sandbox.write_file("a/b", b"x")
        assert await seen.sandbox.read_file("a/b") == b"x"
        await seen.sandbox.reset()
        await seen.sandbox.settled()
        assert seen.actions == []
