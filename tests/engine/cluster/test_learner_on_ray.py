"""What goes wrong in the learner's own process arrives in the loop's by its name, not as the death of an actor."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
STARTS_WORKERS = """
import asyncio, sys
from pathlib import Path
from engine.cluster.ray_token import use_private_token
use_private_token(Path(sys.argv[1]) / "ray_token")
from engine.cluster.ray_workers import RayWorkers, private_ray
from engine.spec.run import RunSpec

async def start():
    spec = RunSpec(name="t", recipe={"cold_start": {"steps": 1, "recorded": "nowhere.jsonl"}})
    folder = Path(sys.argv[1])
    workers = RayWorkers(
        spec, name="t", connection=private_ray(), report=lambda *_: None, security_log=folder, recordings=folder
    )
    try:
        await workers.start()
    except Exception as error:
        print(f"raised {type(error).__name__}: {error}")
    finally:
        await workers.close()

asyncio.run(start())
"""


@pytest.mark.slow
def test_bad_recordings_are_reported_by_name(tmp_path: Path) -> None:
    """Ray reads its environment when it is imported, so it needs a process of its own."""
    ended = subprocess.run(
        [sys.executable, "-c", STARTS_WORKERS, str(tmp_path)], cwd=ROOT, capture_output=True, text=True, timeout=200
    )
    assert "raised BadRecording: recipe.cold_start.recorded = 'nowhere.jsonl': there is no such file" in ended.stdout, (
        ended.stdout + ended.stderr
    )
