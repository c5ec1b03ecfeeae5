"""A team's own dataset through the whole service, over REST alone: 2,000 lines with 7 faults are repaired, published
and trained on."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from engine.environments import dataset_reader
from tests.end_to_end.stack import Stack, small_spec
from tests.engine.datasets.sources import SUMS, with_faults

pytestmark = [pytest.mark.stack, pytest.mark.slow]
SERVER = Path(__file__).parents[1] / "engine" / "environments" / "qa" / "mcp_server.py"
SPLITS = ("train", "heldout")
WHOLE = [json.dumps(row).encode() for row in SUMS]
PREPARATION = {
    "mapping": {"prompt": "prompt", "answer": "answer"},
    "splitting": {
        "kind": "share", "splits": [{"name": "train", "share": 0.9}, {"name": "heldout", "share": 0.1}],
    },
    "duplicates": {"similarity": None},
}  # fmt: skip


ENVIRONMENT = {
    "id": "qa",
    "max_turn_tokens": 12,
    "tools": ["python", "files"],
    "mcp": [{"name": "calc", "command": ["python3", "server.py"], "start_timeout_s": 60}],
    "files": [{"path": "server.py", "content": SERVER.read_text()}],
    "verifier": {"kind": "numeric", "relative_tolerance": 0.0},
    "components": [
        {"name": "brief", "verifier": {"kind": "python-function", "source": "def verify(result, row):\n    return 1"}}
    ],
}


def uploaded(stack: Stack, lines: list[bytes]) -> dict[str, Any]:
    content = b"\n".join(lines)
    files = [{"name": "questions.jsonl", "bytes": len(content)}]
    upload = stack.ask("POST", "/dataset-uploads", json={"name": "sums", "files": files})
    digest = hashlib.sha256(content).hexdigest()
    stack.ask("PUT", f"/dataset-uploads/{upload['id']}/files/0/parts/0?sha256={digest}", content=content)
    done = stack.ask("POST", f"/dataset-uploads/{upload['id']}/complete", json={"preparation": PREPARATION})
    address = f"/dataset-versions/{done['id']}"
    stack.until("the rows are read", lambda: stack.ask("GET", address)["state"] in ("ready", "failed"))
    return stack.ask("GET", address)


def tried(stack: Stack) -> dict[str, Any]:
    """What a try of the environment over the published version came to, by the players."""
    published = stack.ask("POST", "/environments", json={"name": "sums", "environment": ENVIRONMENT})
    code = {"code": "print(40 + 2)"}
    script = f'{json.dumps({"call": "python", "arguments": code})}\n{{"answer": "no number"}}'
    wanted = {"players": ["oracle", "nop", "script"], "script": script, "tasks": 4, "dataset": "sums@1"}
    tries = f"/environments/{published['id']}/tries"
    run_id = stack.ask("POST", tries, json=wanted)["id"]
    ended = stack.until_ended(run_id)
    assert ended["state"] == "succeeded", ended
    [found] = stack.ask("GET", tries)["items"]
    assert (found["run"]["id"], found["doubts"]) == (run_id, [])
    address = f"/runs/{run_id}/trajectories"
    [scripted, *_] = stack.ask("GET", f"{address}?purpose=eval-script&limit=9")["items"]
    [turn, _] = stack.ask("GET", f"{address}/{scripted['id']}")["segments"][0]["turns"]
    assert turn["tool_calls"][0]["output"].strip() == "42"
    return {played["player"]: played["success"] for played in found["played"]}


def trained(stack: Stack) -> str:
    """The id of a run of three steps over the published version."""
    spec = small_spec("sums", steps=3) | {
        "environment": ENVIRONMENT,
        "dataset": {"catalog": "sums@1", "heldout_tasks": 16},
        "recipe": {"preset": "grpo", "stages": []},
    }
    run_id = stack.launch(spec)
    ended = stack.until_ended(run_id)
    assert (ended["state"], ended["step"]) == ("succeeded", 3), ended
    return run_id


def trained_trajectories(stack: Stack, run_id: str) -> list[dict[str, Any]]:
    address = f"/runs/{run_id}/trajectories"
    page = stack.ask("GET", f"{address}?purpose=train&limit=100")
    return [stack.ask("GET", f"{address}/{item['id']}") for item in page["items"]]


@pytest.mark.soak  # test_dataset_store.py repairs and publishes such a file, test_own_questions.py trains
def test_seven_faults_are_mended_and_the_published_version_is_searched_and_trained_on(stack: Stack) -> None:
    broken = uploaded(stack, with_faults(WHOLE))
    assert (broken["state"], broken["report"]["faults"]) == ("failed", 7)
    lines = sorted(fault["line"] for fault in broken["report"]["shown_faults"])
    mended = with_faults(WHOLE)
    for line in lines:
        mended[line - 1] = WHOLE[line - 1]
    version = uploaded(stack, mended)
    assert (version["state"], version["name"], version["rows"]) == ("ready", "sums@1", 2000)
    rows = f"/dataset-versions/{version['id']}/rows"
    found = {split: stack.ask("GET", f"{rows}?split={split}&search=1999%20plus")["items"] for split in SPLITS}
    assert [item["row"]["answer"] for items in found.values() for item in items] == ["3998"]
    with pytest.raises(AssertionError, match=r"422 .*dataset\.catalog"):
        stack.ask("POST", "/runs", json={"name": "x", "dataset": {"catalog": "sums@1"}})

    assert tried(stack) == {"oracle": 1.0, "nop": 0.0, "script": 0.0}
    run_id = trained(stack)
    assert stack.steps_of(run_id, "train/reward") == [1, 2, 3]
    asked = {
        trajectory["task"]["question"]: trajectory["task"]["answer"]
        for trajectory in trained_trajectories(stack, run_id)
    }
    team = next((stack.home / "datasets" / "catalog").iterdir())
    with dataset_reader.open(team / version["sha256"]) as reader:
        held = {row.prompt: row.answer for row in reader.rows("train")}
    assert len(asked) >= 4
    assert asked.items() <= held.items()
