"""Images of tasks for sandboxes of Docker: built ahead, once for each content of a task, and named by its digest.

Every sandbox mounts its working folder anew, so what the task's own image has in /app is moved to where a new sandbox
fetches it from (``preparation.KEPT``), and /app becomes a name of /work.
"""

import shutil
import tempfile
from pathlib import Path

from engine.environments.terminal.dockerfile_plan import NAME
from engine.environments.terminal.folder_files import content_of
from engine.environments.terminal.preparation import KEPT
from engine.environments.terminal.task_folder import TerminalTask
from engine.environments.terminal.task_needs import image_name
from sandboxes.images.importing import REPOSITORY, build
from sandboxes.images.reference import ImageRefused
from sandboxes.images.registry import Image, Registry

OWNER = "tasks"
LAYOUT = f"""
USER 0
RUN mkdir -p /app /work && mv /app {KEPT} && ln -s /work /app && chmod -R a+rX {KEPT}
WORKDIR /work
"""


def built(task: TerminalTask) -> Image:
    """The task's image, made now unless it is registered.  Raises ``ImageRefused``, ``SandboxUnavailable``.

    The Dockerfile's lines run as the daemon lets a build run them, without a network (docs/images.md).
    """
    registry, name = Registry(), image_name(task)
    try:
        return registry.resolve(name)
    except ImageRefused:
        pass  # it is made now
    with tempfile.TemporaryDirectory(prefix="palestra-image-") as context:
        _write_context(task, Path(context))
        return build(registry, Path(context), name, None, OWNER)


def _write_context(task: TerminalTask, context: Path) -> None:
    for file in task.files:
        if file.path.startswith("environment/"):
            place = context / file.path.removeprefix("environment/")
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(content_of(task.folder, file))
            place.chmod(0o755 if file.executable else 0o644)
    image = task.file.environment.docker_image
    if image is not None:
        shutil.rmtree(context)
        context.mkdir()
        (context / NAME).write_text(f"FROM {REPOSITORY}/{image}\n")
    with open(context / NAME, "a", encoding="utf-8") as recipe:
        recipe.write(LAYOUT)
