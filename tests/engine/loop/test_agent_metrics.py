"""What a step reports of agents."""

from engine.loop.metrics import agent_metrics
from engine.spec.agent import AgentRecord, RefusedCalls
from engine.spec.trajectory import Segment, Task, Trajectory, Turn


def rollout(record, segments):
    turn = Turn(context_ids=[1], context_text="", token_ids=[2], pieces=[""], logprobs=[0.0], policy_versions=[0])
    return Trajectory(
        id="train-0-0", purpose="train", prompt=0, member=0, sampled_at_version=0,
        task=Task(id="t", split="train", level=1, question="", answer=""),
        segments=[Segment(turns=[turn])] * segments, stop_reason="done", answer=None, success=False, reward=0.0,
        rewards={}, agent=record,
    )  # fmt: skip


def test_ends_and_refused_requests_are_counted_over_all_agents_and_others_report_nothing():
    crashed = AgentRecord(
        exit="crashed", seconds=1.0, unfinished=2,
        refused=[RefusedCalls(kind="budget", number=3), RefusedCalls(kind="key", number=1)],
    )  # fmt: skip
    done = AgentRecord(exit="done", seconds=1.0, dropped_tokens=7, refused=[RefusedCalls(kind="budget", number=1)])
    assert agent_metrics([rollout(crashed, 3), rollout(done, 1)]) == {
        "agents/done": 1, "agents/crashed": 1, "agents/silent": 0, "agents/over-budget": 0, "agents/killed": 0,
        "agents/frozen": 0, "agents/refused/budget": 4, "agents/refused/key": 1, "agents/unfinished_calls": 2,
        "agents/dropped_tokens": 7, "agents/segments": 2.0,
    }  # fmt: skip
    assert agent_metrics([rollout(None, 1)]) == {}
