"""Every program that starts is told with its arguments, however it is started."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sandboxes.observation.guests import Guest, Running
from sandboxes.observation.reading import Reader, Started


async def test_a_program_of_exec_is_reported_with_what_it_is_given(observing):
    async with observing() as seen:
        await seen.sandbox.exec(["cat", "-"], stdin=b"x", env={"PYTHONPATH": "/work/hook", "NAME": "y"})
        await seen.sandbox.settled()
        [cat] = seen.programs()
    assert (cat.program, cat.argv, cat.folder) == ("/usr/bin/cat", ("cat", "-"), "/work")
    assert cat.streams == ("pipe", "pipe", "pipe")
    assert cat.environment == ("PYTHONPATH=/work/hook",)
    assert (cat.parent_program, cat.parent_sockets, cat.count) == ("", 0, 1)
    assert cat.sandbox == seen.sandbox.name


async def test_programs_of_a_pipeline_have_one_pipe_and_a_here_document_is_another(observing):
    async with observing() as seen:
        await seen.shell("printf x | cat; cat <<'EOF' | wc -c\ny\nEOF\n/bin/echo none > /dev/null")
        programs = seen.programs()
    first, here = (program for program in programs if program.argv[0] == "cat")
    [counted] = (program for program in programs if program.argv[0] == "wc")  # it may begin before its neighbour
    [alone] = (program for program in programs if program.argv[0] == "/bin/echo")
    assert first.pipes[0] > 0
    assert here.pipes[1] == counted.pipes[0] > 0
    assert len({first.pipes[0], here.pipes[0], counted.pipes[0]}) == 3
    assert alone.streams[1] == "null"
    assert alone.pipes[1] == 0


async def test_a_program_is_told_with_the_number_that_it_has_inside(observing):
    async with observing() as seen:
        result = await seen.shell("sleep 0.1 & echo $!; wait")
        [sleeper] = (program for program in seen.programs() if program.argv[0] == "sleep")
    assert sleeper.inside == int(result.stdout)
    assert sleeper.inside != sleeper.pid


WAYS = {
    "posix_spawn": "import os; os.waitpid(os.posix_spawn('/usr/bin/id', ['id', '-u'], {}), 0)",
    "ctypes": """
        import ctypes, os
        if not os.fork():
            words = (ctypes.c_char_p * 3)(b"id", b"-u", None)
            ctypes.CDLL(None).execv(b"/usr/bin/id", words)
        os.wait()
    """,
    "a descriptor": """
        import ctypes, os
        if not os.fork():
            words = (ctypes.c_char_p * 3)(b"id", b"-u", None)
            ctypes.CDLL(None).fexecve(os.open("/usr/bin/id", os.O_PATH), words, (ctypes.c_char_p * 1)(None))
        os.wait()
    """,
    "a link in a relative path": """
        import os, subprocess
        os.symlink("/usr/bin", "tools")
        subprocess.run(["tools/id", "-u"], executable="./tools/id")
    """,
    "its own root and the way back": """
        import subprocess
        subprocess.run(["id", "-u"], executable="/proc/self/root/../../../usr/bin/id")
    """,
    "the root of a thread": """
        import subprocess
        subprocess.run(["id", "-u"], executable="/proc/thread-self/../../root/proc/self/root/usr/bin/id")
    """,
    "a link into /proc": """
        import os, subprocess
        os.symlink("/proc/self/root", "/tmp/r")
        subprocess.run(["id", "-u"], executable="/tmp/r/usr/bin/id")
    """,
    "the folder of another process": """
        import os, subprocess
        os.symlink("/usr/bin", "bin")
        subprocess.run(["id", "-u"], executable=f"/proc/{os.getpid()}/cwd/bin/id")
    """,
    "a folder whose path is too long to be told": """
        import os, subprocess
        for _ in range(20):
            os.mkdir("d" * 240)
            os.chdir("d" * 240)
        os.symlink("/usr/bin/id", "link")
        subprocess.run(["id", "-u"], executable="./link")
    """,
}


@pytest.mark.parametrize("way", WAYS)
async def test_a_program_is_reported_by_whatever_way_it_is_started(observing, way):
    async with observing() as seen:
        result = await seen.cell(WAYS[way])
        assert result.outcome == "ok", result
        [program] = seen.programs()
    assert program.program == "/usr/bin/id"
    assert program.argv[-1] == "-u"
    assert program.parent_program.startswith("/usr/bin/python3")


async def test_an_interpreter_is_reported_with_its_code(observing):
    async with observing() as seen:
        await seen.shell("exec /usr/bin/python3 -S -c 'print(1)'")
    assert [program.argv[0:1] for program in seen.programs()] == [("/bin/sh",), ("/usr/bin/python3",)]
    assert seen.programs()[1].argv == ("/usr/bin/python3", "-S", "-c", "print(1)")


async def test_a_shell_that_speaks_over_a_socket_is_told_so(observing):
    async with observing() as seen:
        result = await seen.cell("""
            import os, socket, subprocess
            server = socket.create_server(("127.0.0.1", 0))
            ours = socket.create_connection(server.getsockname())
            theirs = server.accept()[0]
            child = subprocess.Popen(["/bin/sh", "-i"], stdin=ours, stdout=ours, stderr=ours)
            theirs.sendall(b"exit\\n")
            child.wait()
            pair = socket.socketpair()
            subprocess.run(["/bin/true"], stdin=pair[0], stdout=subprocess.DEVNULL)
        """)
        assert result.outcome == "ok", result
        shell, true = seen.programs()
    assert shell.streams == ("inet", "inet", "inet")
    assert shell.parent_sockets >= 3
    assert true.streams[:2] == ("unix", "null")


async def test_memory_cannot_become_a_program_and_the_attempt_is_reported(observing):
    async with observing() as seen:
        await seen.cell("""
            import os
            try:
                os.memfd_create("x")
            except OSError as error:
                print(error.errno)
        """)
    assert seen.refused() == {"memfd_create": 1}


async def test_what_is_looked_for_in_folders_where_it_is_not_is_no_program(observing):
    async with observing() as seen:
        await seen.sandbox.exec(["id"])
        await seen.sandbox.exec(["no-such-program"])
        await seen.sandbox.settled()
    assert [program.program for program in seen.programs()] == ["/usr/bin/id"]


@contextmanager
def sleeping() -> Iterator[Guest]:
    """A process that runs ``sleep 1000``."""
    with subprocess.Popen(["sleep", "1000"], stdin=subprocess.DEVNULL, env={"GIT_X": "x"}) as running:
        try:
            while b"1000" not in Path(f"/proc/{running.pid}/cmdline").read_bytes():
                assert running.poll() is None
            yield Guest(running.pid, 0, 0)
        finally:
            running.kill()


BEFORE = Running(b"before\0", "/usr/bin/before")


@pytest.mark.parametrize(
    ("reported", "runs"),
    [(["sleep", "1"], True), (["sleep", "1000"], False), (["/bin/sleep"], True), (["busybox", "1000"], False)],
)
def test_a_program_that_is_not_what_was_reported_is_reported_as_well(reported, runs):
    with sleeping() as guest:
        action = {"kind": "program", "program": "/usr/bin/x", "argv": reported, "pid": guest.pid, "cut": []}
        last, instead = Reader(0, 0).look(Started(guest, BEFORE, action))
    assert last
    assert (instead is not None) is runs
    if instead is not None:
        assert instead["argv"] == ["sleep", "1000"]
        assert instead["program"] == "/usr/bin/sleep"


def test_a_program_that_nobody_found_is_reported_when_it_runs():
    with sleeping() as guest:
        reader = Reader(0, 0)
        last, instead = reader.look(Started(guest, BEFORE))
        assert reader.look(Started(guest, guest.runs())) == (False, None), "none runs: it still looks for one"
    assert reader.look(Started(guest, BEFORE)) == (True, None), "it has ended"
    assert last
    assert instead is not None
    assert (instead["kind"], instead["program"], instead["argv"]) == ("program", "/usr/bin/sleep", ["sleep", "1000"])
    assert (instead["streams"][0], instead["environment"]) == ("null", ["GIT_X=x"])


async def test_a_program_that_nobody_can_find_is_reported_with_what_it_has_once_it_runs(observing):
    """The kernel follows more names than the observer does."""
    async with observing() as seen:
        result = await seen.cell("""
            import os, subprocess
            os.mkdir("d")
            os.symlink("d/../" * 800, "far")
            os.symlink("/usr/bin/cat", "hidden")
            path = "/proc/self/root/../work/far/far/far/far/hidden"
            cat = subprocess.Popen(["x", "-", "-"], executable=path, stdin=subprocess.PIPE, env={"LD_PRELOAD": ""})
        """)
        assert result.outcome == "ok", result
        [program] = seen.programs()
    assert (program.program, program.argv) == ("/usr/bin/cat", ("x", "-", "-"))
    assert (program.folder, program.environment) == ("/work", ("LD_PRELOAD=",))
    assert program.streams is not None
    assert program.streams[0] == "pipe"
    assert program.parent_program.startswith("/usr/bin/python3")


async def test_a_script_and_its_interpreter_are_one_program(observing):
    async with observing() as seen:
        await seen.sandbox.write_file("script", b"#!/bin/sh -e\nsleep 0.2\n")
        await seen.shell("chmod +x script; ./script; ./script with words")
        reported = [program.argv for program in seen.programs() if program.program == "/work/script"]
    assert reported == [("./script",), ("./script", "with", "words")]
    assert not [program for program in seen.programs() if program.argv[:1] == ("/bin/sh",) and "-e" in program.argv]


async def test_memory_that_only_the_kernel_can_read_hides_no_program(observing):
    """A page mapped for writing only: the kernel reads a path there, and so does the observer."""
    async with observing() as seen:
        result = await seen.cell("""
            import ctypes, mmap, os
            page = mmap.mmap(-1, 4096, prot=mmap.PROT_WRITE)
            address = ctypes.addressof(ctypes.c_char.from_buffer(page))
            ctypes.memmove(address, b"/usr/bin/id\\0", 12)
            if not os.fork():
                ctypes.CDLL(None).execv(ctypes.c_void_p(address), (ctypes.c_char_p * 2)(b"id", None))
                os._exit(1)
            print(os.wait()[1])
            ctypes.CDLL(None).execv(ctypes.c_void_p(8), None)
        """)
        assert result.outcome == "ok", result
    assert result.stdout.endswith("\n0\n-1\n")
    assert [program.program for program in seen.programs()] == ["/usr/bin/id"]
    assert seen.refused() == {"execve": 1}


async def test_arguments_whose_array_lies_across_two_pages_at_an_odd_address_are_reported(observing):
    """No pointer has to lie at a multiple of its size: the kernel reads such an array, and so does the observer."""
    async with observing() as seen:
        result = await seen.cell("""
            import ctypes, mmap, os, struct
            pages = mmap.mmap(-1, 8192)
            address = ctypes.addressof(ctypes.c_char.from_buffer(pages))
            kept = [ctypes.create_string_buffer(word) for word in (b"id", b"-u", b"-r")]
            at = 4096 - 12  # the second pointer begins on one page and ends on the next
            pages[at : at + 32] = struct.pack("=4Q", *map(ctypes.addressof, kept), 0)
            if not os.fork():
                ctypes.CDLL(None).execv(b"/usr/bin/id", ctypes.c_void_p(address + at))
                os._exit(1)
            print(os.wait()[1])
        """)
        assert result.outcome == "ok", result
    assert result.stdout.endswith("\n0\n")
    assert [program.argv for program in seen.programs()] == [("id", "-u", "-r")]


async def test_of_what_is_too_long_both_ends_are_kept_and_that_it_was_cut_is_said(observing):
    async with observing() as seen:
        result = await seen.cell("""
            import subprocess
            subprocess.run(["/bin/true", "-c", "#" * 100_000 + "\\nxmrig"])
            subprocess.run(["/bin/true", *["-Hx:1"] * 1500, "-T", "/work/.ssh/id_rsa"])
            subprocess.run(["/bin/true", *["-H" + "x" * 1000] * 100, "-T", "/work/.ssh/id_rsa"])
            subprocess.run(["/bin/true", "x" * 10_000])
        """)
        assert result.outcome == "ok", result
        script, many, long, whole = seen.programs()
    assert script.argv[:2] == ("/bin/true", "-c")
    assert (script.argv[2][:2], script.argv[2][-6:]) == ("##", "\nxmrig")
    assert many.argv[:2] == ("/bin/true", "-Hx:1")
    assert many.argv[-2:] == long.argv[-2:] == ("-T", "/work/.ssh/id_rsa")
    assert script.cut == many.cut == long.cut == {"argv"}
    assert (whole.argv[1], whole.cut) == ("x" * 10_000, frozenset())


@pytest.mark.parametrize("variable", ["LD_PRELOAD=/work/x.so", "PYTEST_ADDOPTS=-p evil", "BASH_ENV=/work/x"])
async def test_variables_that_a_rule_judges_are_hidden_by_no_others(observing, variable):
    name, _, value = variable.partition("=")
    async with observing() as seen:
        result = await seen.cell(f"""
            import os
            others = {{f"GIT_{{number}}": "x" * 100 for number in range(600)}}
            others["HTTP_PROXY"] = "x" * 100_000
            os.waitpid(os.posix_spawn("/bin/true", ["true"], others | {{"{name}": "{value}"}}), 0)
            os.waitpid(os.posix_spawn("/bin/true", ["true"], {{f"GIT_{{number}}": "1" for number in range(100)}}), 0)
        """)
        assert result.outcome == "ok", result
        hidden, ordinary = seen.programs()
    assert variable in hidden.environment
    assert hidden.cut == {"environment"}
    assert (len(ordinary.environment), ordinary.cut) == (100, frozenset())
