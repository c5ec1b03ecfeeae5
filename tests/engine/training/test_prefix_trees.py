"""Shared beginnings: the same log-probs, losses and gradients as rows that are computed one by one."""

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from engine.failures import RunFailed
from engine.models.network import even_attention
from engine.training.backends.registry import trainer_backend
from engine.training.batch import Sample, sample_of
from engine.training.loss_terms.likelihood import LikelihoodLoss
from engine.training.microbatch import MICROBATCH_TOKENS, microbatches
from engine.training.prefix_trees import trees_of
from tests.engine.models.folders import FAMILIES, folder_of
from tests.engine.training.cast import run_spec
from tests.engine.training.test_packing import BUILTIN

PROMPTS = ([1, 5, 6, 7, 8, 9, 10], [1, 5, 6, 7, 8, 9, 11], [2, 3])


def rollout(prompt: list[int], length: int, seed: int) -> Sample:
    """Turns of the policy with observations between them."""
    dice = random.Random(seed)
    tail = [dice.randrange(20, 60) for _ in range(length)]
    learned = [number % 4 != 2 for number in range(length)]
    return sample_of([*prompt, *tail], [False] * len(prompt) + learned)


SAMPLES = [
    rollout(prompt, length, seed)
    for seed, (prompt, length) in enumerate((prompt, length) for prompt in PROMPTS for length in (5, 1, 12, 30))
]
SAME = [*SAMPLES, SAMPLES[2], sample_of(PROMPTS[0], [False] * len(PROMPTS[0]))]
"""With a rollout that another one repeats, and one that teaches nothing."""


def made(model: str, *, shares: bool, **more: Any) -> Any:
    given: dict[str, Any] = BUILTIN | {"context_tokens": 128}
    if model != "builtin":
        folder = str(folder_of(model))
        given = {"kind": "pretrained", "path": folder, "context_tokens": 128} | more
    spec = run_spec({}, model=given, resources={"share_prefixes": shares})
    return trainer_backend(spec.model, spec.resources, seed=spec.seed)


def learned(backend: Any, samples: list[Sample]) -> tuple[float, torch.Tensor]:
    loss = backend.forward_backward(samples, [LikelihoodLoss()])
    parameters = backend.network.module.parameters()
    return loss.mean, torch.cat([grad.flatten() for p in parameters if (grad := p.grad) is not None])


@pytest.mark.parametrize("model", ["builtin", *FAMILIES])
def test_the_loss_the_gradient_and_every_logprob_are_those_of_single_rows(model: str) -> None:
    apart, shared = made(model, shares=False), made(model, shares=True)
    for alone, together in zip(apart.logprobs(SAME), shared.logprobs(SAME), strict=True):
        assert np.allclose(alone, together, atol=1e-5)
    (loss, gradient), (loss_shared, gradient_shared) = learned(apart, SAME), learned(shared, SAME)
    assert loss_shared == pytest.approx(loss, abs=1e-5)
    assert torch.allclose(gradient_shared, gradient, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("tokens", [64, 128])
def test_a_budget_too_small_for_a_group_cuts_it_and_changes_nothing(tokens: int) -> None:
    one, shared = (
        learned(made("qwen3", shares=False), SAME),
        learned(made("qwen3", shares=True, microbatch_tokens=tokens), SAME),
    )
    assert shared[0] == pytest.approx(one[0], abs=1e-5)
    assert torch.allclose(shared[1], one[1], rtol=1e-4, atol=1e-5)


def test_adapters_are_trained_alike() -> None:
    lora: dict[str, Any] = {"lora": {"rank": 4, "dropout": 0.0}}
    one, shared = learned(made("qwen3", shares=False, **lora), SAME), learned(made("qwen3", shares=True, **lora), SAME)
    assert torch.allclose(shared[1], one[1], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("model", ["builtin", "qwen3"])
def test_a_rollout_does_not_depend_on_those_that_share_its_prompt(model: str) -> None:
    backend = made(model, shares=True)
    ours, others = SAMPLES[3], (SAMPLES[:2], [rollout(PROMPTS[0], 20, seed) for seed in (91, 92)])
    values = [np.asarray(backend.logprobs([*beside, ours])[-1]) for beside in others]
    assert np.abs(values[0] - values[1]).max() < 1e-6


def test_each_prompt_is_computed_once_in_a_micro_batch() -> None:
    (batch,) = microbatches(SAMPLES, device=torch.device("cpu"), max_tokens=10**4, even_attention=1e9)
    assert batch.trees is not None
    assert batch.trees.token_ids_RL.shape[0] == len(PROMPTS)
    rows = sum(len(sample) for sample in SAMPLES)
    computed = sum(len(prompt) for prompt in PROMPTS) + sum(
        sample.learned_length - 1 - int(np.flatnonzero(sample.loss_mask)[0]) for sample in SAMPLES
    )
    real = int((batch.trees.seen_R1LL.sum(-1) > 0).sum())  # padding sees itself
    assert computed < rows
    assert real >= computed


@pytest.mark.parametrize("seed", range(20))
def test_trees_hold_every_sample_that_teaches_once_and_keep_to_their_budget(seed: int) -> None:
    dice = random.Random(seed)
    samples = [rollout(dice.choice(PROMPTS), dice.randrange(1, 40), number) for number in range(30)]
    budget = dice.randrange(50, 200)
    trees = trees_of(samples, max_tokens=budget, even_attention=1e9)
    assert sorted(number for tree in trees for number in tree) == list(range(30))
    for tree in trees:
        starts = {tuple(samples[i].token_ids[: int(np.flatnonzero(samples[i].loss_mask)[0])]) for i in tree}
        assert len(starts) == 1
        computed = len(starts.pop()) + sum(
            samples[i].learned_length - 1 - int(np.flatnonzero(samples[i].loss_mask)[0]) for i in tree
        )
        assert computed <= budget or len(tree) == 1


@pytest.mark.parametrize("even_attention", [50.0, 500.0, 6000.0])
@pytest.mark.parametrize(("prompt", "length"), [(10, 40), (100, 40), (400, 20), (1000, 500)])
def test_trees_are_as_long_as_costs_least_for_each_rollout(prompt: int, length: int, even_attention: float) -> None:
    """Held against every other number of rollouts a tree, by what the network computes for them."""
    most, samples = 64, [rollout([1] * prompt, length, seed) for seed in range(64)]
    trees = trees_of(samples, max_tokens=10**6, even_attention=even_attention)
    (tail,) = {sample.learned_length - 1 - prompt for sample in samples}

    def cost_per_rollout(rollouts: int) -> float:
        tokens = prompt + rollouts * tail
        return (tokens + tokens**2 / even_attention) / rollouts

    best = min(range(1, most + 1), key=cost_per_rollout)
    ours = max(map(len, trees))
    assert cost_per_rollout(ours) <= 1.1 * cost_per_rollout(best)
    assert abs(ours - best) <= 1


def test_rows_stand_apart_where_nothing_is_worth_sharing() -> None:
    samples = [rollout([2, 3], 30, seed) for seed in range(8)]
    for batch in microbatches(samples, device=torch.device("cpu"), max_tokens=10**4, even_attention=100.0):
        assert batch.trees is None


def test_how_long_a_row_is_when_attention_costs_half_is_told_by_the_layers() -> None:
    network = made("builtin", shares=True).network
    spec = network.spec
    queries, keys = spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim
    matrices = spec.hidden_size * (2 * queries + 2 * keys + 3 * spec.intermediate_size)
    norms = 2 * spec.hidden_size + 2 * spec.head_dim
    assert even_attention(network) == (matrices + norms) / (2 * spec.hidden_size)


def test_a_network_that_names_no_layers_counts_as_one() -> None:
    class Unnamed:
        layers: tuple[()] = ()
        hidden_size = 8
        module = torch.nn.Linear(8, 16, bias=False)

    assert even_attention(Unnamed()) == 8  # type: ignore[arg-type]


def test_a_critic_shares_nothing_and_keeps_to_its_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    group = [rollout([1] * 100, 10, seed) for seed in range(40)]
    values = {}
    for shares in (False, True):
        critic = made("builtin", shares=shares).value_network()
        torch.nn.init.ones_(critic._valuing.head.weight)
        computed: list[int] = []
        hidden = critic._body.hidden

        def counted(token_ids_BT: torch.Tensor, *more: Any, hidden: Any = hidden, computed: Any = computed) -> Any:
            computed.append(token_ids_BT.numel())
            return hidden(token_ids_BT, *more)

        monkeypatch.setattr(critic._body, "hidden", counted)
        values[shares] = np.stack(critic.values(group))
        assert max(computed) <= MICROBATCH_TOKENS
    assert values[True].any()
    assert np.array_equal(values[True], values[False])


def test_a_window_shorter_than_the_context_is_refused_by_the_field(tmp_path: Path) -> None:
    folder = tmp_path / "windowed"
    folder.mkdir()
    for file in folder_of("qwen3").iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(
        json.dumps(config | {"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 0})
    )
    given = {"kind": "pretrained", "path": str(folder), "context_tokens": 128}
    spec = run_spec({}, model=given, resources={"share_prefixes": True})
    with pytest.raises(RunFailed, match=r"resources\.share_prefixes = true: qwen3: it sees 16 tokens"):
        trainer_backend(spec.model, spec.resources, seed=0).logprobs(SAMPLES)


def test_megatron_refuses_to_share() -> None:
    with pytest.raises(ValidationError, match="share_prefixes"):
        run_spec({}, resources={"share_prefixes": True, "trainer": "megatron"})
