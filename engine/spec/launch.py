"""What a worker hands to an engine job: one file, readable by its owner only."""

from engine.spec.allowed import Allowed
from engine.spec.model_files import CatalogFolder
from engine.spec.run import RunSpec
from engine.spec.strict import Strict


class Launch(Strict):
    """``<run_dir>/attempt-<n>.json``.  It holds the attempt's token: mode 0600, never logged, never an argument."""

    run_id: str
    attempt: int
    spec: RunSpec
    ingest_url: str
    """Where batches are posted: ``<base url>/ingest/v1/runs/<run_id>/batches``."""
    token: str
    run_dir: str
    catalog: CatalogFolder | None = None
    """What ``spec.model.catalog`` named when the run was submitted; absent where it names nothing."""
    judge: CatalogFolder | None = None
    """What ``spec.resources.judge.catalog`` named then."""
    dataset: CatalogFolder | None = None
    """What ``spec.dataset.catalog`` named then; its ``sha256`` is that of ``dataset.json``."""
    tasks: CatalogFolder | None = None
    """What ``spec.environment.catalog`` named then; its ``sha256`` is that of ``tasks.json``."""
    packages: list[CatalogFolder] = []
    """What each ``catalog`` of an environment package named then; their ``sha256`` is that of ``package.json``."""
    allowed: Allowed = Allowed()
    """What whoever runs the service allowed when this was written."""
