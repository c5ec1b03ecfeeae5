"""Which files a version of a dataset may be made of: JSON lines, CSV and Parquet, and none that unpacks or runs."""

import re

from engine.spec.problems import Problem

SUFFIXES = (".jsonl", ".ndjson", ".csv", ".tsv", ".parquet")
LARGEST_FILE_BYTES = 64 * 2**30
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+=-]{0,199}")
_COMPRESSED = (".gz", ".zip", ".bz2", ".xz", ".zst", ".tar", ".tgz", ".7z")


def problem_with_dataset_file(name: str, size: int, field: str) -> Problem | None:
    """Why a file of this name cannot be part of a dataset; None where it can."""
    if not _NAME.fullmatch(name):
        remedy = "name it with letters, digits and . _ - + = alone, in no folder"
        return Problem(field, name, f"{name!r} is no name of a dataset's file", remedy)
    lower = name.lower()
    if lower.endswith(_COMPRESSED):
        return Problem(field, name, f"{name} is compressed or an archive", "unpack it and give what is in it")
    if lower.endswith(".json"):
        remedy = "write each of its objects on one line, as .jsonl"
        return Problem(field, name, f"{name} is one JSON document, which cannot be read row by row", remedy)
    if not lower.endswith(SUFFIXES):
        return Problem(field, name, f"{name} is no file of a dataset", f"give one of: {', '.join(SUFFIXES)}")
    if size > LARGEST_FILE_BYTES:
        message = f"{name} has {size} bytes, and may have {LARGEST_FILE_BYTES}"
        return Problem(field, name, message, "cut it into several files")
    return None
