"""Sources as a worker leaves them for the process that prepares them."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from engine.datasets.preparation import prepare
from engine.datasets.request import REQUEST, SOURCE
from engine.spec.dataset_preparation import Preparation
from engine.spec.dataset_report import PreparationReport

SUMS = [{"prompt": f"How much is {n} plus {n}?", "answer": str(2 * n)} for n in range(2000)]


def folder_with(tmp_path: Path, files: dict[str, bytes], preparation: dict[str, Any] | None = None) -> Path:
    folder = tmp_path / "preparing"
    (folder / SOURCE).mkdir(parents=True)
    for name, content in files.items():
        (folder / SOURCE / name).write_bytes(content)
    request = Preparation.model_validate({"mapping": {"prompt": "prompt"}} | (preparation or {}))
    (folder / REQUEST).write_text(request.model_dump_json())
    return folder


def json_lines(rows: Sequence[Any]) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def prepared(
    tmp_path: Path, files: dict[str, bytes], preparation: dict[str, Any] | None = None
) -> tuple[Path, PreparationReport]:
    """The sealed folder, and what was reported."""
    folder = folder_with(tmp_path, files, preparation)
    return folder / "sealed", prepare(folder, seconds=600)


def with_faults(lines: list[bytes]) -> list[bytes]:
    """Seven lines that cannot be taken, each in its own way."""
    lines = list(lines)
    lines[10] = b'{"prompt": "no end"'
    lines[300] = b'{"prompt": 7, "answer": "x"}'
    lines[700] = b'{"answer": "nobody asked"}'
    lines[1100] = b'{"prompt": "\xff\xfe", "answer": "x"}'
    lines[1500] = b'["a", "list"]'
    lines[1700] = b'{"prompt": "twice", "prompt": "twice", "answer": "x"}'
    lines[1999] = b'{"prompt": "ok", "answer": {"a": 1}}'
    return lines
