"""What a policy left for the tests is found, whatever it is called; what lay there before is the task's own."""

import pytest

from engine.environments.terminal.evidence import MOST_FOUND, SHOWN_CHARACTERS, given_hooks, planted_files
from engine.environments.terminal.preparation import FOLDERS, TaskUnusable
from engine.environments.terminal.task_folder import TerminalTask, task_in
from engine.spec.environment import TERMINAL_SANDBOX
from sandboxes.interface import Sandbox
from sandboxes.opened import opened
from tests.engine.environments.terminal.tasks import TASK_FILE, write_task

PLANT = """
for number in range(250):
    open(b"/tests/" + b"\\xff" * 240 + b"\\n%d" % number, "w").close()
"""


@pytest.fixture
def task(tmp_path) -> TerminalTask:
    """One whose files an image brings along; a sandbox of namespaces stands in for it."""
    task = task_in(write_task(tmp_path, task_file=TASK_FILE + '[environment]\ndocker_image = "image:1"\n'))
    assert isinstance(task, TerminalTask)
    return task


async def ran(sandbox: Sandbox, *argv: str) -> None:
    result = await sandbox.exec(list(argv))
    assert result.outcome == "ok", result.stderr


@pytest.mark.parametrize(("output_bytes", "least"), [(TERMINAL_SANDBOX.output_bytes, MOST_FOUND), (2048, 10)])
async def test_many_files_with_long_names_that_are_no_text_are_found(output_bytes, least):
    async with opened(TERMINAL_SANDBOX.model_copy(update={"output_bytes": output_bytes})) as sandbox:
        await ran(sandbox, "sh", "-c", FOLDERS)
        await ran(sandbox, "python3", "-c", PLANT)
        found = await planted_files(sandbox)
    assert least <= len(found) <= MOST_FOUND
    assert all(len(leftover.subject) == SHOWN_CHARACTERS for leftover in found[:least])
    assert "/tests" in found[0].subject
    assert found[0].subject.endswith("...")


async def test_an_images_hooks_are_the_files_that_are_named_like_one_and_lie_in_the_working_folder(task):
    async with opened(TERMINAL_SANDBOX) as sandbox:
        names = ("a/bin/test", "git", "lib/x.pth", "sitecustomize.py", "usercustomize/__init__.py")
        for path in (*names, "testing", "a/make.py", "bin/env/x", "/tmp/make"):
            await sandbox.write_file(path, b"")
        assert await given_hooks(sandbox, task) == set(names)


async def test_a_task_whose_own_hooks_cannot_be_listed_is_unusable(task):
    async with opened(TERMINAL_SANDBOX.model_copy(update={"output_bytes": 1024})) as sandbox:
        await ran(sandbox, "python3", "-c", "for number in range(200): open(f'{number:09}.pth', 'w').close()")
        with pytest.raises(TaskUnusable, match=r"copy: .* cannot be listed: more than sandbox\.output_bytes"):
            await given_hooks(sandbox, task)
