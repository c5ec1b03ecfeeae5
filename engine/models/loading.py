"""Whether transformers can build a folder's network, found out by a process that may die of it.

A configuration may ask for a million layers, and transformers has a thousand ways to stumble over one.  So the network
is built without weights in a process of its own, with little memory and time, and its names and shapes are compared
with those of the files.  It takes some seconds, most of them for importing torch; families that ``architecture.py``
knows need none of it.
"""

import json
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

from engine.models.refusal import FIELD, ModelFolderRefused
from engine.spec.problems import Problem

MOST_SECONDS = 60
"""The limit of processor time, and one and a half times that by the clock."""
MOST_BYTES = 4 * 2**30
"""The memory that it may write to."""
_REMEDY = "give a decoder-only language model that transformers knows by itself"


def loading_problem(folder: Path) -> Problem | None:
    """Return why transformers would not load the folder; None where it would."""
    command = [sys.executable, "-m", "engine.models.loading", str(folder)]
    try:
        answer = subprocess.run(
            command, capture_output=True, text=True, timeout=1.5 * MOST_SECONDS, check=False, stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired:
        return Problem(FIELD, str(folder), f"its network was not built after {1.5 * MOST_SECONDS:.0f} s", _REMEDY)
    if answer.returncode == 0:
        found: Any = json.loads(answer.stdout.splitlines()[-1])
        return Problem(**found) if found is not None else None
    last_line = answer.stderr.strip().splitlines()[-1:] or [f"the process ended with {answer.returncode}"]
    message = f"its network cannot be built, or needs more than {MOST_SECONDS} s or {MOST_BYTES} bytes: {last_line[0]}"
    return Problem(FIELD, str(folder), message, _REMEDY)


def main(folder: str) -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (MOST_SECONDS, MOST_SECONDS))
    resource.setrlimit(resource.RLIMIT_DATA, (MOST_BYTES, MOST_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    from engine.models.pretrained import check_loading

    try:
        check_loading(Path(folder))
    except ModelFolderRefused as refused:
        print(json.dumps(refused.problem.as_dict()))
    else:
        print(json.dumps(None))


if __name__ == "__main__":
    main(*sys.argv[1:])
