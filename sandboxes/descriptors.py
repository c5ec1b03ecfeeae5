"""What it means that no more files can be opened: no sandbox now, and one that is there goes on."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from sandboxes.interface import SandboxUnavailable

REMEDIES = {
    errno.EMFILE: "raise this process's limit on open files (ulimit -n, LimitNOFILE=), or keep fewer sandboxes",
    errno.ENFILE: "raise the machine's limit on open files (sysctl fs.file-max), or keep fewer sandboxes",
}
"""By error number."""


@contextmanager
def unavailable_without() -> Iterator[None]:
    """Raises ``SandboxUnavailable`` for an ``OSError`` that says that no more files can be opened."""
    try:
        yield
    except OSError as error:
        if error.errno not in REMEDIES:
            raise
        raise SandboxUnavailable(f"{error.strerror}: {REMEDIES[error.errno]}") from error
