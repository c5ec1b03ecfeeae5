"""The torch backend with a model folder: cuts, references, critics, precisions, and resuming to the bit."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from engine.cluster.members import trainer_for
from engine.inference.torch.factory import generator_for_folder
from engine.models.weights import StateDict
from engine.spec.generation import NO_TRUNCATION, Distribution, GenerateRequest, Truncation
from engine.spec.run import RunSpec
from engine.spec.supervised import Stage
from engine.training import policy
from engine.training.backends.registry import trainer_backend
from engine.training.backends.torch import TorchBackend
from engine.training.batch import by_trajectory, sample_of
from engine.training.examples import HeldExamples
from engine.training.loss_scale import LossScale
from engine.training.loss_terms.likelihood import LikelihoodLoss
from engine.training.loss_terms.value import ValueLoss
from engine.training.stages import StageBatches
from tests.engine.models.folders import FAMILIES, folder_of
from tests.engine.training.cast import run_spec

LORA = {"rank": 4}
SAMPLES = [
    sample_of([1, *range(20, 20 + length)], [False, *[number % 3 > 0 for number in range(length)]])
    for length in (4, 9, 17, 30)
]


def spec_of(family: str = "qwen3", recipe: dict[str, Any] | None = None, seed: int = 0, **model: Any) -> RunSpec:
    named = {"kind": "pretrained", "path": str(folder_of(family)), "context_tokens": 128} | model  # type: ignore[arg-type]
    return run_spec(recipe or {}, model=named, seed=seed)


def backend(family: str = "qwen3", **model: Any) -> TorchBackend:
    spec = spec_of(family, **model)
    made = trainer_backend(spec.model, spec.resources, seed=spec.seed)
    assert isinstance(made, TorchBackend)
    return made


def gradient(made: TorchBackend) -> torch.Tensor:
    return torch.cat([grad.flatten() for p in made.network.module.parameters() if (grad := p.grad) is not None])


def step(made: TorchBackend) -> float:
    made.forward_backward(SAMPLES, [LikelihoodLoss()])
    return made.step(learning_rate=1e-2, grad_clip=1.0)


@pytest.mark.parametrize("family", FAMILIES)
def test_log_probs_of_padded_rows_are_those_of_transformers_row_by_row(family: str) -> None:
    rows = backend(family).logprobs(SAMPLES)
    theirs = AutoModelForCausalLM.from_pretrained(folder_of(family))  # type: ignore[arg-type]
    for sample, row in zip(SAMPLES, rows, strict=True):
        ids = torch.from_numpy(sample.token_ids)[None]
        with torch.no_grad():
            logp = theirs(ids).logits[0].log_softmax(-1)[:-1].gather(1, ids[0, 1:, None])[:, 0]
        expected = torch.cat((torch.zeros(1), logp)).where(torch.from_numpy(sample.loss_mask), 0.0)
        torch.testing.assert_close(torch.tensor(row), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("lora", [None, LORA])
def test_the_cut_into_micro_batches_changes_no_gradient(lora: dict[str, Any] | None) -> None:
    gradients = []
    for tokens in (16, 64, 4096):
        made = backend(microbatch_tokens=tokens, lora=lora)
        made.forward_backward(SAMPLES, [LikelihoodLoss()])
        gradients.append(gradient(made))
    for other in gradients[1:]:
        torch.testing.assert_close(other, gradients[0], rtol=1e-5, atol=1e-6)


def test_chunks_of_the_vocabulary_change_no_log_prob_and_no_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    made = backend()
    whole = made.logprobs(SAMPLES), (made.forward_backward(SAMPLES, [LikelihoodLoss()]), gradient(made))[1]
    monkeypatch.setattr(policy, "CHUNK_LOGITS", 700)  # two positions
    other = backend()
    chunked = other.logprobs(SAMPLES), (other.forward_backward(SAMPLES, [LikelihoodLoss()]), gradient(other))[1]
    for ours, theirs in zip(chunked[0], whole[0], strict=True):
        assert ours == pytest.approx(theirs, abs=1e-5)
    torch.testing.assert_close(chunked[1], whole[1], rtol=1e-5, atol=1e-6)


class Entropies(LikelihoodLoss):
    def observed(self, batch: Any, outputs: Any) -> Any:
        return outputs.entropy_N


@pytest.mark.parametrize("model", [{"dtype": "bfloat16"}, {"lora": LORA}, {"gradient_checkpointing": True}])
@pytest.mark.parametrize("cut", [NO_TRUNCATION, Truncation(top_k=40, top_p=0.8, min_p=0.01)])
def test_chunks_are_those_of_one_in_any_precision_and_of_what_is_kept(
    model: dict[str, Any], cut: Truncation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In bfloat16 the head's gradient is rounded once for each chunk."""
    distribution, results = Distribution(0.7, cut), []
    for logits in (policy.CHUNK_LOGITS, 700, 1):
        monkeypatch.setattr(policy, "CHUNK_LOGITS", logits)
        made = backend(**model)
        rows = made.logprobs(SAMPLES, distribution=distribution)
        loss = made.forward_backward(SAMPLES, [Entropies()], distribution=distribution)
        results.append((torch.tensor([value for row in rows for value in row]), loss.observations[0], gradient(made)))
    (logp, entropies, whole), *chunked = results
    rounding = 1e-2 if "dtype" in model else 1e-5
    assert whole.any()
    for other_logp, other_entropies, other in chunked:
        torch.testing.assert_close(other_logp, logp, rtol=rounding, atol=rounding)
        torch.testing.assert_close(other_entropies, entropies, rtol=rounding, atol=rounding)
        assert (other - whole).norm() < rounding * whole.norm()


@pytest.mark.parametrize("lora", [None, LORA])
def test_the_reference_is_the_policy_of_its_moment_and_stays(lora: dict[str, Any] | None) -> None:
    class Observing(LikelihoodLoss):
        needs_reference = True

        def observed(self, batch: Any, outputs: Any) -> Any:
            return outputs.reference_logp_BT, outputs.logp_BT.detach()

    made = backend(lora=lora)
    step(made)
    made.freeze_reference()
    step(made)
    [pairs] = made.forward_backward(SAMPLES, [Observing()]).observations
    before = backend(lora=lora)
    step(before)
    [then] = before.forward_backward(SAMPLES, [LikelihoodLossObserved()]).observations
    for (reference, present), held in zip(pairs, then, strict=True):
        torch.testing.assert_close(reference, held, rtol=0, atol=1e-6)
        assert not torch.allclose(present, reference, atol=1e-4)


class LikelihoodLossObserved(LikelihoodLoss):
    def observed(self, batch: Any, outputs: Any) -> Any:
        return outputs.logp_BT.detach()


@pytest.mark.parametrize(
    "model",
    [
        {},
        {"lora": LORA},
        {"lora": LORA | {"export": "adapter", "dropout": 0.3}},
        {"dtype": "bfloat16"},
        {"dtype": "float16"},
        {"dtype": "bfloat16", "lora": LORA},
        {"gradient_checkpointing": True},
    ],
)
def test_resumed_is_bit_equal_to_never_stopped(model: dict[str, Any], tmp_path: Path) -> None:
    through, stopped, resumed = backend(**model), backend(**model), backend(**model)
    for made in (through, stopped):
        step(made)
        made.freeze_reference()
        step(made)
    stopped.save(tmp_path / "checkpoint", {"beside": 1})
    assert resumed.load(tmp_path / "checkpoint") == {"beside": 1}
    for made in (through, resumed):
        step(made)
    ours, theirs = resumed.network.module.state_dict(), through.network.module.state_dict()
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert resumed.logprobs(SAMPLES) == through.logprobs(SAMPLES)


def test_a_checkpoint_opens_in_transformers_and_continues_there(tmp_path: Path) -> None:
    made = backend()
    step(made)
    made.save(tmp_path / "checkpoint", {})
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "checkpoint" / "model")
    ids = torch.from_numpy(SAMPLES[3].token_ids)[None]
    with torch.no_grad():
        ours = made.network.logits(made.network.hidden(ids)[0])
        torch.testing.assert_close(theirs(ids).logits[0], ours, rtol=0, atol=1e-5)
    before = theirs(ids, labels=ids).loss
    before.backward()
    torch.optim.SGD(theirs.parameters(), lr=0.1).step()
    assert theirs(ids, labels=ids).loss < before


@pytest.mark.parametrize("model", [{}, {"lora": LORA}, {"dtype": "bfloat16"}])
def test_a_critic_begins_at_0_learns_and_leaves_the_policy_alone(model: dict[str, Any]) -> None:
    made = backend(**model)
    before = made.logprobs(SAMPLES)
    critic = made.value_network()
    assert all(not values.any() for values in critic.values(SAMPLES))
    targets = [
        replace(sample, values=values, returns=values + 1.0)
        for sample, values in zip(SAMPLES, critic.values(SAMPLES), strict=True)
    ]
    for _ in range(3):
        critic.forward_backward(targets, [ValueLoss(None)])
        critic.step(learning_rate=1e-2, grad_clip=1.0)
    assert all(
        (values[sample.loss_mask] > 0).all() for sample, values in zip(SAMPLES, critic.values(SAMPLES), strict=True)
    )
    assert made.logprobs(SAMPLES) == before
    other = backend(**model).value_network()
    other.load_state(critic.state())
    assert [row.tolist() for row in other.values(SAMPLES)] == [row.tolist() for row in critic.values(SAMPLES)]


@pytest.mark.parametrize("model", [{}, {"lora": LORA}, {"dtype": "bfloat16"}, {"dtype": "float16"}])
def test_training_lowers_the_loss(model: dict[str, Any]) -> None:
    made = backend(**model)
    losses = []
    for _ in range(12):
        losses.append(made.forward_backward(SAMPLES, [LikelihoodLoss()]).mean)
        made.step(learning_rate=1e-2, grad_clip=1.0)
    assert losses[-1] < 0.8 * losses[0]


def test_a_scale_at_which_the_gradient_overflows_is_halved_until_it_does_not() -> None:
    weight = torch.nn.Parameter(torch.ones(3))
    scale = LossScale()
    tried: list[float] = []

    def backward(by: float) -> str:
        tried.append(by)
        (weight.sum() * (float("inf") if by > 2.0**14 else by)).backward()
        return "answer"

    weight.grad = torch.full((3,), 10.0)
    assert scale.accumulated([weight], backward) == "answer"
    assert tried == [2.0**16, 2.0**15, 2.0**14]
    assert weight.grad.tolist() == [11.0] * 3
    assert scale.scale == 2.0**14


def test_a_gradient_that_is_infinite_at_any_scale_stays_so_and_ends() -> None:
    weight = torch.nn.Parameter(torch.ones(1))
    scale = LossScale()
    scale.accumulated([weight], lambda by: (weight * float("inf")).sum().backward())
    assert scale.scale == 1
    assert not torch.isfinite(weight.grad).any()  # type: ignore[arg-type]


@pytest.mark.parametrize("lora", [None, LORA])
@pytest.mark.parametrize("family", FAMILIES)
async def test_generator_and_trainer_agree_on_log_probs(family: str, lora: dict[str, Any] | None) -> None:
    made = backend(family, lora=lora)
    step(made)
    generator = generator_for_folder(folder_of(family), context_tokens=128, slots=2)  # type: ignore[arg-type]
    try:
        await generator.load_weights(StateDict(made.weights()), 1)
        turn = await generator.generate(GenerateRequest("s", (1, 5, 9, 60), 20, frozenset(), 1.0, 3))
    finally:
        generator.close()
    sample = sample_of([1, 5, 9, 60, *turn.token_ids], [False] * 4 + [True] * len(turn.token_ids))
    assert made.logprobs([sample])[0][4:] == pytest.approx(turn.logprobs, abs=1e-4)


CLEANERS = Distribution(0.4, Truncation(top_p=0.6))
"""SPEAR's and CLEANER's sampling of table 8 and table 6 at once: the sharper, the more a wrong cut would show."""


@pytest.mark.parametrize(("dtype", "within"), [("float32", 1e-4), ("float16", 0.02)])
@pytest.mark.parametrize("family", ["qwen2.5", "qwen3"])
async def test_generator_and_trainer_agree_in_half_precision_on_what_top_p_leaves(
    family: str, dtype: str, within: float
) -> None:
    """Both halves of CLEANER's 5.1: rollouts in float16, and log-probs of the very distribution that is sampled."""
    made = backend(family, dtype=dtype)
    step(made)
    generator = generator_for_folder(folder_of(family), context_tokens=128, slots=2, dtype=dtype)  # type: ignore[arg-type]
    request = GenerateRequest(
        "s", (1, 5, 9, 60), 20, frozenset(), CLEANERS.temperature, 3,
        logprob_temperature=CLEANERS.temperature, truncation=CLEANERS.truncation, logprobs_truncated=True,
    )  # fmt: skip
    try:
        await generator.load_weights(StateDict(made.weights()), 1)
        turn = await generator.generate(request)
    finally:
        generator.close()
    sample = sample_of([1, 5, 9, 60, *turn.token_ids], [False] * 4 + [True] * len(turn.token_ids))
    assert made.logprobs([sample], distribution=CLEANERS)[0][4:] == pytest.approx(turn.logprobs, abs=within)
    whole = made.logprobs([sample], distribution=Distribution(CLEANERS.temperature))[0][4:]
    assert max(abs(one - other) for one, other in zip(whole, turn.logprobs, strict=True)) > 0.1, "nothing was cut"


MEASURED = """
import resource, sys, torch
from engine.training.policy import token_logprobs
from tests.engine.training.backends.wide import WideNetwork
network = WideNetwork()
ids = torch.randint(1000, (ROWS, TOKENS))
mask = torch.ones_like(ids, dtype=torch.bool); mask[:, 0] = False
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
logp, entropy = token_logprobs(network, ids, mask)
(logp.sum()).backward()
assert entropy.shape == (ROWS * (TOKENS - 1),) and torch.isfinite(entropy).all()
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024)
"""


@pytest.mark.soak
@pytest.mark.parametrize(("rows", "tokens"), [(2, 1024), (4, 2048)])
def test_log_probs_over_151936_tokens_stay_below_a_bound_that_knows_no_positions(rows: int, tokens: int) -> None:
    """All logits of 4 times 2048 would be 4.6 GiB, and their log-softmax as much again; a quarter is beyond it too.

    Large pieces go back to the system at once here: what malloc keeps of what it was given back is not the bound's.
    """
    bound = 6 * 4 * policy.CHUNK_LOGITS + 3 * 4 * 151_936 * 16 + 64 * 2**20
    environment = os.environ | {"MALLOC_MMAP_THRESHOLD_": "1048576"}
    measured = MEASURED.replace("ROWS", str(rows)).replace("TOKENS", str(tokens))
    command = [sys.executable, "-c", measured]
    reported = subprocess.run(command, capture_output=True, text=True, check=True, timeout=900, env=environment)
    assert int(reported.stdout) < bound


def test_a_pretrained_model_goes_through_cold_start_and_reinforcement(tmp_path: Path) -> None:
    trainer = trainer_for(
        spec_of(recipe={"preset": "grpo", "kl": {"beta": 0.1}, "stages": [{"steps": 4, "batch_size": 2}]})
    )
    history = trainer.supervised(
        StageBatches(Stage(steps=4, batch_size=2), HeldExamples(by_trajectory(SAMPLES)), seed=0), steps=4, first_step=0
    )
    assert history[-1]["loss"] < history[0]["loss"]
    rows = zip(SAMPLES, trainer.old_logprobs(SAMPLES), strict=True)
    metrics = trainer.update([sample.with_old_logprobs(row) for sample, row in rows])
    assert metrics["kl_to_reference"] == pytest.approx(0.0, abs=1e-6)
