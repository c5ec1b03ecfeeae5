"""Megatron's ranks beside the torch backend, on one folder: log-probs, gradients, steps, checkpoints.

Real processes, over gloo on the CPU.  What only a GPU could show is in none of these: speed, NCCL, Transformer Engine.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from engine.cluster.members import trainer_for
from engine.cluster.rank_processes import RankProcesses
from engine.failures import NonFiniteGradient, RankLost
from engine.spec.generation import Distribution, Truncation
from engine.spec.run import RunSpec
from engine.training.backends.megatron.backend import MegatronBackend
from engine.training.backends.registry import trainer_backend
from engine.training.backends.torch import TorchBackend
from engine.training.batch import Sample, sample_of
from engine.training.loss_terms.likelihood import LikelihoodLoss
from engine.training.packing import packed
from tests.engine.models.folders import folder_of, other_folder
from tests.engine.training.backends.megatron.test_layout import spec_on
from tests.engine.training.backends.test_pretrained import SAMPLES, Entropies, spec_of
from tests.engine.training.backends.test_sharded import Exploding

pytestmark = [pytest.mark.backends, pytest.mark.megatron, pytest.mark.timeout(900)]

FAMILY = {"moe": lambda: other_folder("qwen3-moe"), "tied": lambda: folder_of("qwen2.5", tied=True)}
LAYOUTS: dict[str, tuple[int, dict[str, Any], str]] = {
    "one rank": (1, {}, "llama3"),
    "tensor": (2, {"tensor": 2}, "qwen3"),
    "tensor with sequence parallel, packed": (
        2,
        {"tensor": 2, "sequence_parallel": True, "sequence_packing": True},
        "qwen2.5",
    ),
    "pipeline": (2, {"pipeline": 2, "recompute": "layers"}, "tied"),
    "data, optimiser divided": (2, {"distributed_optimizer": True}, "qwen3"),
    "context, packed": (2, {"context": 2, "sequence_packing": True, "recompute": "attention"}, "qwen3"),
    "expert": (2, {"expert": 2}, "moe"),
    "tensor, pipeline": (4, {"tensor": 2, "pipeline": 2}, "llama3"),
}
LEARNED = [
    *SAMPLES,
    *[sample_of([1, *range(40, 40 + n)], [False, *[number % 4 > 1 for number in range(n)]]) for n in (33, 6, 12)],
]
KEPT = Distribution(0.7, Truncation(top_k=40, top_p=0.8, min_p=0.01))


def specs(name: str, recipe: dict[str, Any] | None = None, **model: Any) -> tuple[RunSpec, RunSpec]:
    """The specs of the torch backend and of Megatron; several micro-batches, on a folder of the layout's family."""
    ranks, megatron, family = LAYOUTS[name]
    folder = {"path": str(FAMILY[family]())} if family in FAMILY else {}
    given: dict[str, Any] = {"microbatch_tokens": 64} | folder | model
    plain = spec_of("qwen3" if family in FAMILY else family, recipe, **given)
    document = plain.model_dump()
    document["resources"] |= {"trainer": "megatron", "trainer_ranks": ranks, "megatron": megatron}
    return plain, RunSpec.model_validate(document)


@contextmanager
def led(spec: RunSpec) -> Iterator[tuple[MegatronBackend, RankProcesses]]:
    processes = RankProcesses(spec)
    try:
        made = trainer_backend(spec.model, spec.resources, seed=spec.seed, leader=processes.leader)
        assert isinstance(made, MegatronBackend)
        yield made, processes
    finally:
        processes.close()


def plain_backend(spec: RunSpec) -> TorchBackend:
    made = trainer_backend(spec.model, spec.resources, seed=spec.seed)
    assert isinstance(made, TorchBackend)
    return made


def assert_close_rows(ours: list[list[float]], theirs: list[list[float]], atol: float = 1e-4) -> None:
    for row, expected in zip(ours, theirs, strict=True):
        torch.testing.assert_close(torch.tensor(row), torch.tensor(expected), rtol=0, atol=atol)


def assert_close_gradients(ours: dict[str, Tensor], one: TorchBackend) -> None:
    """``ours`` after a step whose gradient was not clipped: a tenth of the gradient."""
    named = {name.removeprefix("lm."): parameter.grad for name, parameter in one.network.module.named_parameters()}
    assert named.keys() == ours.keys()
    for name, expected in named.items():
        assert expected is not None
        assert (ours[name] * 10 - expected).norm() <= 1e-4 * expected.norm() + 1e-9, name


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_layout_computes_what_one_torch_process_does(name: str) -> None:
    """Log-probs also of a truncated distribution; entropies; the first gradient; and where three steps lead."""
    plain, divided = specs(name)
    one = plain_backend(plain)
    with led(divided) as (many, _):
        weights, expected = many.weights(), one.weights()
        assert weights.keys() == expected.keys()
        assert all(torch.equal(weights[tensor], expected[tensor]) for tensor in weights)
        assert_close_rows(many.logprobs(LEARNED), one.logprobs(LEARNED))
        assert_close_rows(many.logprobs(LEARNED, distribution=KEPT), one.logprobs(LEARNED, distribution=KEPT))
        for number in range(3):
            losses = [made.forward_backward(LEARNED, [Entropies()]) for made in (one, many)]
            assert losses[1].weight == losses[0].weight
            assert losses[1].mean == pytest.approx(losses[0].mean, rel=1e-4)
            entropies = [torch.cat(loss.observations[0]).sort().values for loss in losses]
            torch.testing.assert_close(entropies[1], entropies[0], rtol=1e-4, atol=1e-4)
            if number == 0 and not divided.resources.megatron.distributed_optimizer and "expert" not in name:
                many.step(learning_rate=1e-30, grad_clip=1e9)
                assert_close_gradients(many.everywhere("first_moments"), one)
                many.renew_optimizer(weight_decay=0.0)
                many.forward_backward(LEARNED, [LikelihoodLoss()])
            norms = [made.step(learning_rate=1e-3, grad_clip=0.5) for made in (one, many)]
            assert norms[1] == pytest.approx(norms[0], rel=1e-4)
        after = many.weights()
        for tensor, moved in one.weights().items():
            torch.testing.assert_close(after[tensor], moved, rtol=1e-3, atol=1e-4)


def group() -> list[Sample]:
    lengths, advantages = (9, 14, 22, 31, 8, 17, 25, 12), (1.0, -0.5, 0.3, -0.8, 0.6, -0.6, 0.9, -0.9)
    return [
        sample_of(
            [1, *range(30 + member, 30 + member + length)],
            [False, *[number % 3 > 0 for number in range(length)]],
            advantages=[advantage] * (length + 1),
        )
        for member, (length, advantage) in enumerate(zip(lengths, advantages, strict=True))
    ]


@pytest.mark.parametrize("name", ["tensor", "pipeline", "data, optimiser divided"])
def test_three_steps_of_grpo_have_the_metrics_of_the_torch_backend(name: str) -> None:
    """With a reference, and a gradient that is clipped."""
    plain, divided = specs(name, {"kl": {"beta": 0.05}, "optimizer": {"learning_rate": 1e-3, "grad_clip": 0.5}})
    processes = RankProcesses(divided)
    try:
        trainers = [trainer_for(plain), trainer_for(divided, processes.leader)]
        for _ in range(3):
            reports = []
            for trainer in trainers:
                old = trainer.old_logprobs(group())
                samples = [sample.with_old_logprobs(row) for sample, row in zip(group(), old, strict=True)]
                reports.append(trainer.update(samples))
            assert reports[1].keys() == reports[0].keys()
            assert {metric: reports[1][metric] for metric in reports[0]} == pytest.approx(
                reports[0], rel=1e-3, abs=1e-4
            )
            assert reports[0]["updates"] > 0
            assert reports[0]["grad_norm"] > 0
    finally:
        processes.close()


def test_packed_rows_of_a_stage_are_computed_as_their_parts() -> None:
    plain, divided = specs("context, packed")
    rows = packed(LEARNED, row_tokens=64)
    with led(divided) as (many, _):
        assert_close_rows(many.logprobs(rows), plain_backend(plain).logprobs(rows))


def test_a_checkpoint_goes_on_in_another_layout_and_opens_in_transformers(tmp_path: Path) -> None:
    """Saved on two tensor ranks, loaded on two pipeline stages with divided optimisers: the next step is the same."""
    _, saving = specs("tensor")
    ranks, loading_on = 4, {"pipeline": 2, "distributed_optimizer": True}
    with led(saving) as (many, _):
        many.freeze_reference()
        for _ in range(2):
            many.forward_backward(LEARNED, [LikelihoodLoss()])
            many.step(learning_rate=1e-2, grad_clip=1.0)
        many.save(tmp_path / "saved", {"counter": 3})
        saved = many.weights()
        many.forward_backward(LEARNED, [LikelihoodLoss()])
        norm, expected = many.step(learning_rate=1e-2, grad_clip=1.0), many.weights()
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "saved" / "model").state_dict()
    assert all(torch.equal(theirs[name], tensor) for name, tensor in saved.items())
    in_torch = plain_backend(spec_of("qwen3", path=str(tmp_path / "saved" / "model")))
    assert all(torch.equal(in_torch.weights()[name], tensor) for name, tensor in saved.items())
    with led(spec_on(ranks, loading_on)) as (other, _):
        assert other.load(tmp_path / "saved") == {"counter": 3}
        assert all(torch.equal(other.weights()[name], tensor) for name, tensor in saved.items())
        other.forward_backward(LEARNED, [LikelihoodLoss()])
        assert other.step(learning_rate=1e-2, grad_clip=1.0) == pytest.approx(norm, rel=1e-4)
        for name, tensor in other.weights().items():
            torch.testing.assert_close(tensor, expected[name], rtol=1e-3, atol=1e-4)


def test_bfloat16_moves_float32_masters() -> None:
    """Steps too small for bfloat16 add up: without masters no weight would ever leave its place."""
    _, divided = specs("data, optimiser divided", dtype="bfloat16")
    with led(divided) as (many, _):
        before = many.weights()
        for _ in range(40):
            many.forward_backward(LEARNED, [LikelihoodLoss()])
            many.step(learning_rate=2e-5, grad_clip=1.0)
        after = many.weights()
        assert all(tensor.dtype is torch.bfloat16 for tensor in after.values())
        moved = [name for name, tensor in after.items() if not torch.equal(tensor, before[name])]
        assert "model.embed_tokens.weight" in moved


def test_a_gradient_that_is_not_finite_moves_nothing_on_any_rank() -> None:
    _, divided = specs("tensor")
    with led(divided) as (many, _):
        before = many.weights()
        many.forward_backward(LEARNED, [Exploding()])
        with pytest.raises(NonFiniteGradient):
            many.step(learning_rate=1e-2, grad_clip=1.0)
        assert all(torch.equal(tensor, before[name]) for name, tensor in many.weights().items())
        many.forward_backward(LEARNED, [LikelihoodLoss()])
        assert many.step(learning_rate=1e-2, grad_clip=1.0) > 0


def test_a_rank_that_dies_ends_the_attempt_by_its_name() -> None:
    _, divided = specs("pipeline")
    with led(divided) as (many, processes):
        processes._processes[0].kill()
        processes._processes[0].wait()
        with pytest.raises(RankLost, match="rank 1"):
            many.logprobs(LEARNED)
