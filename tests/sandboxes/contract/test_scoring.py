"""What every backend promises of files that go from one scoring to another, and of the scoring that scores them."""

import re
from pathlib import Path

import pytest

from sandboxes.backends.namespaces import replies
from sandboxes.backends.namespaces.inside import frames
from sandboxes.backends.namespaces.link import Reply
from sandboxes.opened import opened
from sandboxes.pool import Pool
from sandboxes.scoring import scoring_sandbox
from sandboxes.tree import Tree, TreeEntry, TreeLimits, TreeRefused
from tests.sandboxes.asking import cell_output, printed, python

ROOT = Path(__file__).parents[3]
LISTED = "cd /work && find . -mindepth 1 | sort"
LEFT_BEHIND = """
    import os, signal
    os.makedirs("out/sub"); os.makedirs(".local/lib")
    for path, text in {"out/a.py": "print(41)", "out/sub/b": "b", "secret": "s", "sitecustomize.py": "evil"}.items():
        open(path, "w").write(text)
    os.chmod("out/a.py", 0o4755)
    os.link("secret", "out/hard")
    open("/tmp/elsewhere", "w").write("e")
"""


async def test_nothing_of_the_source_is_there_but_the_chosen_files(sandbox, spec):
    await python(sandbox, LEFT_BEHIND)
    async with scoring_sandbox(spec, sandbox, paths=["out"]) as scoring:
        assert await printed(scoring, LISTED) == "./out\n./out/a.py\n./out/hard\n./out/sub\n./out/sub/b\n"
        assert await scoring.read_file("out/hard") == b"s"
        modes = "import os; print([oct(os.stat(p).st_mode) for p in ('out/a.py', 'out/hard')])"
        assert await cell_output(scoring, modes) == "['0o100755', '0o100644']"
        assert await printed(scoring, "ls /tmp") == ""


async def test_files_do_not_change_any_more_once_they_are_read(sandbox, spec):
    """What a process of the policy does later is too late: it is dead before the first byte is read."""
    await python(
        sandbox,
        """
        import os, time
        if os.fork() == 0:
            os.setsid()
            while True:
                time.sleep(0.001)
                for turn in range(10):
                    with open("/work/next", "w") as file: file.write(str(turn) * 1000)
                    os.replace("/work/next", "/work/answer")
                    try: os.symlink("/etc/passwd", "/work/next"); os.replace("/work/next", "/work/link")
                    except OSError: pass
        while not os.path.lexists("/work/link"): time.sleep(0.01)
        """,
    )
    async with scoring_sandbox(spec, sandbox, paths=["answer"]) as scoring:
        copied = await scoring.read_file("answer")
        assert len(set(copied)) == 1
        assert await sandbox.read_file("answer") == copied
        assert await printed(scoring, LISTED) == "./answer\n"


NOT_COPIED = (
    ("os.symlink('/etc/passwd', 'a')", ["a"], "path = 'a': it is a symbolic link"),
    (
        "os.symlink('/work/real', 'a'); os.mkdir('real'); open('real/f', 'w')",
        ["a/f"],
        "path = 'a': it is a symbolic link",
    ),
    ("os.mkdir('a'); os.symlink('..', 'a/up')", ["a"], "path = 'a/up': it is a symbolic link"),
    ("os.symlink('/proc/1', 'a')", ["a/environ"], "path = 'a': it is a symbolic link"),
    ("os.mkfifo('a')", ["a"], "neither a file nor a folder"),
    ("import socket; socket.socket(socket.AF_UNIX).bind('a')", ["a"], "neither a file nor a folder"),
    ("None", ["a"], "it is not there"),
    ("open('a', 'w')", ["a/b"], "neither a file nor a folder"),
    ("open('a', 'w'); os.chmod('a', 0)", ["a"], "permissions"),
    ("os.mkdir('a'); os.chmod('a', 0o111)", ["a"], "permissions"),
    ("os.mkdir('a'); open('a/b', 'w'); os.chmod('a', 0o400)", ["a/b"], "permissions"),
    ("open('a', 'w'); os.chmod('/work', 0o400)", ["a"], "permissions"),
    ("open('a', 'w'); os.chmod('/work', 0)", ["a"], "permissions"),
    ("os.chmod('/work', 0)", ["."], "permissions"),
    ("open(b'\\xff\\xfe', 'w')", ["."], "no UTF-8"),
    ("os.makedirs('/'.join('a' * 70))", ["a"], "too deep"),
    ("[open(str(n), 'w') for n in range(101)]", ["."], "limits.entries"),
    ("open('a', 'wb').write(bytes(1001))", ["a"], "limits.size_bytes"),
    ("open('a', 'w').truncate(2**20)", ["a"], "limits.size_bytes"),
    ("open('a', 'wb').write(bytes(600)); os.link('a', 'b')", ["a", "b"], "limits.size_bytes"),
)


async def test_what_is_not_copied_is_refused_with_its_path(sandbox):
    for made, paths, why in NOT_COPIED:
        assert (await sandbox.run_python(f"import os; os.chdir('/work')\n{made}")).outcome == "ok"
        with pytest.raises(TreeRefused) as refused:
            await sandbox.read_tree(paths, TreeLimits(entries=100, size_bytes=1000))
        assert why in str(refused.value), (made, str(refused.value))
        await sandbox.reset()


async def test_a_partial_tree_leaves_out_what_is_not_copied_and_what_tools_fill(sandbox):
    await python(sandbox, """
        import os
        for folder in ("src", "node_modules", ".git", "src/__pycache__"): os.makedirs(folder)
        for path in ("src/a.py", "b.py", "node_modules/c.js", ".git/config", "src/__pycache__/a.pyc", ".coveragerc"):
            open(path, "w").write(path)
        os.symlink("b.py", "link"); os.mkfifo("fifo"); open("large", "w").write("x" * 70_000)
    """)  # fmt: skip
    tree = await sandbox.read_tree(["missing", "."], TreeLimits(entries=100, size_bytes=10_000, partial=True))
    assert tree.files == {path: path.encode() for path in ("src/a.py", "b.py", ".coveragerc")}
    for limits in (TreeLimits(entries=3, partial=True), TreeLimits(size_bytes=5, partial=True)):
        assert len((await sandbox.read_tree(["."], limits)).files) < 3


async def test_a_path_out_of_work_is_the_callers_mistake(sandbox):
    for path in (
        "../etc/passwd",
        "/etc/passwd",
        "a/../../etc",
        "/work/../etc",
        "",
        "a\0",
        "/workshop",
        "\ud800",
        "x" * 1025,
    ):
        with pytest.raises(ValueError, match="path = "):
            await sandbox.read_tree([path])
    with pytest.raises(ValueError, match="paths = "):
        await sandbox.read_tree([])


async def test_a_tree_is_written_over_what_is_there_and_through_nothing(sandbox):
    await python(sandbox, """
        import os, time
        open("/tmp/aim", "w").write("as it was"); os.mkdir("/tmp/folder")
        os.symlink("/tmp/aim", "link")
        open("one", "w").write("1"); os.link("one", "two")
        os.symlink("/tmp/folder", "out"); os.mkfifo("fifo")
    """)  # fmt: skip
    await sandbox.write_tree(Tree.of({"link": b"new", "two": b"2", "fifo": b"f", "deep/er/file": b"d"}))
    reported = "import os; print([open(p).read() for p in ('/tmp/aim', 'link', 'one', 'two', 'fifo', 'deep/er/file')])"
    assert await cell_output(sandbox, reported) == "['as it was', 'new', '1', '2', 'f', 'd']"
    with pytest.raises(TreeRefused, match="path = 'out': it is a symbolic link"):
        await sandbox.write_tree(Tree.of({"out/file": b"x"}))
    assert await printed(sandbox, "ls /tmp/folder") == ""
    with pytest.raises(OSError, match="space|directory"):
        await sandbox.write_tree(Tree.of({"deep": b"x"}))


async def test_a_tree_larger_than_the_disk_costs_no_sandbox(make_spec):
    async with opened(make_spec(disk_mib=1)) as sandbox:
        with pytest.raises(OSError, match="space"):
            await sandbox.write_tree(Tree.of({"a": bytes(2**20 + 1)}))
        await sandbox.write_tree(Tree.of({"a": bytes(2**19), "b": b"b"}))
        tree = await sandbox.read_tree(["."])
        assert tree.files == {"a": bytes(2**19), "b": b"b"}


async def test_a_pool_gives_the_sandbox_that_scores(sandbox, spec):
    await sandbox.write_file("solution.py", b"print(6 * 7)")
    async with Pool(spec, 1) as pool:
        for _ in range(2):
            async with scoring_sandbox(pool, sandbox, paths=["solution.py"]) as scoring:
                result = await scoring.exec(["python3", "-I", "solution.py"], alone=True)
                assert (result.stdout, result.exit_code) == ("42\n", 0)
                await scoring.run_python("open('left', 'w')")


async def test_a_source_with_nothing_to_score_makes_no_sandbox(sandbox):
    def no_pool():
        raise AssertionError("nothing is scored, and yet a scoring was asked for")

    pool = type("NoPool", (), {"acquire": lambda self: no_pool()})()
    with pytest.raises(TreeRefused, match="not there"):
        async with scoring_sandbox(pool, sandbox, paths=["solution.py"]):
            pass


@pytest.mark.parametrize(
    "payload",
    [
        frames.pack_entry("../up", frames.FILE, b""),
        frames.pack_entry("/etc/passwd", frames.FILE, b""),
        frames.pack_entry("a/./b", frames.FILE, b""),
        frames.pack_entry("", frames.FOLDER, b""),
        frames.pack_entry("a", frames.FILE, bytes(101)),
        frames.pack_entry("a", frames.FOLDER, b"") * 11,
        b"\3" + frames.pack_entry("a", frames.FILE, b"")[1:],
        frames.pack_entry("a", frames.FILE, b"content")[:-1],
        b"\1",
        frames.ENTRY_HEAD.pack(frames.FILE, 1, 0) + b"\xff",
    ],
)
def test_an_agent_that_answers_with_other_files_is_not_believed(payload):
    with pytest.raises(frames.MalformedFrame):
        replies.tree(Reply(frames.DATA, payload), TreeLimits(entries=10, size_bytes=100))


def test_a_tree_of_what_would_not_be_copied_cannot_be_made():
    for path in ("..", "a/..", "/etc/x", "a//b", "./a", ""):
        with pytest.raises(ValueError, match="path = "):
            TreeEntry(path, b"")
    with pytest.raises(ValueError, match="entries"):
        TreeLimits(entries=10**6)
    with pytest.raises(ValueError, match="size_bytes"):
        TreeLimits(size_bytes=0)


SOLUTIONS = {
    "a right one": ("a, b = map(int, input().split())\nprint(a + b)", True),
    "a wrong one": ("print(41)", False),
    "one that leaves early": ("import os; os._exit(0)", False),
    "one that says that all tests passed": ("print('passed'); raise SystemExit(0)", False),
    "none": (None, False),
}


async def test_the_example_of_the_documentation_scores(sandbox, spec):
    guide = (ROOT / "docs" / "environments.md").read_text()
    example = re.search(r"```python\n(.*?)```", guide.partition("## Scoring by running code")[2], re.DOTALL)
    known: dict = {}
    exec(example[1], known)
    for name, (text, right) in SOLUTIONS.items():
        if text is not None:
            await sandbox.write_file("solution.py", text.encode())
        assert await known["score"](sandbox, spec) is right, name
        await sandbox.reset()
