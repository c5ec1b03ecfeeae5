"""Two ranks are one: gradients, weights, log-probs, checkpoints; and what becomes of the rest when a rank is lost."""

import copy
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from torch import Tensor
from torch.distributed.distributed_c10d import _set_pg_timeout
from transformers import AutoModelForCausalLM

from engine.cluster.members import trainer_for
from engine.cluster.rank_processes import RankProcesses
from engine.durable import DamagedFile
from engine.failures import NonFiniteGradient, RankLost
from engine.models.shards import local
from engine.spec.presets import preset_names
from engine.spec.run import RunSpec
from engine.spec.supervised import Stage
from engine.training.backends.interface import TrainerBackend
from engine.training.backends.ranks import Leader
from engine.training.backends.registry import trainer_backend
from engine.training.backends.sharded import ShardedBackend
from engine.training.backends.sharded_rank import refuse_missing_shards
from engine.training.backends.torch import TorchBackend
from engine.training.batch import Sample, by_trajectory, sample_of
from engine.training.examples import HeldExamples
from engine.training.loss_terms.composition import RecipeLosses
from engine.training.loss_terms.likelihood import LikelihoodLoss
from engine.training.loss_terms.preference import PreferenceLoss
from engine.training.loss_terms.value import ValueLoss
from engine.training.stages import StageBatches
from tests.engine.training.backends.test_pretrained import SAMPLES, spec_of
from tests.engine.training.cast import run_spec

ROOT = Path(__file__).parents[4]
pytestmark = [pytest.mark.timeout(600)]

UNEVEN = [
    sample_of([1, *range(20, 20 + length)], [False, *[number % 3 > 0 for number in range(length)]])
    for length in (3, 40, 5, 41, 6)
]
UNLEARNED = sample_of([3, 20, 30], [False, False, False])
BATCHES: list[list[Sample]] = [SAMPLES, UNEVEN, [*SAMPLES[:1], UNLEARNED]]
"""The last one leaves the second rank without a row."""


class Ranks:
    """Several ranks of a spec, and one trainer of the same spec that has only one."""

    def __init__(self, spec: RunSpec, count: int) -> None:
        sharded = spec_on(spec, count)
        self.processes = RankProcesses(sharded)
        backend = made_for(sharded, self.processes.leader)
        assert isinstance(backend, ShardedBackend)
        self.backend = backend
        assert isinstance(backend._own, TorchBackend)
        self.own = backend._own


def made_for(spec: RunSpec, leader: Leader | None = None) -> TrainerBackend:
    return trainer_backend(spec.model, spec.resources, seed=spec.seed, leader=leader)


def spec_on(spec: RunSpec, count: int) -> RunSpec:
    document = spec.model_dump()
    document["resources"]["trainer_ranks"] = count
    return RunSpec.model_validate(document)


@contextmanager
def ranks(spec: RunSpec, count: int = 2) -> Iterator[Ranks]:
    made = Ranks(spec, count)
    try:
        yield made
    finally:
        made.processes.close()


def alone(spec: RunSpec) -> TorchBackend:
    made = made_for(spec)
    assert isinstance(made, TorchBackend)
    return made


def gradients(made: TorchBackend) -> dict[str, Tensor]:
    """What the process holds of them."""
    named = made.network.module.named_parameters()
    return {name: local(parameter.grad) for name, parameter in named if parameter.grad is not None}


def assert_equal_weights(one: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


BUILTIN = run_spec({})
TINY = [sample_of([1, 20, 30, 40], [False, True, True, True]), sample_of([2, 20, 30], [False, False, True])]


@pytest.mark.parametrize(
    ("spec", "batches"),
    [
        pytest.param(spec_of("qwen3"), BATCHES, marks=pytest.mark.soak),
        (spec_of("llama3", microbatch_tokens=64), BATCHES),
        (spec_of("qwen3", lora={"rank": 4}), BATCHES),
        (BUILTIN, [TINY, TINY[:1], TINY]),
    ],
    ids=["qwen3", "llama3-small-microbatches", "qwen3-lora", "builtin"],
)
def test_gradients_and_weights_of_two_ranks_are_those_of_one(spec: RunSpec, batches: list[list[Sample]]) -> None:
    one = alone(spec)
    with ranks(spec) as two:
        for batch in batches:
            expected = one.forward_backward(batch, [LikelihoodLoss()])
            loss = two.backend.forward_backward(batch, [LikelihoodLoss()])
            assert (loss.mean, loss.weight) == (pytest.approx(expected.mean, abs=1e-5), expected.weight)
            held, whole = gradients(two.own), gradients(one)
            assert held.keys() == whole.keys()
            for name, gradient in held.items():
                torch.testing.assert_close(gradient, whole[name].chunk(2)[0], rtol=1e-5, atol=1e-5)
                assert len(gradient) < len(whole[name]) or len(whole[name]) == 1
            norms = [made.step(learning_rate=1e-2, grad_clip=0.5) for made in (one, two.backend)]
            assert norms[1] == pytest.approx(norms[0], rel=1e-5)
            assert norms[0] > 0.5, "the norm of one rank's part alone would clip by another factor"
        weights, expected_weights = two.backend.weights(), one.weights()
        assert weights.keys() == expected_weights.keys()
        for name, tensor in weights.items():
            torch.testing.assert_close(tensor, expected_weights[name], rtol=0, atol=1e-5)
        samples = [sample for batch in batches for sample in batch]
        for row, expected_row in zip(two.backend.logprobs(samples), one.logprobs(samples), strict=True):
            assert row == pytest.approx(expected_row, abs=1e-5)


@pytest.mark.parametrize("dtype", ["bfloat16", pytest.param("float16", marks=pytest.mark.soak)])
def test_in_half_precision_ranks_keep_and_move_float32_and_learn_as_one_does(dtype: str) -> None:
    spec = spec_of("qwen3", dtype=dtype)
    one = alone(spec)
    with ranks(spec) as two:
        assert {parameter.dtype for parameter in two.own.network.module.parameters()} == {torch.float32}
        for made in (one, two.backend):
            made.forward_backward(SAMPLES, [LikelihoodLoss()])
        for name, gradient in gradients(two.own).items():
            expected = gradients(one)[name].chunk(2)[0]
            assert gradient.dtype == torch.float32
            assert (gradient - expected).norm() <= 2e-2 * expected.norm() + 1e-4
        losses = []
        for _ in range(8):
            losses.append(two.backend.forward_backward(SAMPLES, [LikelihoodLoss()]).mean)
            two.backend.step(learning_rate=1e-2, grad_clip=1.0)
        assert losses[-1] < 0.9 * losses[0]
        assert {tensor.dtype for tensor in two.backend.weights().values()} == {getattr(torch, dtype)}


PAIRS = [(SAMPLES[0], SAMPLES[1]), (SAMPLES[2], SAMPLES[3]), (UNEVEN[0], UNEVEN[1])]


def compared(made: TorchBackend | ShardedBackend) -> tuple[float, float, float]:
    """Mean, weight and norm of a step on pairs, which need the reference."""
    loss = made.forward_backward(PAIRS, [PreferenceLoss(0.1)])
    return loss.mean, loss.weight, made.step(learning_rate=1e-2, grad_clip=1.0)


def test_a_critic_on_two_ranks_is_that_of_one_and_its_state_is_whole() -> None:
    one, learned = alone(spec_of("qwen3")), []
    with ranks(spec_of("qwen3")) as two:
        for made in (one, two.backend):
            step(made)
            critic = made.value_network()
            values = critic.values(SAMPLES)
            assert not any(row.any() for row in values)
            targets = [replace(item, values=row, returns=row + 1) for item, row in zip(SAMPLES, values, strict=True)]
            loss = critic.forward_backward(targets, [ValueLoss(None)]).mean
            norm = critic.step(learning_rate=1e-2, grad_clip=1.0)
            state, then = copy.deepcopy(critic.state()), [row.tolist() for row in critic.values(SAMPLES)]
            critic.forward_backward(targets, [ValueLoss(None)])
            critic.step(learning_rate=1e-2, grad_clip=1.0)
            assert [row.tolist() for row in critic.values(SAMPLES)] != then
            critic.load_state(state)
            assert [row.tolist() for row in critic.values(SAMPLES)] == then
            learned.append([loss, norm, *[value for row in then for value in row]])
            other = one.value_network()
            other.load_state(state)
            assert np.concatenate(other.values(SAMPLES)) == pytest.approx(np.concatenate(then), abs=1e-5)
    assert learned[1] == pytest.approx(learned[0], rel=1e-4, abs=1e-5)


def test_a_part_that_is_not_where_the_others_are_is_an_error(tmp_path: Path) -> None:
    with ranks(BUILTIN) as two:
        two.backend.save(tmp_path / "saved", {})
    (tmp_path / "saved" / "shards" / "__1_0.distcp").unlink()
    with pytest.raises(FileNotFoundError, match=r"__1_0\.distcp of another rank"):
        refuse_missing_shards(tmp_path / "saved" / "shards")
    with pytest.raises(DamagedFile, match="shards"):
        alone(BUILTIN).load(tmp_path / "saved")


def test_a_checkpoint_goes_on_from_one_rank_from_two_and_opens_in_transformers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = alone(spec_of("qwen3"))
    with ranks(spec_of("qwen3")) as two:
        monkeypatch.chdir(tmp_path)  # here the ranks work in different folders
        for made in (one, two.backend):
            with pytest.raises(ValueError, match="longer than the context"):
                made.logprobs([sample_of(list(range(200)), [False, *[True] * 199])])
            made.freeze_reference()
            step(made)
            made.renew_optimizer(weight_decay=0.1)
            made.set_weight_decay(0.5)
        assert compared(two.backend) == pytest.approx(compared(one), rel=1e-4)

        two.backend.save(Path("of-two"), {"beside": torch.ones(2)})
        names = {path.name for path in (tmp_path / "of-two" / "shards").iterdir()}
        assert names == {".metadata", "__0_0.distcp", "__1_0.distcp"}
        weights = two.backend.weights()
        through = compared(two.backend), two.backend.weights()
        for made in (two.backend, one):
            assert made.load(tmp_path / "of-two")["beside"].tolist() == [1, 1]
            assert_equal_weights(made.weights(), weights)
        assert compared(two.backend) == through[0]
        assert_equal_weights(two.backend.weights(), through[1])

        one.save(tmp_path / "of-one", {})
        assert compared(one) == pytest.approx(through[0], rel=1e-5), "moments and reference of two ranks, on one"
        moved = one.weights()
        two.backend.load(tmp_path / "of-one")
        assert compared(two.backend) == pytest.approx(through[0], rel=1e-5)
        for name, tensor in two.backend.weights().items():
            torch.testing.assert_close(tensor, moved[name], rtol=0, atol=1e-5)

        theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "of-two" / "model").state_dict()
        assert all(torch.equal(theirs[name], tensor) for name, tensor in weights.items())
        with pytest.raises(OSError):
            two.backend.save(tmp_path / "of-two", {})


@pytest.mark.parametrize("export", [pytest.param("merged", marks=pytest.mark.soak), "adapter"])
def test_adapters_on_two_ranks_resume_and_are_exported(export: str, tmp_path: Path) -> None:
    spec = spec_of("llama3", lora={"rank": 3, "export": export, "dropout": 0.2})
    with ranks(spec) as two:
        two.backend.forward_backward(SAMPLES, [LikelihoodLoss()])
        two.backend.step(learning_rate=1e-1, grad_clip=1.0)
        two.backend.save(tmp_path / "saved", {})
        weights, adapter = two.backend.weights(), two.backend.adapter()
        opened = AutoModelForCausalLM.from_pretrained(tmp_path / "saved" / "model")
        through = step(two.backend)
        two.backend.load(tmp_path / "saved")
        assert step(two.backend) == through, "the next pass drops the same"
    ids = torch.from_numpy(SAMPLES[3].token_ids)[None]
    one = alone(spec)
    one.load(tmp_path / "saved")
    assert_equal_weights(one.weights(), weights)
    assert_equal_weights(dict(one.adapter().factors), dict(adapter.factors))
    with torch.no_grad():
        torch.testing.assert_close(opened(ids).logits[0], one.network.logits(one.network.hidden(ids)[0]))


def step(made: TorchBackend | ShardedBackend) -> float:
    made.forward_backward(SAMPLES, [LikelihoodLoss()])
    return made.step(learning_rate=1e-2, grad_clip=1.0)


class Exploding(LikelihoodLoss):
    def loss(self, batch: Any, outputs: Any) -> Tensor:
        return super().loss(batch, outputs) * float("inf")


class FailingOnTheSecond(LikelihoodLoss):
    def loss(self, batch: Any, outputs: Any) -> Tensor:
        if torch.distributed.get_rank() == 1:
            raise MemoryError("no room on this rank")
        return super().loss(batch, outputs)


def test_a_gradient_that_is_not_finite_is_refused_on_all_ranks_and_they_go_on() -> None:
    with ranks(spec_of("qwen3")) as two:
        before = two.backend.weights()
        two.backend.forward_backward(SAMPLES, [Exploding()])
        with pytest.raises(NonFiniteGradient):
            two.backend.step(learning_rate=1e-2, grad_clip=1.0)
        assert_equal_weights(two.backend.weights(), before)
        step(two.backend)
        with pytest.raises(RankLost, match=r"rank 1: MemoryError: no room on this rank"):
            two.backend.forward_backward(SAMPLES, [FailingOnTheSecond()])
        with pytest.raises(RankLost, match="no room on this rank"):
            two.backend.weights()


def test_a_rank_that_is_killed_in_the_middle_of_a_pass_ends_it() -> None:
    with ranks(spec_of("qwen3")) as two:
        (pid,) = two.processes.pids()
        os.kill(pid, signal.SIGSTOP)  # the leader comes to the first collective and waits in it
        threading.Timer(1.0, os.kill, (pid, signal.SIGKILL)).start()
        with pytest.raises(RankLost, match="rank 1 died"):
            two.backend.forward_backward(SAMPLES, [LikelihoodLoss()])


def test_closing_in_the_middle_of_a_pass_ends_it() -> None:
    with ranks(spec_of("qwen3")) as two:
        (pid,) = two.processes.pids()
        os.kill(pid, signal.SIGSTOP)
        threading.Timer(1.0, two.processes.close).start()
        with pytest.raises(RankLost):
            two.backend.forward_backward(SAMPLES, [LikelihoodLoss()])


def test_a_rank_that_hangs_is_not_waited_for_longer_than_a_stall() -> None:
    with ranks(spec_of("qwen3")) as two:
        two.processes.leader._timeout_s = 3  # shorter than a start on a busy machine takes
        _set_pg_timeout(timedelta(seconds=3), None)
        os.kill(two.processes.pids()[0], signal.SIGSTOP)
        with pytest.raises((RankLost, RuntimeError)):
            two.backend.forward_backward(SAMPLES, [LikelihoodLoss()])
        with pytest.raises(RankLost):
            two.backend.weights()


def test_ranks_end_with_their_leader_and_leave_nothing_behind() -> None:
    with ranks(spec_of("qwen3")) as two:
        (pid,), folder = two.processes.pids(), two.processes.leader.folder
        assert folder.stat().st_mode & 0o777 == 0o700
    assert not psutil.pid_exists(pid)
    assert not folder.exists()


LEADS = """
import time
from engine.cluster.rank_processes import RankProcesses
from tests.engine.training.backends.test_sharded import BUILTIN, made_for, spec_on
processes = RankProcesses(spec_on(BUILTIN, 2))
made_for(spec_on(BUILTIN, 2), processes.leader)
print(*processes.pids(), processes.leader.folder, flush=True)
time.sleep(600)
"""


def test_ranks_end_when_their_leader_is_killed() -> None:
    with subprocess.Popen([sys.executable, "-c", LEADS], stdout=subprocess.PIPE, text=True, cwd=ROOT) as leader:
        assert leader.stdout is not None
        pid, folder = leader.stdout.readline().split()
        leader.kill()
    deadline = time.monotonic() + 60
    while psutil.pid_exists(int(pid)) or Path(folder).exists():
        assert time.monotonic() < deadline, "the rank outlives its leader"
        time.sleep(0.05)


@pytest.mark.parametrize("preset", preset_names())
def test_the_losses_of_every_preset_travel_to_another_rank(preset: str) -> None:
    spec = RunSpec.model_validate({"name": "t", "recipe": {"preset": preset}})
    minibatch = spec.schedule.minibatch_trajectories
    losses = RecipeLosses(spec.recipe, minibatch=minibatch, longest_response_tokens=64, seed=0)
    for term in losses.terms:
        assert type(pickle.loads(pickle.dumps(term))) is type(term)


def test_more_than_one_rank_without_a_leader_is_refused() -> None:
    with pytest.raises(ValueError, match="no leader"):
        made_for(spec_on(BUILTIN, 2))


def test_a_recipe_of_many_parts_learns_on_three_ranks_what_it_learns_on_one() -> None:
    """Five samples are dealt to three: uneven shares in every pass."""
    stage = Stage(steps=2, batch_size=2)
    spec = spec_of("qwen3", recipe={"preset": "grpo", "kl": {"beta": 0.1}, "stages": [stage.model_dump()]})
    samples = [replace(sample, advantages=sample.advantages + 0.5) for sample in UNEVEN]
    weights = []
    one, processes = trainer_for(spec), RankProcesses(spec_on(spec, 3))
    try:
        for trainer in (one, trainer_for(spec_on(spec, 3), processes.leader)):
            batches = StageBatches(stage, HeldExamples(by_trajectory(SAMPLES)), seed=0)
            trainer.supervised(batches, steps=2, first_step=0)
            rows = zip(samples, trainer.old_logprobs(samples), strict=True)
            metrics = trainer.update([sample.with_old_logprobs(row) for sample, row in rows])
            assert metrics["ratio_max"] == pytest.approx(1.0, abs=1e-6)
            weights.append((trainer.backend.weights(), metrics))
    finally:
        processes.close()
    assert weights[1][1] == pytest.approx(weights[0][1], rel=1e-4, abs=1e-6)
    for name, tensor in weights[1][0].items():
        torch.testing.assert_close(tensor, weights[0][0][name], rtol=0, atol=1e-5)
