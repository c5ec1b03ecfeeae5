"""What tasks need that the sandboxes of a run do not give.  Found before the first of them is made."""

from collections.abc import Iterable, Iterator

from engine.environments.terminal.network import mode_of
from engine.environments.terminal.task_folder import TerminalTask
from engine.spec.problems import Problem
from sandboxes.images.reference import ImageRefused
from sandboxes.images.registry import Registry
from sandboxes.spec import SandboxSpec

BUILT = "task-"
"""The name of an image that was built for a task (``python -m engine tasks build``), before the first digits of the
task's digest."""


def image_name(task: TerminalTask) -> str:
    return BUILT + task.digest.removeprefix("sha256:")[:20]


def image_of(task: TerminalTask, spec: SandboxSpec) -> str | None:
    """The image that the task's sandboxes are made of.  Raises ``ImageRefused`` where the registry does not have it."""
    if spec.backend != "docker":
        return None
    if not task.needs_image:
        return spec.image
    return Registry().resolve(image_name(task)).digest


def lacking(tasks: Iterable[TerminalTask], spec: SandboxSpec, *, public_network: str) -> list[Problem]:
    """Every need of every task that ``spec`` does not meet."""
    return [problem for task in tasks for problem in _lacking(task, spec, public_network)]


def _lacking(task: TerminalTask, spec: SandboxSpec, public_network: str) -> Iterator[Problem]:
    environment, field = task.file.environment, f"{task.name}/task.toml: environment"
    wanted = (("memory_mb", environment.memory_mib, "memory_mib"), ("storage_mb", environment.disk_mib, "disk_mib"))
    for name, size_mib, limit in wanted:
        given = getattr(spec, limit)
        if size_mib is not None and size_mib > given:
            problem = f"the sandboxes of this environment have {given} MiB"
            remedy = f"raise environment.sandbox.{limit}, or ask for less in the task"
            yield Problem(f"{field}.{name}", size_mib, problem, remedy)
    if not task.needs_image and task.working_bytes > spec.disk_mib * 2**20:
        problem, remedy = f"the sandboxes of this environment have {spec.disk_mib} MiB", "raise sandbox.disk_mib"
        yield Problem(f"{task.name}/environment", task.working_bytes, problem, remedy)
    for of_tests in (False, True):
        if mode_of(task.file, of_tests=of_tests)[0] == "public" and public_network == "refuse":
            remedy = 'name the hosts (network_mode = "allowlist"), or set environment.public_network = "none"'
            yield Problem(f"{field}.network_mode", "public", "no sandbox reaches every host of the world", remedy)
            break
    yield from _image(task, spec)


def _image(task: TerminalTask, spec: SandboxSpec) -> Iterator[Problem]:
    if not task.needs_image:
        return
    image, plan = task.file.environment.docker_image, task.plan
    field = (
        f"{task.name}/environment/Dockerfile" if image is None else f"{task.name}/task.toml: environment.docker_image"
    )
    value = image or (plan.needs if plan is not None else "")
    if spec.backend != "docker":
        remedy = 'set environment.sandbox.backend = "docker", or leave it out where plain files are enough'
        yield Problem(field, value, "only sandboxes of Docker have an image", remedy)
        return
    try:
        image_of(task, spec)
    except ImageRefused as refusal:
        yield Problem(field, value, refusal.problem, f"build it: python -m engine tasks build {task.folder.parent}")
