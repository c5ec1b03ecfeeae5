"""Sets of terminal tasks on their way into the catalog."""

from engine.spec.task_files import TASKS_MANIFEST, TaskManifest
from webapp import queue
from webapp.catalog.models import StoredTask, TaskSetVersion
from workers.app import app
from workers.checked_store import CheckedStore
from workers.task_checks import TASK_CHECKS
from workers.version_work import TASKS_LOCK


def _write_rows(version: TaskSetVersion, manifest: TaskManifest) -> None:
    rows = [
        StoredTask(
            version=version, name=task.name, digest=task.digest, level=task.level, has_solution=task.has_solution,
            needs_image=task.needs_image, bytes=task.bytes,
        )
        for task in manifest.tasks
    ]  # fmt: skip
    StoredTask.objects.bulk_create(rows, batch_size=2000)


TASK_STORE = CheckedStore(
    check=TASK_CHECKS,
    lock=TASKS_LOCK,
    reader="engine.environments.terminal",
    manifest_file=TASKS_MANIFEST,
    manifest=TaskManifest.model_validate_json,
    keep=_write_rows,
    divide="divide the set, and look for enormous files",
)


@app.task(name=queue.STORE_TASKS, soft_time_limit=200, time_limit=240)
def store_tasks(version_id: str, progress_mark: str) -> None:
    """Do what is next for the version.  A late message, and a second one at the same time, do nothing."""
    TASK_STORE.carry_out(version_id, progress_mark)
