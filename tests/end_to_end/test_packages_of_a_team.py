"""A team's own environment package through the whole service, over REST alone: it crashes on purpose now and then, is
brought, played, published, tried and trained on, and its crashes are counted."""

import hashlib
from typing import Any

import pytest

from tests.end_to_end.stack import Stack, small_spec
from tests.engine.environments.process.packages import CODE, wheel_of

pytestmark = [pytest.mark.stack, pytest.mark.slow]
WHEEL = "guessing-1.0-py3-none-any.whl"
EVERY = 7
"""Episodes after which a process ends without a word."""


def brought(stack: Stack, content: bytes, file: str) -> dict[str, Any]:
    """The version that an upload becomes, once it was played."""
    files = [{"name": file, "bytes": len(content)}]
    upload = stack.ask("POST", "/package-uploads", json={"name": "guessing", "files": files})
    digest = hashlib.sha256(content).hexdigest()
    stack.ask("PUT", f"/package-uploads/{upload['id']}/files/0/parts/0?sha256={digest}", content=content)
    done = stack.ask("POST", f"/package-uploads/{upload['id']}/complete", json={"check": {}})
    at = f"/package-versions/{done['id']}"
    stack.until("the check", lambda: stack.ask("GET", at)["state"] in ("stored", "failed"), timeout_s=300, every_s=1)
    return stack.ask("GET", at)  # type: ignore[no-any-return]


def tried(stack: Stack, environment: dict[str, Any]) -> dict[str, Any]:
    published = stack.ask("POST", "/environments", json={"name": "guessing", "environment": environment})
    tries = f"/environments/{published['id']}/tries"
    run_id = stack.ask("POST", tries, json={"players": ["nop", "script"], "script": '{"answer": "3"}'})["id"]
    ended = stack.until_ended(run_id, timeout_s=300)
    assert ended["state"] == "succeeded", ended["failure_reason"]
    [found] = stack.ask("GET", tries)["items"]
    return found  # type: ignore[no-any-return]


@pytest.mark.timeout(1200)
def test_a_package_that_crashes_now_and_then_is_brought_tried_and_trained_on(stack: Stack) -> None:
    broken = brought(stack, wheel_of(CODE.replace("range(40)", "range(0)")), WHEEL)
    assert any("there is no task" in fault for fault in broken["report"]["faults"])
    with pytest.raises(AssertionError, match="409 .*there is no task"):
        stack.ask("POST", f"/package-versions/{broken['id']}/publish")
    version = brought(stack, wheel_of(), WHEEL)
    assert (version["state"], version["report"]["faults"]) == ("stored", []), version
    assert stack.ask("POST", f"/package-versions/{version['id']}/publish")["name"] == "guessing@1"
    environment = {"id": "package", "catalog": "guessing@1", "max_turns": 2, "max_turn_tokens": 4}
    found = tried(stack, environment)
    assert {played["player"]: played["success"] for played in found["played"]} == {"nop": 0.0, "script": 0.1}
    spec = small_spec("guessing", steps=3) | {
        "environment": environment | {"options": f'{{"every": {EVERY}}}'},
        "dataset": {"train_tasks": 40, "heldout_tasks": 16},
        "recipe": {"preset": "grpo", "stages": []},
    }
    run = stack.launch(spec)
    with pytest.raises(AssertionError, match=r"409 .*is in use"):
        stack.ask("DELETE", f"/package-versions/{version['id']}")
    ended = stack.until_ended(run, timeout_s=500)
    assert (ended["state"], ended["step"]) == ("succeeded", 3), ended["failure_reason"]
    measured = [event["values"] for event in stack.events(run) if event["kind"] == "metric"]
    assert sum(values.get("train/environment_lost", 0) for values in measured) >= 1
    trajectories = [event["trajectory"] for event in stack.events(run) if event["kind"] == "trajectory"]
    assert {trajectory["task"]["question"] for trajectory in trajectories} <= {f"{number}?" for number in range(10)}
