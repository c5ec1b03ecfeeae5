"""What the loop computes in a form of its own is what the reference function of the paper computes.

Dynamic sampling and the low-variance filter: ``loop/test_group_filters.py``; its rounds: ``loop/test_resume.py``.
"""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.algorithms.chunks import chunk_numbers
from engine.algorithms.curriculum import spear_reward, tool_call_weight
from engine.algorithms.gspo import gspo_loss
from engine.algorithms.losses import objective_for
from engine.algorithms.objectives import PolicyTokens
from engine.algorithms.supervised import masked_likelihood_loss
from engine.models.tokenizer import default_tokenizer
from engine.rollout.scoring import rewards_of
from engine.spec.objective import Gspo
from engine.spec.recipe import Reward
from engine.spec.run import RunSpec
from engine.spec.trajectory import ToolCall, Turn
from engine.training.batch import sample_of
from engine.training.microbatch import microbatches
from engine.training.policy import token_logprobs
from engine.training.trainer import Trainer

VOCABULARY = len(default_tokenizer())
SEEDS = st.integers(0, 2**32 - 1)


def turn_of(status: str | None) -> Turn:
    call = None if status is None else ToolCall(name="t", arguments="", output="", status=status, seconds=0.0)
    return Turn(
        context_ids=[1],
        context_text="",
        token_ids=[2],
        pieces=[""],
        logprobs=[0.0],
        policy_versions=[0],
        tool_call=call,
    )


@given(
    success=st.booleans(),
    calls=st.lists(st.sampled_from(["ok", "error"]), min_size=1, max_size=25),
    end=st.sampled_from(["answer", "malformed", "turn-limit"]),
    step=st.integers(0, 300),
    decay_steps=st.integers(1, 250),
)
def test_a_rollouts_reward_is_spears(success: bool, calls: list[str], end: str, step: int, decay_steps: int) -> None:
    reward = Reward(correct=1.0, wrong=-1.0, tool_calls=1.0, tool_calls_decay_steps=decay_steps, well_formed=0.1)
    turns = [turn_of(status) for status in (calls if end == "turn-limit" else [*calls, None])]
    ours = rewards_of(reward, success=success, turns=turns, answered=end == "answer", step=step)
    theirs = spear_reward(
        1.0 if success else -1.0,
        valid_tool_calls=calls.count("ok"),
        well_formed=end != "malformed",
        tool_call_weight=tool_call_weight(step, decay_steps),
    )
    assert ours.pop("tool_errors") == 0
    assert list(ours.values()) == pytest.approx(list(theirs.values()))


@given(
    seed=SEEDS,
    lengths=st.lists(st.integers(0, 9), min_size=1, max_size=6),
    clips=st.tuples(st.floats(1e-4, 0.5), st.floats(1e-4, 0.5)),
    aggregation=st.sampled_from(["seq-mean-token-mean", "token-mean", "seq-mean-token-sum-norm"]),
)
def test_the_trainers_gspo_is_that_of_the_paper_to_the_bit(seed, lengths, clips, aggregation) -> None:
    dice = torch.Generator().manual_seed(seed)
    old, shift, advantages = torch.randn(3, len(lengths), 9, generator=dice).unbind()
    mask = torch.arange(9) < torch.tensor(lengths)[:, None]
    spec = Gspo(clip_low=clips[0], clip_high=clips[1], aggregation=aggregation)
    found = []
    for loss in (
        objective_for(spec, max_response_tokens=9).loss,
        lambda tokens: gspo_loss(
            tokens, clip_low=clips[0], clip_high=clips[1], aggregation=aggregation, max_response_tokens=9
        ),
    ):
        logp = (old + 0.3 * shift).requires_grad_()
        total, weight = loss(PolicyTokens(logp, old, advantages, mask))
        total.backward()
        found.append((total.detach(), weight, logp.grad))
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(*found, strict=True))


@settings(max_examples=10)
@given(seed=SEEDS, rows=st.integers(1, 6))
def test_the_cold_start_descends_the_masked_likelihood(seed: int, rows: int) -> None:
    """Each row has two turns, the first one learned; the reference is given all tokens and m_k."""
    model = {"layers": 1, "hidden_size": 16, "heads": 2, "kv_heads": 1, "head_dim": 8, "intermediate_size": 24}
    recipe = {"cold_start": {"steps": 1, "batch_size": rows}}
    trainer = Trainer(
        RunSpec.model_validate({"name": "t", "model": model, "recipe": recipe, "resources": {"threads": 1}})
    )
    dice = torch.Generator().manual_seed(seed)
    sampled, learned = [], []
    for _ in range(rows):
        lengths = torch.randint(1, 9, (4,), generator=dice).tolist()
        ids = torch.randint(VOCABULARY, (sum(lengths),), generator=dice).tolist()
        m_1 = bool(torch.randint(2, (1,), generator=dice))
        written = [turn in (1, 3) for turn, length in enumerate(lengths) for _ in range(length)]
        kept = [turn == 1 or (turn == 3 and m_1) for turn, length in enumerate(lengths) for _ in range(length)]
        sampled.append(sample_of(ids, written))
        learned.append((sample_of(ids, kept), [True, m_1]))
    (batch,) = microbatches(sampled, device=torch.device("cpu"), max_tokens=10**6)
    logp_BT, _ = token_logprobs(trainer.model, batch.token_ids_BT, batch.mask_BT)
    m_BK = torch.tensor([learned[row][1] for row in batch.rows])
    total, weight = masked_likelihood_loss(logp_BT, chunk_numbers(batch.mask_BT), m_BK)
    parameters = list(trainer.model.parameters())
    gradient = torch.cat([part.flatten() for part in torch.autograd.grad(total / weight, parameters)])
    (told,) = trainer.cold_start([sample for sample, _ in learned], steps=1, first_step=0)
    assert told["tokens"] == weight
    assert told["loss"] == pytest.approx((total / weight).item(), rel=1e-5)
    assert told["grad_norm"] == pytest.approx(gradient.norm().item(), rel=1e-4)
