"""Runs as earlier versions of Palestra stored them, made with their code.

``events.jsonl`` is of a spool, ``state.json`` of the checkpoint after step 1.
"""

import json
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent


def events_of(version: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (FOLDER / version / "events.jsonl").read_text().splitlines()]


def state_of(version: str) -> bytes:
    return (FOLDER / version / "state.json").read_bytes()
