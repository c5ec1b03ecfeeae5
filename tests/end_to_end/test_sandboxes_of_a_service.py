"""The engine alone, with sandboxes of a sandbox service: the same alerts, the same turns, the same quarantine."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sandboxes.service.tokens import Quota, Tokens
from tests.end_to_end.stack import ROOT
from tests.end_to_end.test_drill import drill

pytestmark = pytest.mark.slow


@pytest.fixture
def service(tmp_path: Path) -> Iterator[dict[str, str]]:
    """Where it is, as an engine is told."""
    tokens, log = tmp_path / "tokens.json", tmp_path / "service.log"
    token = Tokens(tokens).create("engine", "engine", Quota())[1]
    command = [sys.executable, "-m", "sandboxes", "serve", "--port", "0", "--tokens", str(tokens)]
    with log.open("w") as reported, subprocess.Popen(command, cwd=ROOT, stderr=reported) as process:
        while '"serving"' not in log.read_text():
            assert process.poll() is None, log.read_text()
            time.sleep(0.05)
        port = next(line["port"] for line in map(json.loads, log.read_text().splitlines()) if "port" in line)
        yield {"PALESTRA_SANDBOX_URL": f"http://127.0.0.1:{port}", "PALESTRA_SANDBOX_TOKEN": token}
        process.terminate()
    assert process.returncode == 0


def trained(folder: Path, place: str, environment: dict[str, str]) -> list[dict[str, Any]]:
    spec = drill("sandboxes", steps=2)
    spec["environment"] = spec["environment"] | {"sandbox": {"network": "watched", "place": place}}
    file = folder / f"{place}.toml"
    dumped = "import json, sys; from engine.spec.toml import toml_of; print(toml_of(json.load(sys.stdin)))"
    reported = subprocess.run(
        [sys.executable, "-c", dumped], input=json.dumps(spec), cwd=ROOT, capture_output=True, text=True, check=True
    )
    file.write_text(reported.stdout)
    command = [sys.executable, "-m", "engine", "train", str(file), "--run-dir", str(folder / place), "--in-process"]
    done = subprocess.run(command, cwd=ROOT, env=os.environ | environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [line for path in sorted((folder / place / "spool").glob("*.jsonl")) for line in path.open("rb")]
    return [json.loads(line) for line in lines]


def quarantined(events: list[dict[str, Any]]) -> dict[str, int]:
    """The trajectories, and the turn of the first alert of each.

    An alert freezes the sandbox.  Whether it stands still before the call has answered is a race: one rollout ends
    there, another has a further turn or two, and an alert for those.
    """
    first: dict[str, int] = {}
    for event in events:
        if event["kind"] == "alert" and event["quarantined"]:
            origin = event["origin"]
            first[origin["trajectory"]] = min(origin["turn"], first.get(origin["trajectory"], origin["turn"]))
    return first


def test_sandboxes_of_a_service_are_watched_as_those_that_are_here(service: dict[str, str], tmp_path: Path) -> None:
    here, there = trained(tmp_path, "here", {}), trained(tmp_path, "service", service)
    assert quarantined(here)
    assert quarantined(there) == quarantined(here)
    for events in (here, there):
        masked = {
            event["trajectory"]["id"]
            for event in events
            if event["kind"] == "trajectory" and event["trajectory"]["masked_because"] == "quarantined"
        }
        assert masked == quarantined(events).keys()
