"""The loop with judges, selection, and no RL at all: what it tells, and why it ends."""

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from engine.cluster.in_process import InProcessWorkers
from engine.failures import NonFiniteGradient
from engine.launch import exit_codes
from engine.rollout.requests import EpisodeRequest
from engine.rollout.worker import Collected
from engine.spec.rollout_group import RolloutGroup, rollouts_in
from engine.spec.run import RunSpec
from engine.training.columns import CreditColumns, Updated, UpdateRequest
from engine.training.recordings import BadRecording
from tests.engine.rigs import Rig, entered

Made = Callable[..., Rig]


class Crowded(ThreadingHTTPServer):
    request_queue_size = 128
    daemon_threads = True


class Court:
    """A judge's endpoint in a thread.  ``says`` is told how many steps there are; None never answers."""

    def __init__(self) -> None:
        self.says: Callable[[int], str | None] = right
        self.asked = 0
        court = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                court.asked += 1
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                steps = int(body["messages"][1]["content"].split("STEPS (total: ")[1].split(")")[0])
                while (text := court.says(steps)) is None and not court.closed.wait(0.05):
                    pass
                answer = json.dumps({"choices": [{"message": {"content": text or ""}}]}).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *args: object) -> None:
                pass

        self.closed = threading.Event()
        self._server = Crowded(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    @property
    def judge(self) -> dict[str, Any]:
        return {"kind": "llm", "endpoint": f"http://127.0.0.1:{self._server.server_port}/v1", "model": "m"}

    def close(self) -> None:
        self.closed.set()
        self._server.shutdown()
        self._server.server_close()


def right(steps: int) -> str:
    return "\n".join(f"Step {number} Judgment: {'GOOD' if number % 2 else 'BAD'}" for number in range(1, steps + 1))


@pytest.fixture
def court() -> Iterator[Court]:
    court = Court()
    yield court
    court.close()


@pytest.fixture
def rig(small_spec: RunSpec, tmp_path: Path, service: Any) -> Made:
    def made(
        workers: type[InProcessWorkers] = InProcessWorkers, *, schedule: dict[str, Any] | None = None, **recipe: Any
    ) -> Rig:
        document = small_spec.model_dump()
        document["recipe"] = {**document["recipe"], "preset": None, **recipe}
        document["schedule"] |= {"steps": 2} | (schedule or {})
        return Rig(RunSpec.model_validate(document), tmp_path, service, workers)

    return made


def judged_by(court: Court, **fields: Any) -> dict[str, Any]:
    return {"kind": "attribution", "judge": {**court.judge, **fields}}


def step_values(service: Any) -> list[dict[str, float]]:
    return [event["values"] for event in service.of_kind("metric") if "train/reward" in event["values"]]


def warnings(service: Any) -> list[str]:
    return [event["message"] for event in service.of_kind("log") if event["level"] == "warning"]


def test_a_judges_verdicts_stand_on_the_turns_and_in_the_metrics(rig: Made, service: Any, court: Court) -> None:
    assert rig(credit=judged_by(court)).start().ended() == exit_codes.ENDED
    turns = [
        event["trajectory"]["segments"][0]["turns"]
        for event in service.of_kind("trajectory")
        if event["trajectory"]["purpose"] == "train"
    ]
    for some in turns:
        assert [turn["verdict"] for turn in some] == ["bad" if number % 2 else "good" for number in range(len(some))]
    for values in step_values(service):
        assert values["judge/calls"] + values["judge/cached"] == 24
        assert values["judge/failed"] == 0
    begun = [event["phase"] for event in service.of_kind("phase") if event["seconds"] is None and event["step"] == 1]
    assert begun == ["sync-weights", "collect", "score", "judge", "credit", "update"]


def test_a_judge_that_talks_nonsense_is_reported_and_costs_only_its_verdicts(
    rig: Made, service: Any, court: Court
) -> None:
    court.says = lambda _: "I would rather not."
    assert rig(credit=judged_by(court, retries=0)).start().ended() == exit_codes.ENDED
    assert [values["judge/failed"] for values in step_values(service)] == [24, 24]
    assert [warning for warning in warnings(service) if "JudgeUnparseable of 24 trajectories" in warning]
    assert service.events[-1]["outcome"] == "succeeded"


def test_a_cancel_ends_judging_at_once(rig: Made, service: Any, court: Court) -> None:
    court.says = lambda _: None
    running = rig(credit=judged_by(court, timeout_s=600.0)).start()  # far longer than ``ended`` waits
    service.wait_for(entered("judge", 1))
    service.wait_for(lambda service: service.heartbeats[-1].waiting_for == "judge")
    service.desired = "cancel"
    assert running.ended() == exit_codes.ENDED
    assert service.events[-1]["outcome"] == "cancelled"


def test_long_judging_is_no_stall(rig: Made, service: Any, court: Court) -> None:
    ready = threading.Event()
    court.says = lambda steps: right(steps) if ready.is_set() else None
    running = rig(credit=judged_by(court), schedule={"stall_timeout_s": 10.0, "steps": 1}).start()
    service.wait_for(entered("judge", 1))
    time.sleep(12)
    ready.set()
    assert running.ended() == exit_codes.ENDED
    assert service.events[-1]["outcome"] == "succeeded"


def test_a_judges_missing_key_fails_the_run_before_anything_starts(rig: Made, service: Any, court: Court) -> None:
    class NotToBeStarted(InProcessWorkers):
        async def start(self) -> None:
            raise AssertionError("nothing may be started")

    running = rig(NotToBeStarted, credit=judged_by(court, api_key_variable="PALESTRA_JUDGE_NOT_SET"))
    assert running.start().ended() == exit_codes.RUN_FAILED
    assert "recipe.credit.judge.api_key_variable = 'PALESTRA_JUDGE_NOT_SET'" in service.events[-1]["reason"]


class Alike(InProcessWorkers):
    """At step 1 all rollouts of the training tasks fail."""

    async def collect(self, requests: Sequence[EpisodeRequest]) -> Collected:
        collected = await super().collect(requests)
        if requests[0].purpose == "train" and requests[0].step == 1:
            collected.trajectories = [
                trajectory.model_copy(update={"success": False}) for trajectory in collected.trajectories
            ]
        return collected

    async def credit(
        self, groups: Sequence[RolloutGroup], released: Sequence[RolloutGroup], *, step: int
    ) -> dict[str, CreditColumns]:
        assert {rollout.step for rollout in rollouts_in(groups)} != {1}, "there is nothing to give credit for"
        return await super().credit(groups, released, step=step)


def test_a_step_without_an_informative_group_makes_no_update_says_so_and_the_run_goes_on(
    rig: Made, service: Any
) -> None:
    running = rig(
        Alike, selection={"dynamic_sampling": {"max_rounds": 3}}, schedule={"steps": 1, "checkpoint_every": 1}
    ).start()
    assert running.ended() == exit_codes.ENDED
    [values] = step_values(service)
    assert values["train/updates_left_out"] == 1
    assert (values["train/sampling_rounds"], values["train/groups_dropped"]) == (3, 18)
    assert "step 1: no update, since none of its 72 rollouts teaches anything" in warnings(service)
    trained = [
        event["trajectory"] for event in service.of_kind("trajectory") if event["trajectory"]["purpose"] == "train"
    ]
    assert {rollout["masked_because"] for rollout in trained} == {"dynamic-sampling"}
    assert len({rollout["id"] for rollout in trained}) == 72
    assert service.events[-1]["summary"]["steps"] == 1
    before, after = (running.checkpoints.path(step) / "model" / "model.safetensors" for step in (0, 1))
    assert before.read_bytes() == after.read_bytes()


def test_a_recipe_without_rl_ends_after_its_cold_start_and_one_evaluation(rig: Made, service: Any) -> None:
    running = rig(objective={"kind": "none"}).start()
    assert running.ended() == exit_codes.ENDED
    begun = [event["phase"] for event in service.of_kind("phase") if event["seconds"] is None]
    assert begun == ["start", "cold-start", "checkpoint", "evaluate", "finish"]
    assert service.of_kind("started")[0]["total_steps"] == 0
    assert running.checkpoints.steps() == [0]
    summary = service.events[-1]["summary"]
    assert (summary["steps"], set(summary["success_greedy"])) == (0, {"after"})
    assert {event["trajectory"]["purpose"] for event in service.of_kind("trajectory")} == {
        "eval-greedy",
        "eval-sampled",
    }


@pytest.fixture
def evaluation_rig(small_spec: RunSpec, tmp_path: Path, service: Any) -> Made:
    def made(workers: type[InProcessWorkers] = InProcessWorkers, *, samples: int = 3) -> Rig:
        document = small_spec.model_dump()
        document["recipe"] = {"preset": "evaluate"}
        document["evaluation"] |= {"tasks": 4, "samples": samples}
        return Rig(RunSpec.model_validate(document), tmp_path, service, workers)

    return made


class Untrainable(InProcessWorkers):
    """Whoever wants to move a weight, or to save one, fails."""

    async def supervised(self, number: int, first: int, last: int) -> dict[str, float]:
        raise AssertionError("a supervised step")

    async def update(self, request: UpdateRequest) -> Updated:
        raise AssertionError("an update")

    async def save(self, folder: Path) -> None:
        raise AssertionError("a checkpoint")


def test_an_evaluation_trains_and_saves_nothing(evaluation_rig: Made, service: Any) -> None:
    running = evaluation_rig(Untrainable).start()
    assert running.ended() == exit_codes.ENDED
    begun = [event["phase"] for event in service.of_kind("phase") if event["seconds"] is None]
    assert begun == ["start", "evaluate", "finish"]
    assert running.checkpoints.steps() == []


def test_each_task_is_tried_once_greedily_and_k_times_sampled_with_draws_of_its_own(
    evaluation_rig: Made, service: Any
) -> None:
    assert evaluation_rig(samples=3).start().ended() == exit_codes.ENDED
    played = [event["trajectory"] for event in service.of_kind("trajectory")]
    ids = [trajectory["id"] for trajectory in played]
    assert sorted(ids) == sorted(
        [f"eval-greedy-{task}-0" for task in range(4)]
        + [f"eval-sampled-{task}-{member}" for task in range(4) for member in range(3)]
    )
    sampled = [json.dumps(item["segments"]) for item in played if item["purpose"] == "eval-sampled"]
    assert len(set(sampled)) > 4
    report = service.events[-1]["summary"]["evaluation"]
    assert (report["tasks"], report["samples"]) == (4, 3)
    assert (report["greedy"]["episodes"], report["sampled"]["episodes"]) == (4, 12)
    assert list(report["pass_at"]) == ["1", "2", "3"]
    [values] = [event["values"] for event in service.of_kind("metric") if "eval/success_greedy" in event["values"]]
    assert values["eval/pass_at_3"] == report["pass_at"]["3"]


def test_an_evaluation_that_was_paused_ends_with_what_it_would_have_said(evaluation_rig: Made, service: Any) -> None:
    service.desired = "pause"
    running = evaluation_rig(Untrainable, samples=1).start()
    service.wait_for(entered("paused", 0))
    service.desired = "run"
    assert running.ended() == exit_codes.ENDED
    assert service.events[-1]["summary"]["evaluation"]["tasks"] == 4


def test_the_loops_own_process_needs_no_torch() -> None:
    code = "import engine.loop.loop, sys; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "engine.loop.judge_phase" in loaded
    assert "torch" not in loaded


class Forgetful(InProcessWorkers):
    async def update(self, request: UpdateRequest) -> Updated:
        return Updated({"updates": 0.0, "sil/expired": 3.0, "sil/buffer": 40.0})


def test_a_replay_buffer_that_loses_trajectories_before_it_is_full_is_reported_once(rig: Made, service: Any) -> None:
    assert rig(Forgetful).start().ended() == exit_codes.ENDED
    [warning] = [item for item in warnings(service) if "replay_buffer" in item]
    assert warning.startswith("step 1: 3 good trajectories became too old to be replayed, with 40 in the buffer")


class AllMasked(InProcessWorkers):
    """From step 2 on every rollout is masked; every other one of a group is right."""

    async def collect(self, requests: Sequence[EpisodeRequest]) -> Collected:
        collected = await super().collect(requests)
        because = "overlong" if requests[0].purpose == "train" and requests[0].step > 1 else None
        collected.trajectories = [
            trajectory.model_copy(update={"reward": (-1.0, 1.0)[trajectory.member % 2], "masked_because": because})
            for trajectory in collected.trajectories
        ]
        return collected


def test_self_imitation_goes_on_in_steps_whose_rollouts_are_all_masked(rig: Made, service: Any) -> None:
    """Algorithm 1 of SPEAR takes in the means of every step, and replays a full buffer whoever else is learned."""
    running = rig(
        AllMasked,
        self_imitation={"replay_buffer": 12, "baseline_buffer": 12, "warmup_steps": 0, "covariance": None},
        schedule={"steps": 3, "checkpoint_every": 1},
    ).start()
    assert running.ended() == exit_codes.ENDED
    reported = step_values(service)
    assert [values["sil/buffer"] for values in reported] == [12, 0, 0]
    assert [values["sil/replayed"] for values in reported] == [0, 12, 0]
    assert [values["train/updates"] > 0 for values in reported] == [True, True, False]
    assert [warning for warning in warnings(service) if "no update" in warning] == [
        "step 3: no update, since none of its 24 rollouts teaches anything"
    ]
    weights = [(running.checkpoints.path(k) / "model" / "model.safetensors").read_bytes() for k in (1, 2, 3)]
    assert [weights[0] == weights[1], weights[1] == weights[2]] == [False, True]


class Diverging(InProcessWorkers):
    async def update(self, request: UpdateRequest) -> Updated:
        raise NonFiniteGradient("the gradient of the policy has the norm nan")


def test_a_gradient_that_is_not_finite_fails_the_run_and_names_the_remedy(rig: Made, service: Any) -> None:
    assert rig(Diverging).start().ended() == exit_codes.RUN_FAILED
    assert service.events[-1]["reason"] == (
        "update of step 1: the gradient of the policy has the norm nan; lower recipe.optimizer.learning_rate"
    )


def test_a_recording_that_cannot_be_learned_from_fails_the_run_for_good(rig: Made, service: Any) -> None:
    class Unlearnable(InProcessWorkers):
        async def start(self) -> None:
            raise BadRecording("line 3 is no trajectory")

    assert rig(Unlearnable).start().ended() == exit_codes.RUN_FAILED
    assert service.events[-1]["reason"] == "line 3 is no trajectory"
