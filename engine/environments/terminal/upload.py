"""Files of ours in a folder of a sandbox that is not its working folder."""

import io
import tarfile

from sandboxes.interface import Sandbox
from sandboxes.tree import Tree

UNPACK_S = 60.0
UNPACK = """\
import os, sys, tarfile
place = os.path.realpath(sys.argv[1])
os.makedirs(place, exist_ok=True)
with tarfile.open(fileobj=sys.stdin.buffer, mode="r|") as archive:
    for entry in archive:
        path = os.path.join(place, entry.name)
        if entry.isdir():
            os.makedirs(path, exist_ok=True)
            continue
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(archive.extractfile(entry).read())
        os.chmod(path, entry.mode)
"""


async def uploaded(sandbox: Sandbox, tree: Tree, place: str) -> None:
    """Raises ``OSError`` where they cannot be written: no space, no permission."""
    result = await sandbox.exec(
        ["python3", "-I", "-S", "-c", UNPACK, place], stdin=_packed(tree), timeout_s=UNPACK_S, alone=True
    )
    if result.outcome != "ok":
        reason = (result.stderr.strip().splitlines() or [result.outcome])[-1]
        raise OSError(f"{place}: {reason}")


def _packed(tree: Tree) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for entry in tree.entries:
            packed = tarfile.TarInfo(entry.path)
            if entry.content is None:
                packed.type, packed.mode = tarfile.DIRTYPE, 0o755
                archive.addfile(packed)
                continue
            executable = entry.executable or entry.path.endswith(".sh")
            packed.size, packed.mode = len(entry.content), 0o755 if executable else 0o644
            archive.addfile(packed, io.BytesIO(entry.content))
    return buffer.getvalue()
