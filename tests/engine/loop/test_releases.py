"""What was quarantined and found benign, in runs whose generation and training overlap (docs/staleness.md)."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from engine.launch import exit_codes
from engine.rollout.requests import EpisodeRequest
from engine.rollout.worker import Collected
from engine.spec.run import RunSpec
from engine.training.columns import Updated, UpdateRequest
from tests.engine.loop.test_quarantine import SUSPECT, Suspicious, metrics_with, review_decision
from tests.engine.rigs import Rig

pytestmark = pytest.mark.timeout(600)

RATIO, DECIDED_IN = 1, 3


def decided(service: Any, decided_in: int) -> type[Suspicious]:
    """The suspect raises its alert in its episode; the review decision is there when update ``decided_in`` is over."""

    class Decided(Suspicious):
        async def collect_group(self, requests: Sequence[EpisodeRequest], *, enough: int, fewest: int) -> Collected:
            collected = await super().collect_group(requests, enough=enough, fewest=fewest)
            collected.trajectories = [
                trajectory.model_copy(update={"alerts": ["sandbox/1"], "masked_because": "quarantined"})
                if trajectory.id == SUSPECT
                else trajectory
                for trajectory in collected.trajectories
            ]
            return collected

        async def update(self, request: UpdateRequest) -> Updated:
            updated = await super().update(request)
            if len(self.batches) == decided_in:
                service.review_decisions = [review_decision("benign")]
                known = len(service.heartbeats)
                await asyncio.to_thread(service.wait_for, lambda service: len(service.heartbeats) > known + 2)
            return updated

    return Decided


def rig(spec: RunSpec, folder: Path, service: Any, decided_in: int, **response: Any) -> Rig:
    document = spec.model_dump()
    document["schedule"] |= {"async_ratio": RATIO, "steps": 6}
    document["environment"]["response"] |= response
    return Rig(RunSpec.model_validate(document), folder, service, decided(service, decided_in))


def suspects(service: Any) -> list[dict[str, Any]]:
    rollouts = [event["trajectory"] for event in service.of_kind("trajectory")]
    return [rollout for rollout in rollouts if rollout["id"] == SUSPECT]


def test_it_is_trained_on_once_however_old_it_is_and_nothing_else_is_so_old(
    small_spec: RunSpec, tmp_path: Path, service: Any
) -> None:
    assert rig(small_spec, tmp_path, service, DECIDED_IN).start().ended() == exit_codes.ENDED
    trained = [step for step in range(1, 7) if SUSPECT in Suspicious.last.learned(step)]
    assert len(trained) == 1
    assert trained[0] > DECIDED_IN
    *_, reported = suspects(service)
    assert (reported["sampled_at_version"], reported["trained_at_step"]) == (0, trained[0])
    assert reported["trained_at_step"] - 1 - reported["sampled_at_version"] > RATIO
    assert [turn["old_logprobs"] for turn in reported["segments"][0]["turns"]] == [
        turn["logprobs"] for turn in reported["segments"][0]["turns"]
    ], "the log-probs of the policy that sampled it"
    [settled] = service.of_kind("settled")
    assert (settled["outcome"], settled["step"]) == ("trained-on", trained[0])
    others = [event["trajectory"] for event in service.of_kind("trajectory")]
    ages = [
        rollout["trained_at_step"] - 1 - rollout["sampled_at_version"]
        for rollout in others
        if rollout["trained_at_step"] is not None and rollout["id"] != SUSPECT
    ]
    assert max(ages) <= RATIO


def test_a_decision_beyond_release_within_steps_is_too_late_at_any_ratio(
    small_spec: RunSpec, tmp_path: Path, service: Any
) -> None:
    running = rig(small_spec, tmp_path, service, DECIDED_IN, release_within_steps=2).start()
    assert running.ended() == exit_codes.ENDED
    assert all(SUSPECT not in Suspicious.last.learned(step) for step in range(1, 7))
    assert sum(event["values"]["train/released"] for event in metrics_with(service, "train/released")) == 0
