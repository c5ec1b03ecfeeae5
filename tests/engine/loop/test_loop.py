"""The loop obeys, survives a bad episode, and says why it ends."""

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from engine.cluster import members
from engine.cluster.in_process import InProcessWorkers
from engine.cluster.workers import ActorLost
from engine.launch import exit_codes
from engine.loop import generator_requirements, loop
from engine.loop.state import RunState
from engine.models.refusal import ModelFolderRefused
from engine.rollout.requests import EpisodeRequest
from engine.rollout.worker import Collected
from engine.spec.problems import Problem
from engine.spec.run import RunSpec
from engine.spec.trajectory import Trajectory
from engine.training.columns import Updated, UpdateRequest
from tests.engine.rigs import Rig, entered


@pytest.fixture
def rig(small_spec: RunSpec, tmp_path: Path, service: Any) -> Callable[..., Rig]:
    def made(workers: type[InProcessWorkers] = InProcessWorkers, **schedule: Any) -> Rig:
        changed = {"schedule": small_spec.schedule.model_copy(update=schedule)}
        return Rig(small_spec.model_copy(update=changed), tmp_path, service, workers)

    return made


class Hanging(InProcessWorkers):
    """Its rollouts never come back from step 2."""

    async def collect(self, requests: Sequence[EpisodeRequest]) -> Collected:
        if requests[0].step == 2:
            with self._waiting.on("rollout-0"):
                await asyncio.Event().wait()
        return await super().collect(requests)


def test_a_cancel_interrupts_a_collection_that_never_ends(rig: Callable[..., Rig], service: Any) -> None:
    running = rig(Hanging).start()
    service.wait_for(entered("collect", 2))
    service.desired = "cancel"
    assert running.ended() == exit_codes.ENDED
    last = service.events[-1]
    assert (last["kind"], last["outcome"]) == ("finished", "cancelled")
    assert last["summary"]["steps"] == 1
    assert service.numbers == list(range(1, last["summary"]["events_emitted"] + 1))


def test_the_heartbeat_names_phase_step_and_whom_the_loop_waits_for(rig: Callable[..., Rig], service: Any) -> None:
    running = rig(Hanging).start()
    service.wait_for(
        lambda service: (
            service.heartbeats
            and service.heartbeats[-1].waiting_for == "rollout-0"
            and service.heartbeats[-1].step == 2
        )
    )
    heartbeat = service.heartbeats[-1]
    assert (heartbeat.phase, heartbeat.total_steps) == ("collect", 5)
    assert heartbeat.eta_s is not None
    service.desired = "cancel"
    running.ended()


def test_a_stall_ends_the_attempt_and_names_phase_actor_and_time(rig: Callable[..., Rig], service: Any) -> None:
    running = rig(Hanging, stall_timeout_s=15.0).start()
    assert running.ended() == exit_codes.ATTEMPT_FAILED
    assert "phase collect of step 2 waits for rollout-0 since" in str(running.attempt.reason)
    assert running.attempt.reason in [event["message"] for event in service.of_kind("log")]
    assert service.of_kind("finished") == []


def test_a_pause_saves_and_waits_and_the_rest_is_as_if_it_had_not_been(
    rig: Callable[..., Rig], service: Any, undisturbed: Any
) -> None:
    running = rig().start()
    service.wait_for(entered("collect", 3))
    service.desired = "pause"
    service.wait_for(lambda service: service.heartbeats[-1].phase == "paused")
    beats, step = len(service.heartbeats), service.heartbeats[-1].step
    assert step in running.checkpoints.steps()
    service.wait_for(lambda service: len(service.heartbeats) > beats + 3)
    assert service.heartbeats[-1].phase == "paused"
    service.desired = "run"
    assert running.ended() == exit_codes.ENDED
    weights = running.checkpoints.path(5) / "model" / "model.safetensors"
    assert weights.read_bytes() == undisturbed.weights(5)


def test_a_cancel_ends_a_pause(rig: Callable[..., Rig], service: Any) -> None:
    running = rig().start()
    service.desired = "pause"
    service.wait_for(lambda service: service.heartbeats and service.heartbeats[-1].phase == "paused")
    service.desired = "cancel"
    assert running.ended() == exit_codes.ENDED
    assert service.events[-1]["outcome"] == "cancelled"


def test_a_replaced_attempt_stops_and_says_nothing_more(rig: Callable[..., Rig], service: Any) -> None:
    running = rig(Hanging).start()
    service.wait_for(entered("collect", 2))
    service.attempt = 2
    assert running.ended() == exit_codes.ATTEMPT_FAILED
    assert "replaced" in str(running.attempt.reason)
    assert service.of_kind("finished") == []


class Lossy(InProcessWorkers):
    """Loses the first episode of every step, and all of the second group but one."""

    async def collect(self, requests: Sequence[EpisodeRequest]) -> Collected:
        collected = await super().collect(requests)
        kept = [
            trajectory
            for trajectory in collected.trajectories
            if trajectory.purpose != "train" or _place(trajectory) not in LOST
        ]
        lost = len(collected.trajectories) - len(kept)
        return Collected(kept, Counter({"sandbox-lost": lost}) if lost else Counter())


def _place(trajectory: Trajectory) -> tuple[int, int]:
    """Which of the six prompts of its step, and which of its rollouts."""
    return trajectory.prompt % 6, trajectory.member


LOST = {(0, 0), (1, 0), (1, 1), (1, 2)}


def test_lost_episodes_are_counted_and_named_and_the_run_goes_on(rig: Callable[..., Rig], service: Any) -> None:
    assert rig(Lossy, steps=2).start().ended() == exit_codes.ENDED
    steps = {
        event["step"]: event["values"] for event in service.of_kind("metric") if "train/discarded" in event["values"]
    }
    assert {step: values["train/discarded"] for step, values in steps.items()} == {1: 4, 2: 4}
    messages = [event["message"] for event in service.of_kind("log")]
    assert "step 1: 4 episodes discarded: sandbox-lost" in messages
    trained = [
        event["trajectory"] for event in service.of_kind("trajectory") if event["trajectory"]["purpose"] == "train"
    ]
    assert {(rollout["prompt"] % 6, rollout["member"]) for rollout in trained} & {
        *LOST,
        (1, 3),
    } == set()  # nobody to compare (1, 3) with
    assert len(trained) == 2 * (24 - 5)


class Hopeless(InProcessWorkers):
    async def collect(self, requests: Sequence[EpisodeRequest]) -> Collected:
        if requests[0].purpose == "train":
            return Collected([], Counter({"sandbox-lost": len(requests)}))
        return await super().collect(requests)


def test_a_step_without_any_episode_fails_the_run_for_good(rig: Callable[..., Rig], service: Any) -> None:
    assert rig(Hopeless).start().ended() == exit_codes.RUN_FAILED
    last = service.events[-1]
    assert (last["kind"], last["outcome"]) == ("finished", "failed")
    assert last["reason"] == "no episode of step 1 could be played (24 sandbox-lost)"


class Unloadable(InProcessWorkers):
    async def start(self) -> None:
        raise ModelFolderRefused(Problem("model.path", "qwen", "transformers cannot load it", "use another model"))


def test_a_model_that_a_member_refuses_fails_the_run_for_good_in_one_line(
    rig: Callable[..., Rig], service: Any
) -> None:
    assert rig(Unloadable).start().ended() == exit_codes.RUN_FAILED
    assert service.events[-1]["reason"] == "model.path = 'qwen': transformers cannot load it; use another model"
    assert "Traceback" not in str(service.events)


class Dying(InProcessWorkers):
    async def update(self, request: UpdateRequest) -> Updated:
        raise ActorLost("learner died: of old age")


def test_a_lost_learner_fails_the_attempt_but_not_the_run(rig: Callable[..., Rig], service: Any) -> None:
    assert rig(Dying).start().ended() == exit_codes.ATTEMPT_FAILED
    assert service.of_kind("log")[-1]["message"] == "learner died: of old age"
    assert service.of_kind("finished") == []


@pytest.mark.parametrize(
    ("goes_on", "total_bytes", "code"),
    [
        (True, 2**40, exit_codes.ATTEMPT_FAILED),
        (False, 2**40, exit_codes.RUN_FAILED),
        (True, 2**20, exit_codes.RUN_FAILED),
    ],
    ids=["taken by others", "at its first start", "not there at all"],
)
def test_a_run_that_had_its_memory_fails_only_in_the_attempts_in_which_others_have_it(
    rig: Callable[..., Rig],
    small_spec: RunSpec,
    service: Any,
    monkeypatch: pytest.MonkeyPatch,
    goes_on: bool,
    total_bytes: int,
    code: int,
) -> None:
    monkeypatch.setattr(generator_requirements, "free_memory", lambda: 2**20)
    monkeypatch.setattr(loop, "total_memory", lambda: total_bytes)
    running = rig()
    if goes_on:
        state = RunState(spec=small_spec, cold_started=True)
        running.checkpoints.complete(running.checkpoints.begin(), state)
    assert running.start().ended() == code
    assert "this machine has 1.0 MiB free" in str(running.attempt.reason)
    assert len(service.of_kind("finished")) == (code == exit_codes.RUN_FAILED)


def test_without_supervised_stages_nobody_is_asked_and_checkpoint_0_is_written_all_the_same(
    small_spec: RunSpec, tmp_path: Path, service: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nobody_asks(*_: Any, **__: Any) -> Any:
        raise AssertionError("demonstrations are made for nobody")

    monkeypatch.setattr(members, "demonstration_writer_for", nobody_asks)
    spec = small_spec.model_copy(
        update={
            "recipe": small_spec.recipe.model_copy(update={"stages": ()}),
            "schedule": small_spec.schedule.model_copy(update={"steps": 1}),
        }
    )
    running = Rig(spec, tmp_path, service).start()
    assert running.ended() == exit_codes.ENDED
    assert running.checkpoints.steps() == [0, 1]
    assert service.events[-1]["outcome"] == "succeeded"
    assert "cold-start" not in {event["phase"] for event in service.of_kind("phase")}
    assert not [event for event in service.of_kind("metric") if "sft/loss" in event["values"]]


def test_a_finished_run_tells_its_phases_metrics_and_trajectories(undisturbed: Any) -> None:
    events = undisturbed.events()
    begun = [event["phase"] for event in events if event["kind"] == "phase" and event["seconds"] is None]
    step = ["sync-weights", "collect", "score", "credit", "update"]
    assert begun == [
        "start", "cold-start", "checkpoint", "evaluate", *step, *step, "checkpoint", *step, "evaluate",
        *step, "checkpoint", *step, "evaluate", "checkpoint", "finish",
    ]  # fmt: skip
    ended = [event["phase"] for event in events if event["kind"] == "phase" and event["seconds"] is not None]
    assert ended == begun
    [values] = [
        event["values"]
        for event in events
        if event["kind"] == "metric" and event["step"] == 4 and "train/loss" in event["values"]
    ]
    assert values.keys() >= TRAIN_KEYS
    [at_three] = [
        event["values"]
        for event in events
        if event["kind"] == "metric" and event["step"] == 3 and "eval/success_greedy" in event["values"]
    ]
    assert {"eval/success_sampled", "eval/tool_error_rate", "eval/level_1_greedy"} <= at_three.keys()
    summary = events[-1]["summary"]
    assert summary["trajectories_stored"] == 5 * 24 + 2 * (8 + 4 + 8)
    assert set(summary["success_greedy"]) == {"before_rl", "after"}
    assert summary["events_emitted"] == len(events)
    assert summary["tokens_per_s"] > 0
    assert summary["peak_rss_mib"] > 50
    json.dumps(summary)


TRAIN_KEYS = {
    "train/reward", "train/success", "train/tool_error_rate", "train/tool_calls", "train/turns",
    "train/response_tokens", "train/truncated", "train/entropy", "train/loss", "train/grad_norm",
    "train/clip_fraction", "train/ratio_max",
    "train/mismatch_kl", "train/lr", "train/staleness_mean", "train/staleness_max", "train/discarded",
    "perf/tokens_per_s", "perf/step_seconds", "perf/eta_seconds", "perf/collect_seconds", "perf/update_seconds",
    "perf/rss_mib",
}  # fmt: skip


def test_prompts_of_a_purpose_are_numbered_over_the_whole_run(undisturbed: Any) -> None:
    trajectories = [event["trajectory"] for event in undisturbed.of_kind("trajectory")]
    for purpose in ("train", "eval-greedy", "eval-sampled"):
        own = [trajectory for trajectory in trajectories if trajectory["purpose"] == purpose]
        prompts = {trajectory["prompt"]: trajectory["sampled_at_version"] for trajectory in own}
        assert sorted(prompts) == list(range(len(prompts)))
        assert [version for _, version in sorted(prompts.items())] == sorted(prompts.values())
        assert undisturbed.state(5)["prompts"][purpose] == len(prompts)
        assert {trajectory["id"] for trajectory in own} == {
            f"{purpose}-{trajectory['prompt']}-{trajectory['member']}" for trajectory in own
        }


def test_sampled_tokens_carry_the_version_that_sampled_them_and_training_ones_their_credit(undisturbed: Any) -> None:
    trajectories = [event["trajectory"] for event in undisturbed.of_kind("trajectory")]
    assert {
        version
        for trajectory in trajectories
        if trajectory["purpose"] == "train"
        for turn in trajectory["segments"][0]["turns"]
        for version in turn["policy_versions"]
    } == set(range(5))
    for trajectory in trajectories:
        version = trajectory["sampled_at_version"]
        trains = trajectory["purpose"] == "train" and trajectory["masked_because"] is None
        assert trajectory["trained_at_step"] == (version + 1 if trains else None)
        for turn in trajectory["segments"][0]["turns"]:
            assert set(turn["policy_versions"]) <= {version}
            if trajectory["purpose"] == "train":
                assert len(turn["advantages"]) == len(turn["old_logprobs"]) == len(turn["token_ids"])
                assert turn["old_logprobs"] == pytest.approx(turn["logprobs"], abs=1e-4)
            else:
                assert turn["advantages"] is None
