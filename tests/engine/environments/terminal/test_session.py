"""Episodes of terminal tasks in real sandboxes: what is paid, what is not, and what raises an alert."""

import asyncio

import pytest
from pydantic import ValidationError

from engine.environments.contract import VerifierFailed
from engine.environments.imported import UnusableEnvironment
from engine.environments.terminal import environment as terminal_environment
from engine.environments.terminal import preparation
from engine.spec.environment import Terminal
from engine.spec.message import AssistantMessage, ToolRequest
from engine.spec.problems import problems_in
from tests.engine.environments.terminal.tasks import TASK_FILE, arena_of, environment_of, shell, write_task

RIGHT = shell("cp /app/in.txt /app/out.txt")
SOLVED = "cp in.txt out.txt; "
STARTED = "/tmp/started"
"""A pipe on which what is started in the background says that it runs: an episode may be over before."""
GRADER = f"echo > {STARTED}; until [ -e /tests/test.sh ]; do sleep 0.1; done; echo 1 > /logs/verifier/reward.txt"
DAEMON = f"""import os, time
open("{STARTED}", "w").close()
while not os.path.exists("/logs/verifier/reward.txt"): time.sleep(1)"""
AT_HOME = "$HOME/.local/lib/python3.11/site-packages"
CHEATS = {
    "written reward": "mkdir -p /logs/verifier; echo 1 > /logs/verifier/reward.txt",
    "written reward json": "mkdir -p /logs/verifier; echo '{\"reward\": 1}' > /logs/verifier/reward.json",
    "edited tests": "echo 'echo 1 > /logs/verifier/reward.txt' > /tests/test.sh",
    "sitecustomize": "echo 'import os' > sitecustomize.py",
    "usercustomize at home": f"mkdir -p {AT_HOME}; echo 'import os' > {AT_HOME}/usercustomize.py",
    "sleeping grader": f"mkfifo {STARTED}; nohup sh -c '{GRADER}' >/dev/null 2>&1 & read -r line < {STARTED}",
    "daemon of python": f"mkfifo {STARTED}; setsid python3 -c '{DAEMON}' >/dev/null 2>&1 & read -r line < {STARTED}",
    "shim in PATH": "mkdir -p bin; printf '#!/bin/sh\\necho 42\\n' > bin/cat; chmod +x bin/cat",
    "leftover solution": "echo 1 > /solution/solve.sh",
}


@pytest.fixture
async def arena(tmp_path):
    write_task(tmp_path / "tasks")
    async with arena_of(environment_of(tmp_path / "tasks"), tmp_path) as arena:
        yield arena


async def test_a_solved_task_is_paid_and_raises_no_alert(arena):
    played = await arena.play(RIGHT, AssistantMessage("done"))
    assert played.rewards is not None
    assert (played.rewards.success, played.grave) == (True, set())


async def test_programs_that_an_image_brings_along_are_the_tasks_own(tmp_path, monkeypatch):
    """Folders of a sandbox of namespaces stand in for an image, which only a container has."""
    files = "mkdir -p bin; cp /bin/true bin/test; echo > a.pth; echo 42 > in.txt"
    image = f"mkdir /tmp/image; cd /tmp/image; {files}"
    monkeypatch.setattr(preparation, "FOLDERS", f"{preparation.FOLDERS}; {image}")
    monkeypatch.setattr(preparation, "KEPT", "/tmp/image")
    monkeypatch.setattr(terminal_environment, "lacking", lambda tasks, spec, public_network: [])
    write_task(tmp_path / "tasks", task_file=TASK_FILE + '[environment]\ndocker_image = "sympy:1"\n')
    async with arena_of(environment_of(tmp_path / "tasks"), tmp_path) as arena:
        for end in ("true", "echo '# mended' >> bin/test", "mv bin/test bin/make"):
            played = await arena.play(shell(SOLVED + end))
            assert played.rewards is not None
            own = not end.endswith("make")
            assert (played.rewards.success, "tamper-scoring" in played.grave) == (own, not own), end


async def test_nothing_and_the_wrong_thing_are_not_paid(arena):
    for messages in ((), (AssistantMessage("done"),), (shell("true"),), (shell("echo 41 > out.txt"),)):
        played = await arena.play(*messages)
        assert played.rewards is not None
        assert (played.rewards.success, played.grave) == (False, set())


@pytest.mark.parametrize("cheat", CHEATS)
@pytest.mark.parametrize("solved", ["", SOLVED], ids=["unsolved", "solved"])
async def test_a_cheat_is_never_paid_and_raises_an_alert(arena, cheat, solved):
    """Not even one that has solved the task beside it."""
    played = await arena.play(shell(solved + CHEATS[cheat]))
    assert played.rewards is not None
    assert not played.rewards.success
    assert played.grave & {"tamper-scoring", "tamper-judgement", "tamper-interpreter"}


@pytest.mark.parametrize("odd", ["ln -s /app/in.txt out.txt", "mkfifo out.txt", "head -c 40000000 /dev/zero > out.txt"])
async def test_what_cannot_be_copied_is_the_policys_failure(arena, odd):
    played = await arena.play(shell(odd))
    assert played.rewards is not None
    assert not played.rewards.success


async def test_tools_read_write_and_edit_files(arena):
    def call(name: str, **arguments: object) -> AssistantMessage:
        return AssistantMessage.calling(name, arguments)

    played = await arena.play(
        call("read_file", path="in.txt"),
        call("write_file", path="new/deep.txt", content="one\ntwo\nthree\n"),
        call("read_file", path="/app/new/deep.txt", first_line=2, lines=1),
        call("edit_file", path="new/deep.txt", old="two", new="42"),
        call("edit_file", path="new/deep.txt", old="e", new="x"),
        call("read_file", path="none"),
        call("write_file", path="/usr/x", content="x"),
        call("read_file", path="new/deep.txt", first_line=9),
        shell("sed -n 2p new/deep.txt > out.txt"),
    )
    assert played.outputs == [
        "42\n", "14 bytes written to new/deep.txt", "two\n", "new/deep.txt changed",
        "Error: new/deep.txt: the text stands there 3 times; give one that stands there exactly once",
        "Error: No such file or directory", "Error: Read-only file system", "Error: new/deep.txt has 3 lines", "",
    ]  # fmt: skip
    assert played.rewards is not None
    assert played.rewards.success


async def test_several_calls_of_a_message_are_made_in_their_order(arena):
    requests = (ToolRequest("shell", {"command": "x=4"}), ToolRequest("shell", {"command": "echo ${x}2 > out.txt"}))
    played = await arena.play(AssistantMessage(requests=requests))
    assert played.rewards is not None
    assert played.rewards.success


@pytest.mark.parametrize(
    ("test", "message"),
    [
        ("#!/bin/sh\nexit 0\n", "neither reward.txt nor reward.json"),
        ("#!/bin/sh\necho nan > /logs/verifier/reward.txt\n", "nan"),
        ("#!/bin/sh\necho 2 > /logs/verifier/reward.txt\n", "not from 0 to 1"),
        ("#!/bin/sh\nsleep 100\n", "timeout"),
        ("#!/bin/sh\nhead -c 100000 /dev/zero > /logs/verifier/reward.txt\n", "more than 65536 bytes"),
        ("#!/bin/sh\nyes\n", "output"),
        ("#!/bin/sh\nkill -9 $$\n", "killed"),
        ("#!/no/such/interpreter\n", "neither reward.txt"),
        ("#!/bin/sh\nmkdir /logs/verifier/reward.txt\n", "cannot be read"),
        ("#!/bin/sh\nln -s /dev/zero /logs/verifier/reward.txt\n", "cannot be read"),
    ],
)
async def test_a_failing_verifier_is_no_reward(tmp_path, test, message):
    write_task(tmp_path / "tasks", task_file=TASK_FILE + "[verifier]\ntimeout_sec = 1.5\n", test=test)
    async with arena_of(environment_of(tmp_path / "tasks"), tmp_path) as arena:
        with pytest.raises(VerifierFailed, match=message):
            await arena.play(RIGHT)


async def test_partial_credit_is_paid_where_the_spec_says_so(tmp_path):
    write_task(tmp_path / "tasks", test="#!/bin/sh\necho 0.25 > /logs/verifier/reward.txt\n")
    for partial_credit, components in ((False, {}), (True, {"tests": 0.25})):
        environment = environment_of(tmp_path / "tasks", partial_credit=partial_credit)
        async with arena_of(environment, tmp_path / str(partial_credit)) as arena:
            rewards = (await arena.play(RIGHT)).rewards
            assert rewards is not None
            assert (rewards.success, rewards.components) == (False, components)


async def test_the_policys_time_is_bounded_over_all_calls(tmp_path):
    write_task(tmp_path / "tasks", task_file=TASK_FILE + "[agent]\ntimeout_sec = 1.0\n")
    environment = environment_of(tmp_path / "tasks")
    async with (
        arena_of(environment, tmp_path) as arena,
        environment.session(environment.tasks("train")[0], arena._watch()) as session,
    ):
        observation = await session.act(shell("sleep 60"))
    assert observation.done
    assert observation.calls[0].error_class == "timeout"


async def test_what_the_tests_find_is_what_was_handed_in_only(tmp_path):
    """Neither files that the task does not name, nor processes, nor the terminal's own files come along."""
    test = """\
#!/bin/sh
ls -A /work > /tmp/found
[ "$(cat /tmp/found)" = out.txt ] && [ -z "$(ls -A /dev/shm)" ]
echo $((1 - $?)) > /logs/verifier/reward.txt
"""
    write_task(tmp_path / "tasks", task_file=TASK_FILE + '[metadata]\nhanded_in = ["out.txt"]\n', test=test)
    async with arena_of(environment_of(tmp_path / "tasks"), tmp_path) as arena:
        played = await arena.play(shell("echo 42 > out.txt; echo x > more; sleep 50 &"))
        assert played.rewards is not None
        assert played.rewards.success
        missing = await arena.play(shell("echo x > more"))
        assert missing.rewards is not None
        assert not missing.rewards.success


async def test_an_allowlist_of_the_task_is_the_policy_of_its_sandbox(tmp_path):
    text = '[agent]\nnetwork_mode = "allowlist"\nallowed_hosts = ["files.example.org"]\n'
    write_task(tmp_path / "tasks", task_file=TASK_FILE + text)
    async with arena_of(environment_of(tmp_path / "tasks"), tmp_path) as arena:
        session = arena.environment.session(arena.environment.tasks("train")[0], arena._watch())
        async with session:
            await session.act(shell("true"))
            assert session._sandbox is not None
            policy = session._sandbox.spec.egress
            assert policy is not None
            assert [rule.hosts for rule in policy.rules] == [("files.example.org",)]
            assert policy.rules[0].ports == (80, 443)


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("[environment]\nmemory_mb = 100000\n", "environment.memory_mb"),
        ("[environment]\nstorage_mb = 10240\n", "environment.storage_mb"),
        ('[environment]\nnetwork_mode = "public"\n', "environment.network_mode"),
        ("[environment]\nallow_internet = true\n", "environment.network_mode"),
        ('[environment]\ndocker_image = "python:3"\n', "environment.docker_image"),
    ],
)
def test_a_task_that_asks_for_more_than_there_is_is_refused(tmp_path, text, field):
    write_task(tmp_path, task_file=TASK_FILE + text)
    with pytest.raises(UnusableEnvironment, match=f"copy/task.toml: {field}") as refused:
        environment_of(tmp_path)
    assert refused.value.problem.field == "environment.tasks"


@pytest.mark.parametrize(
    ("sandbox", "field"),
    [
        ({"terminal": False}, "sandbox.terminal"),
        ({"network": "none"}, "sandbox.network"),
        ({"output_bytes": 4096}, "sandbox.output_bytes"),
    ],
)
def test_sandboxes_that_are_of_no_use_to_a_shell_are_refused(sandbox, field):
    usual = Terminal(tasks="tasks").sandbox.model_dump()
    with pytest.raises(ValidationError) as refused:
        Terminal.model_validate({"tasks": "tasks", "sandbox": usual | sandbox})
    assert [problem.field for problem in problems_in(refused.value, Terminal)] == [field]


def test_a_folder_that_is_another_one_is_refused(tmp_path):
    write_task(tmp_path)
    digest = environment_of(tmp_path).task_set.digest
    environment_of(tmp_path, digest=digest)
    write_task(tmp_path, "further")
    with pytest.raises(UnusableEnvironment, match=r"environment\.digest"):
        environment_of(tmp_path, digest=digest)


def test_splits_never_overlap_and_are_the_same_everywhere(tmp_path):
    for number in range(10):
        write_task(tmp_path, f"task{number}")
    splits = [environment_of(tmp_path, heldout_share=0.3)._of_split for _ in range(2)]
    assert splits[0] == splits[1]
    names = {split: {task.name for task in tasks} for split, tasks in splits[0].items()}
    assert (len(names["heldout"]), len(names["train"])) == (3, 7)
    assert not names["heldout"] & names["train"]


async def test_a_cancelled_episode_gives_its_sandbox_back(arena):
    playing = asyncio.ensure_future(arena.play(shell("sleep 60")))
    await asyncio.sleep(1.5)
    playing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await playing
    played = await arena.play(RIGHT)
    assert played.rewards is not None
    assert played.rewards.success
