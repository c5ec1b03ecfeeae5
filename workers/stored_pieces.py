"""Files stored piece by piece, so that storing can stop and go on between any two of them.

The journal names the pieces that are on the disk; what a kill -9 leaves is at most a piece that is stored again.
"""

import hashlib
import json
import os
import time
from collections.abc import Callable
from pathlib import Path

from engine.disk import write_durably
from engine.spec.model_files import PIECE_BYTES, StoredFile
from workers.sources import SourceFile, SourceRefused

JOURNAL = ".journal.json"


def store_pieces(folder: Path, files: list[SourceFile], *, until: float, report: Callable[[int], None]) -> bool:
    """Store pieces that are not stored yet; return whether all are.  ``report`` is called with the bytes so far.

    Raises SourceRefused for a file that has changed in between, and whatever ``report`` raises.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    stored = journal(folder)
    sizes = {file.name: file.size for file in files}
    if changed := [name for name, file in stored.items() if sizes.get(name) != file.bytes]:
        raise SourceRefused("files", changed[0], f"{changed[0]} has changed while it was stored", "import it again")
    for file in files:
        for number in range(len(stored[file.name].pieces) if file.name in stored else 0, _pieces(file.size)):
            if time.monotonic() > until:
                return False
            digest = _store_piece(folder / file.name, file, number)
            before = stored[file.name].pieces if file.name in stored else []
            stored[file.name] = StoredFile(bytes=file.size, pieces=[*before, digest])
            _write_journal(folder, stored)
            report(sum(_stored_bytes(name) for name in stored.values()))
        if file.size == 0:
            (folder / file.name).touch(mode=0o600)
            stored[file.name] = StoredFile(bytes=0, pieces=[])
    _write_journal(folder, stored)
    return True


def _pieces(size: int) -> int:
    return -(-size // PIECE_BYTES)


def _stored_bytes(file: StoredFile) -> int:
    return min(file.bytes, len(file.pieces) * PIECE_BYTES)


def _store_piece(path: Path, file: SourceFile, number: int) -> str:
    """The piece's SHA-256, once the piece is on the disk."""
    offset = number * PIECE_BYTES
    data = file.read(offset, min(PIECE_BYTES, file.size - offset))
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600), "wb") as opened:
        opened.seek(offset)
        opened.write(data)
        opened.truncate()
        opened.flush()
        os.fsync(opened.fileno())
    return hashlib.sha256(data).hexdigest()


def journal(folder: Path) -> dict[str, StoredFile]:
    try:
        written = json.loads((folder / JOURNAL).read_bytes())
    except FileNotFoundError:
        return {}
    return {name: StoredFile.model_validate(file) for name, file in written.items()}


def _write_journal(folder: Path, stored: dict[str, StoredFile]) -> None:
    text = json.dumps({name: file.model_dump() for name, file in stored.items()})
    write_durably(folder / JOURNAL, text.encode())
