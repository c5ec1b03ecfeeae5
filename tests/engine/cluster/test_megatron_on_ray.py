"""A run on Ray whose trainer is Megatron on two ranks, one of which is killed."""

import re
from pathlib import Path

import pytest

from tests.engine.cluster.ray_runs import LONGEST_S, RUN, RayRun, assert_each_trained_once, enters, kill

MEGATRON = """
trainer = "megatron"
trainer_ranks = 2
[resources.megatron]
tensor = 2
"""


@pytest.mark.backends
@pytest.mark.megatron
@pytest.mark.timeout(3000)
def test_a_killed_rank_ends_the_attempt_by_name_and_the_next_trains_on_nothing_twice(tmp_path: Path) -> None:
    run = RayRun(tmp_path, RUN + MEGATRON)
    with run.started() as process:
        run.wait_for(process, enters("collect", 3))
        kill(run.pid_of("rank-1"))
        assert process.wait(LONGEST_S) != 0
    assert re.search("error: rank.1 (is gone|died)", run.output)  # by the leader, or by who watches the actors
    with run.started("--resume") as again:
        assert again.wait(LONGEST_S) == 0, run.output
    events = run.events()
    begun = [event["from_step"] for event in events if event["kind"] == "started"]
    assert begun[0] == 0
    assert begun[1] in (2, 3)
    assert_each_trained_once(events)
    roles = {key.removeprefix("perf/cpu_") for event in events for key in event.get("values", ()) if "cpu_" in key}
    assert roles == {"loop", "learner", "rank", "generator", "rollout"}
