"""Where a run's Ray is: one of its own, or the cluster of its job.  ``RayWorkers`` enters one of the two."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

import ray

OBJECT_STORE_BYTES = 100 * 2**20


@contextmanager
def private_ray() -> Iterator[None]:
    """A Ray of this process's own, which ends with it (``ray_token.use_private_token`` first).

    Its sockets are in a short path under /tmp: a socket's path holds 107 characters.
    """
    os.environ.pop("RAY_ADDRESS", None)
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp", ignore_cleanup_errors=True) as sockets:
        ray.init(
            address="local",
            include_dashboard=False,
            object_store_memory=OBJECT_STORE_BYTES,
            log_to_driver=False,
            _temp_dir=sockets,
        )
        try:
            yield
        finally:
            ray.shutdown()


@contextmanager
def cluster_ray(namespace: str) -> Iterator[None]:
    """The cluster that this job belongs to (RAY_ADDRESS is set by Ray's job server)."""
    ray.init(namespace=namespace, log_to_driver=False)
    try:
        yield
    finally:
        ray.shutdown()
