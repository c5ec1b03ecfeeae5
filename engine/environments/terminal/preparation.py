"""The working folder of a task, as it is before the first turn."""

from engine.environments.terminal.task_folder import TerminalTask
from sandboxes.interface import Sandbox

KEPT = "/.task"
"""Where an image that was built for a task keeps the files of the working folder, which every sandbox mounts anew."""
FOLDERS = 'mkdir -p "$(readlink -m /tests)" "$(readlink -m /solution)" "$(readlink -m /logs)/agent"'
"""Empty, so that whoever writes into one of them is seen to do so."""
COPY_S = 60.0


class TaskUnusable(Exception):
    """The files of a task cannot be put into a sandbox or listed there: they are too large for it, or were changed."""


async def prepared(sandbox: Sandbox, task: TerminalTask) -> None:
    """Lay the task's files over the sandbox's working folder.  Raises ``TaskUnusable``."""
    try:
        files = task.working_files()
        if files.entries:
            await sandbox.write_tree(files)
    except OSError as error:
        raise TaskUnusable(f"{task.name}: its files cannot be put into a sandbox: {error}") from error
    await _run(sandbox, task, FOLDERS)
    if task.needs_image:
        await _run(sandbox, task, f"cp -R {KEPT}/. /work/")


async def _run(sandbox: Sandbox, task: TerminalTask, script: str) -> None:
    result = await sandbox.exec(["/bin/sh", "-c", script], timeout_s=COPY_S)
    if result.outcome != "ok":
        raise TaskUnusable(f"{task.name}: {script!r} failed in a new sandbox: {result.stderr.strip()[-300:]}")
