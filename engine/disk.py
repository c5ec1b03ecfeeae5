"""What has to be on the disk before anything else happens: fsync, and small files that are replaced whole."""

import os
from pathlib import Path


def write_durably(path: Path, content: bytes) -> None:
    """Replace a small file so that after a power cut it is the old one or the new one."""
    partial = path.with_name(path.name + ".partial")
    with partial.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    partial.rename(path)
    fsync(path.parent)


def fsync(path: Path) -> None:
    """Wait until a file, or the entries of a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
