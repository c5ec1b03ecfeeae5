"""What goes wrong in the learner's own process, or in another rank's, arrives in the loop's by its name."""

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
from engine.cluster.ray_connection import private_ray
from engine.cluster.ray_workers import RayWorkers
from engine.spec.run import RunSpec

async def start():
    spec = RunSpec(name="t", recipe={"stages": [{"data": {"kind": "recordings", "file": "nowhere.jsonl"}, "steps": 1}]})
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
@pytest.mark.soak  # test_recordings.py refuses them by name, and below an error of the learner arrives by its name
def test_bad_recordings_are_reported_by_name(tmp_path: Path) -> None:
    """Ray reads its environment when it is imported, so it needs a process of its own."""
    ended = subprocess.run(
        [sys.executable, "-c", STARTS_WORKERS, str(tmp_path)], cwd=ROOT, capture_output=True, text=True, timeout=200
    )
    assert "raised BadRecording: recipe.stages.data.file = 'nowhere.jsonl': there is no such file" in ended.stdout, (
        ended.stdout + ended.stderr
    )


LEARNS_A_FILE = STARTS_WORKERS.replace(
    """{"kind": "recordings", "file": "nowhere.jsonl"}, "steps": 1}""",
    """{"kind": "chat", "file": "chat.jsonl"}, "steps": 2, "batch_size": 2}""",
).replace(
    """        await workers.start()
""",
    """        await workers.start()
        while not (read := await workers.read_on()).is_done:
            pass
        print("read", len(read.digests), (await workers.stage(0)).counts["examples"])
        print("learned", (await workers.supervised(0, 1, 2))["loss"] > 0)
""",
)
GOOD = '{"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]}\n'


@pytest.mark.slow
@pytest.mark.parametrize(
    ("lines", "reported"),
    [
        (GOOD * 3, ["read 1 3", "learned True"]),
        pytest.param(
            GOOD + "[]\n",
            ["raised BadRecording:", "chat.jsonl: line 2 = []: this is no JSON object"],
            marks=pytest.mark.soak,
        ),
    ],
    ids=["learned", "refused"],
)
def test_the_learner_of_a_cluster_reads_a_file_of_chat_or_says_what_is_wrong_with_it(
    tmp_path: Path, lines: str, reported: list[str]
) -> None:
    (tmp_path / "chat.jsonl").write_text(lines)
    ended = subprocess.run(
        [sys.executable, "-c", LEARNS_A_FILE, str(tmp_path)], cwd=ROOT, capture_output=True, text=True, timeout=200
    )
    assert [words for words in reported if words not in ended.stdout] == [], ended.stdout + ended.stderr


LOSES_A_RANK = """
import asyncio, os, signal, sys
from pathlib import Path
from engine.cluster.ray_token import use_private_token
use_private_token(Path(sys.argv[1]) / "ray_token")
from engine.cluster.ray_connection import private_ray
from engine.cluster.ray_workers import RayWorkers
from engine.spec.run import RunSpec

async def start():
    spec = RunSpec(
        name="t",
        recipe={"stages": [{"data": {"kind": "demonstrations", "count": 16}, "steps": 4, "batch_size": 4}]},
        resources={"trainer_ranks": 2, "threads": 1, "kv_slots": 4, "sandboxes": 1},
    )
    reported, folder = [], Path(sys.argv[1])
    workers = RayWorkers(
        spec, name="t", connection=private_ray(), report=lambda level, line: reported.append(line), security_log=folder
    )
    try:
        await workers.start()
        await workers.stage(0)
        print("loss", (await workers.supervised(0, 1, 2))["loss"] > 0)
        await workers.sync_weights(0)
        (pid,) = (int(line.split()[-1]) for line in reported if line.startswith("rank-1 is process"))
        os.kill(pid, signal.SIGSTOP)
        asyncio.get_running_loop().call_later(1.0, os.kill, pid, signal.SIGKILL)
        await workers.supervised(0, 3, 4)
    except Exception as error:
        print(f"raised {type(error).__name__}: {error}")
    finally:
        await workers.close()

asyncio.run(start())
"""


@pytest.mark.slow
def test_a_rank_that_dies_ends_what_the_learner_does_by_its_name(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", LOSES_A_RANK, str(tmp_path)], cwd=ROOT, capture_output=True, text=True, timeout=300
    )
    assert "loss True" in ended.stdout, ended.stdout + ended.stderr
    assert "raised RankLost: rank 1 died" in ended.stdout, ended.stdout + ended.stderr
