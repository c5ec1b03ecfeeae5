"""Folders of exchanged weights, which a process that was killed cannot remove: the next one beside it does.

A folder is marked as its process's.  Without a mark, or with that of a process which may live, it is left alone:
another machine's processes are not known here.
"""

import os
import shutil
from pathlib import Path

from sandboxes import owner

PREFIX = "palestra-sglang-"
MARK = "owner"


def claim(folder: Path) -> None:
    """Make ``folder`` this process's, and remove what dead ones of this user left beside it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / MARK).write_text(owner.mark())
    for other in folder.parent.glob(f"{PREFIX}*/{MARK}"):
        if _is_of_a_dead_process(other):
            shutil.rmtree(other.parent, ignore_errors=True)


def _is_of_a_dead_process(mark: Path) -> bool:
    try:
        return mark.is_file() and mark.stat().st_uid == os.getuid() and owner.is_dead(mark.read_text())
    except FileNotFoundError:  # somebody else removes it
        return False
