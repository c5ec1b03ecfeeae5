"""The trainer on a tiny policy, one thread: there every claim is about bits."""

import random
import resource
from collections.abc import Sequence

import numpy as np
import pytest
import torch

from engine.algorithms.losses import objective_for
from engine.algorithms.objectives import PolicyTokens
from engine.cluster.members import trainer_for
from engine.models.qwen3 import Qwen3
from engine.models.tokenizer import tokenizer_for
from engine.spec.objective import Clipped
from engine.spec.run import RunSpec
from engine.spec.supervised import Stage
from engine.training import microbatch
from engine.training.adamw import AdamW
from engine.training.backends import torch as backend_module
from engine.training.batch import Sample, by_trajectory, sample_of
from engine.training.examples import HeldExamples
from engine.training.stages import StageBatches
from engine.training.supervised import batch_of_step
from engine.training.trainer import Trainer
from tests.engine.algorithms.test_truncation import kept_by_definition

TOKENIZER = tokenizer_for("characters")
TINY = {
    "layers": 2,
    "hidden_size": 32,
    "heads": 4,
    "kv_heads": 2,
    "head_dim": 8,
    "intermediate_size": 48,
    "context_tokens": 128,
}

SHORT = Stage(steps=40, batch_size=8)


def run_spec(**changes) -> RunSpec:
    return RunSpec(
        name="t",
        **(
            {
                "model": TINY,
                "resources": {"threads": 1},
                "schedule": {"prompts_per_step": 4, "group_size": 4, "minibatch_trajectories": 16},
                "recipe": {
                    "stages": [{"steps": 40, "batch_size": 8}],
                    "optimizer": {"learning_rate": 1e-3, "weight_decay": 0.01},
                },
            }
            | changes
        ),
    )


def rollouts(count: int = 16, seed: int = 0) -> list[Sample]:
    """Sequences of very different lengths, two sampled stretches each, random advantages."""
    dice = random.Random(seed)
    samples = []
    for _ in range(count):
        lengths = [dice.randrange(2, 20) for _ in range(4)]
        mask = [learned for learned, n in zip((False, True, False, True), lengths, strict=True) for _ in range(n)]
        samples.append(
            sample_of([dice.randrange(len(TOKENIZER)) for _ in mask], mask, advantages=[dice.gauss(0, 1) for _ in mask])
        )
    return samples


def first_stage(samples: Sequence[Sample], stage: Stage = SHORT) -> StageBatches:
    return StageBatches(stage, HeldExamples(by_trajectory(samples)), seed=0)


def with_old_logprobs(trainer: Trainer, samples: list[Sample]) -> list[Sample]:
    values = trainer.old_logprobs(samples)
    return [sample.with_old_logprobs(row) for sample, row in zip(samples, values, strict=True)]


def same_weights(a: Trainer, b: Trainer) -> bool:
    ours, theirs = a.backend.weights(), b.backend.weights()
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


def gradient_of_update(monkeypatch, trainer: Trainer, samples: list[Sample]) -> list[torch.Tensor]:
    """What reaches the optimiser, after division and before the step."""
    caught: list[torch.Tensor] = []

    def catch(*_, **__):
        caught.extend(parameter.grad.clone() for parameter in trainer.backend.network.parameters())

    with monkeypatch.context() as patch:
        patch.setattr(AdamW, "step", catch)
        trainer.update(samples)
    return caught


@pytest.mark.parametrize(
    "aggregation", ["token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm"]
)
def test_cutting_into_microbatches_changes_no_gradient(monkeypatch, aggregation):
    recipe = {
        "stages": [],
        "objective": {"kind": "clipped", "aggregation": aggregation},
        "optimizer": {"grad_clip": 1e9},
    }
    gradients = []
    for max_tokens in (1, 200, 10**6):
        monkeypatch.setattr(microbatch, "MICROBATCH_TOKENS", max_tokens)
        trainer = trainer_for(run_spec(recipe=recipe))
        gradients.append(gradient_of_update(monkeypatch, trainer, with_old_logprobs(trainer, rollouts())))
    for cut in gradients[:2]:
        for ours, whole in zip(cut, gradients[2], strict=True):
            torch.testing.assert_close(ours, whole, rtol=0, atol=1e-6)


def test_the_gradient_is_that_of_the_objective_on_the_plain_model(monkeypatch):
    """Written out: all logits, one padded batch, autograd through the mean loss."""
    trainer = trainer_for(run_spec(recipe={"stages": [], "optimizer": {"grad_clip": 1e9}}))
    samples = with_old_logprobs(trainer, rollouts())
    ours = gradient_of_update(monkeypatch, trainer, samples)
    model = Qwen3(run_spec().model, len(TOKENIZER), seed=0)
    (batch,) = microbatch.microbatches(samples, device=torch.device("cpu"), max_tokens=10**6)
    logp_BTV = model(batch.token_ids_BT)[:, :-1].log_softmax(-1)
    logp_BT = torch.nn.functional.pad(logp_BTV.gather(2, batch.token_ids_BT[:, 1:, None])[..., 0], (1, 0))
    total, weight = objective_for(Clipped(), max_response_tokens=128).loss(
        PolicyTokens(logp_BT, batch.old_logp_BT, batch.advantages_BT, batch.mask_BT)
    )
    (total / weight).backward()
    for mine, parameter in zip(ours, model.parameters(), strict=True):
        torch.testing.assert_close(mine, parameter.grad, rtol=0, atol=1e-6)


def test_the_gradient_is_clipped_to_its_bound(monkeypatch):
    trainer = trainer_for(run_spec(recipe={"stages": [], "optimizer": {"grad_clip": 1e-3}}))
    gradient = gradient_of_update(monkeypatch, trainer, with_old_logprobs(trainer, rollouts()))
    assert torch.cat([part.flatten() for part in gradient]).norm() == pytest.approx(1e-3, rel=1e-4)


def test_the_first_ratios_are_exactly_1():
    trainer = trainer_for(run_spec())
    metrics = trainer.update(with_old_logprobs(trainer, rollouts()))
    assert (metrics["ratio_mean"], metrics["ratio_max"], metrics["kl_to_old"], metrics["clip_fraction"]) == (1, 1, 0, 0)


WHOLE = {"prompts_per_step": 4, "group_size": 4, "minibatch_trajectories": 16}


@pytest.mark.parametrize("at", ["one", "sampling", "truncated"])
@pytest.mark.parametrize("recipe", [{}, {"kl": {"beta": 0.1}}], ids=["plain", "kl"])
def test_the_first_ratios_are_exactly_1_wherever_log_probs_are_taken(at, recipe):
    trainer = trainer_for(
        run_spec(recipe=recipe, schedule=WHOLE | {"temperature": 0.4, "top_p": 0.6, "logprobs_at": at})
    )
    metrics = trainer.update(with_old_logprobs(trainer, rollouts()))
    assert (metrics["ratio_mean"], metrics["ratio_max"], metrics["kl_to_old"]) == (1, 1, 0)
    assert metrics.get("kl_to_reference", 0.0) == 0


@pytest.mark.parametrize(("at", "heat"), [("one", 1.0), ("sampling", 0.4)])
def test_log_probs_and_entropy_are_those_of_the_divided_logits(at, heat):
    trainer = trainer_for(run_spec(schedule=WHOLE | {"temperature": 0.4, "logprobs_at": at}))
    samples = rollouts(4)
    with torch.no_grad():
        logp = [
            (trainer.backend.network(torch.from_numpy(sample.token_ids)[None])[0] / heat).log_softmax(-1)
            for sample in samples
        ]
    rows = trainer.old_logprobs(samples)
    entropies = []
    for logp_TV, sample, row in zip(logp, samples, rows, strict=True):
        for at_token in np.flatnonzero(sample.loss_mask):
            before_V = logp_TV[at_token - 1]
            assert row[at_token] == pytest.approx(before_V[sample.token_ids[at_token]].item(), abs=1e-4)
            entropies.append(-(before_V.exp() * before_V).sum().item())
    assert trainer.update(with_old_logprobs(trainer, samples))["entropy"] == pytest.approx(np.mean(entropies), abs=1e-4)


def test_truncated_log_probs_are_of_what_is_kept_and_of_the_sampled_token():
    """Written out for each token; what nobody would have sampled has a log-prob too, and nothing is infinite."""
    heat, top_p = 0.7, 0.6
    schedule = WHOLE | {"temperature": heat, "top_p": top_p, "logprobs_at": "truncated"}
    trainer = trainer_for(run_spec(schedule=schedule))
    samples = rollouts(4)
    for sample, row in zip(samples, trainer.old_logprobs(samples), strict=True):
        with torch.no_grad():
            scaled_TV = trainer.backend.network(torch.from_numpy(sample.token_ids)[None])[0] / heat
        for at_token in np.flatnonzero(sample.loss_mask):
            scaled, token = scaled_TV[at_token - 1].tolist(), int(sample.token_ids[at_token])
            kept = kept_by_definition(scaled, 0, top_p, 0.0) | {token}
            expected = scaled[token] - torch.tensor([scaled[t] for t in kept]).logsumexp(0).item()
            assert row[at_token] == pytest.approx(expected, abs=1e-4)
    metrics = trainer.update(with_old_logprobs(trainer, samples))
    assert np.isfinite(list(metrics.values())).all()
    whole = trainer_for(run_spec(schedule=schedule | {"logprobs_at": "sampling"}))
    assert metrics["entropy"] < whole.update(with_old_logprobs(whole, samples))["entropy"]


def test_a_token_that_has_left_the_kept_set_still_has_a_ratio():
    """The policy moves far between two updates; no ratio, loss or weight becomes infinite."""
    schedule = WHOLE | {"top_k": 2, "logprobs_at": "truncated"}
    recipe = {"stages": [], "optimizer": {"learning_rate": 0.05}, "objective": {"kind": "clipped"}}
    trainer = trainer_for(run_spec(schedule=schedule, recipe=recipe))
    samples = with_old_logprobs(trainer, rollouts())
    for _ in range(4):
        metrics = trainer.update(samples)
    assert np.isfinite(list(metrics.values())).all()
    assert all(torch.isfinite(tensor).all() for tensor in trainer.backend.weights().values())


def test_a_truncation_that_log_probs_do_not_follow_changes_no_training():
    plain, cut = (
        trainer_for(run_spec(schedule=WHOLE | more)) for more in ({}, {"top_p": 0.6, "top_k": 3, "min_p": 0.1})
    )
    assert plain.update(with_old_logprobs(plain, rollouts())) == cut.update(with_old_logprobs(cut, rollouts()))
    assert same_weights(plain, cut)


def test_at_temperature_1_it_is_the_same_wherever_log_probs_are_taken():
    one, sampling = (trainer_for(run_spec(schedule=WHOLE | {"logprobs_at": at})) for at in ("one", "sampling"))
    assert one.update(with_old_logprobs(one, rollouts())) == sampling.update(with_old_logprobs(sampling, rollouts()))
    assert same_weights(one, sampling)


def test_later_minibatches_see_ratios_that_moved():
    trainer = trainer_for(run_spec(schedule={"prompts_per_step": 4, "group_size": 4, "minibatch_trajectories": 4}))
    metrics = trainer.update(with_old_logprobs(trainer, rollouts()))
    assert trainer.updates == 4
    assert metrics["kl_to_old"] > 0
    assert metrics["ratio_max"] > 1


def test_an_update_makes_good_tokens_likelier_and_bad_ones_less():
    trainer = trainer_for(run_spec())
    samples = with_old_logprobs(trainer, rollouts())
    trainer.update(samples)
    gain = sum(
        ((np.array(after) - sample.old_logprobs) * sample.advantages)[sample.loss_mask].sum()
        for after, sample in zip(trainer.old_logprobs(samples), samples, strict=True)
    )
    assert gain > 0


def test_advantages_and_logprobs_outside_the_mask_change_no_bit():
    polluted_trainer, clean_trainer = trainer_for(run_spec()), trainer_for(run_spec())
    clean = with_old_logprobs(clean_trainer, rollouts())
    polluted = [
        sample_of(
            s.token_ids,
            s.loss_mask,
            advantages=s.advantages + 99 * ~s.loss_mask,
            old_logprobs=s.old_logprobs - 5 * ~s.loss_mask,
            rollout_logprobs=s.rollout_logprobs,
        )
        for s in clean
    ]
    assert polluted_trainer.update(polluted) == clean_trainer.update(clean)
    assert same_weights(polluted_trainer, clean_trainer)


def test_old_logprobs_are_the_models_and_0_outside_the_mask():
    trainer, samples = trainer_for(run_spec()), rollouts(3)
    for sample, row in zip(samples, trainer.old_logprobs(samples), strict=True):
        ids = torch.from_numpy(sample.token_ids)
        with torch.no_grad():
            logp_TV = trainer.backend.network(ids[None])[0].log_softmax(-1)
        expected = [logp_TV[t - 1, ids[t]].item() if learned else 0.0 for t, learned in enumerate(sample.loss_mask)]
        assert row == pytest.approx(expected, abs=1e-5)


def test_what_the_policy_read_last_changes_no_bit():
    """An observation that filled the context is followed by no token, and may even exceed it."""
    with_trailing, without = trainer_for(run_spec()), trainer_for(run_spec())
    samples = with_old_logprobs(without, rollouts(8))
    longer = [
        sample_of([*s.token_ids, *[33] * 80], [*s.loss_mask, *[False] * 80], advantages=[*s.advantages, *[1.0] * 80])
        for s in samples
    ]
    longer = with_old_logprobs(with_trailing, longer)
    assert [len(s.old_logprobs) for s in longer] == [len(s) + 80 for s in samples]
    assert with_trailing.update(longer) == without.update(samples)
    assert same_weights(with_trailing, without)


def test_a_sample_beyond_the_context_is_refused_by_name():
    with pytest.raises(ValueError, match="a sample of 129 tokens is longer than the context of 128"):
        trainer_for(run_spec()).old_logprobs([sample_of([1] * 129, [False] * 128 + [True])])


def test_metrics_by_hand_for_a_policy_that_knows_nothing():
    """All weights 0: every token has probability 1 / V."""
    trainer = trainer_for(run_spec())
    with torch.no_grad():
        for parameter in trainer.backend.network.parameters():
            parameter.zero_()
    uniform = torch.log(torch.tensor(1 / len(TOKENIZER))).item()
    mask = [False, True, True, True]
    sample = sample_of(
        [1, 20, 30, 40], mask, advantages=[0, 1, -2, 3], rollout_logprobs=[0, uniform, uniform + 1, uniform]
    )
    metrics = trainer.update(with_old_logprobs(trainer, [sample]))
    assert metrics["entropy"] == pytest.approx(-uniform, rel=1e-5)
    assert metrics["tokens"] == 3
    assert metrics["loss"] == pytest.approx(-(1 - 2 + 3) / 3)
    assert metrics["mismatch_max"] == pytest.approx(1, abs=1e-4)
    assert metrics["mismatch_kl"] == pytest.approx((2.718281828**-1 - 1 + 1) / 3, rel=1e-3)
    assert metrics["learning_rate"] == 1e-3


def test_the_learning_rate_warms_up_over_updates():
    recipe = {"stages": [], "optimizer": {"learning_rate": 1.0, "warmup_steps": 4}}
    trainer = trainer_for(run_spec(recipe=recipe))
    rates = []
    for seed in range(6):
        rates.append(trainer.update(with_old_logprobs(trainer, rollouts(4, seed)))["learning_rate"])
    assert rates == [0.25, 0.5, 0.75, 1, 1, 1]


def test_nothing_to_learn_is_no_update_and_moves_nothing():
    trainer, untouched = trainer_for(run_spec()), trainer_for(run_spec())
    assert trainer.update([sample_of([1, 2], [False, False])]) == {"updates": 0, "tokens": 0}
    assert same_weights(trainer, untouched)


def test_a_masked_sample_among_others_teaches_nothing():
    with_masked, without = trainer_for(run_spec()), trainer_for(run_spec())
    samples = with_old_logprobs(without, rollouts(8))
    masked = sample_of([5] * 90, [False] * 90, advantages=[100.0] * 90)
    a, b = with_masked.update([*samples, masked]), without.update(samples)
    assert {name: pytest.approx(value, abs=1e-6) for name, value in a.items()} == b
    for ours, theirs in zip(with_masked.backend.weights().values(), without.backend.weights().values(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)


def demonstrations(count: int = 50) -> list[Sample]:
    """ "Repeat what the user said", three letters."""
    dice, samples = random.Random(1), []
    for _ in range(count):
        word = TOKENIZER.encode("".join(dice.choices("abcd", k=3)))
        prompt, reply = [TOKENIZER.bos, TOKENIZER.user, *word, TOKENIZER.assistant], [*word, TOKENIZER.eos]
        samples.append(sample_of([*prompt, *reply], [False] * len(prompt) + [True] * len(reply)))
    return samples


def test_the_cold_start_learns_its_demonstrations():
    stage = first_stage(demonstrations(500), Stage(steps=250, batch_size=32, learning_rate=5e-3))
    history = trainer_for(run_spec()).supervised(stage, steps=250, first_step=0)
    assert history[0]["loss"] == pytest.approx(4.7, abs=0.3)  # ln 108
    assert history[-1]["loss"] < 0.1


def test_the_cold_start_learns_sampled_tokens_only():
    """What a tool says after the learned token may be anything: no bit of the weights depends on it."""
    trainers = [trainer_for(run_spec()) for _ in range(3)]
    for trainer, output, learned in zip(trainers, ([40, 50], [60, 70], [40, 50]), (False, False, True), strict=True):
        sample = sample_of([1, 20, 30, *output], [False, False, True, learned, learned])
        trainer.supervised(first_stage([sample]), steps=5, first_step=0)
    assert same_weights(trainers[0], trainers[1])
    assert not same_weights(trainers[0], trainers[2])


def test_every_demonstration_has_its_turn_once_per_epoch():
    batches = [batch_of_step(50, step, size=8, seed=0) for step in range(12)]
    for epoch in (batches[:6], batches[6:]):
        assert len({i for batch in epoch for i in batch}) == 48
    assert batches[:6] != batches[6:]


def test_a_cold_start_in_slices_equals_one_in_a_piece(tmp_path):
    whole, first_part = trainer_for(run_spec()), trainer_for(run_spec())
    steps_seen: list[int] = []
    history = whole.supervised(
        first_stage(demonstrations()), steps=9, first_step=0, on_progress=lambda step, _: steps_seen.append(step)
    )
    part = first_part.supervised(first_stage(demonstrations()), steps=4, first_step=0)
    first_part.save(tmp_path / "at-4")
    second_part = trainer_for(run_spec())
    second_part.load(tmp_path / "at-4")
    part += second_part.supervised(first_stage(demonstrations()), steps=5, first_step=4)
    assert part == history
    assert steps_seen == list(range(9))
    assert same_weights(whole, second_part)


ANNEALED = Stage(steps=3, learning_rate=0.1, warmup=0.0, decay="constant", weight_decay=0.1, final_weight_decay=0.01)


def test_a_stage_that_anneals_goes_on_to_the_same_bits(tmp_path):
    whole, first_part, second_part = (trainer_for(run_spec()) for _ in range(3))
    whole.supervised(first_stage(demonstrations(), ANNEALED), steps=3, first_step=0)
    first_part.supervised(first_stage(demonstrations(), ANNEALED), steps=1, first_step=0)
    first_part.save(tmp_path / "at-1")
    second_part.load(tmp_path / "at-1")
    second_part.supervised(first_stage(demonstrations(), ANNEALED), steps=2, first_step=1)
    assert same_weights(whole, second_part)


def test_a_stage_of_one_step_keeps_the_weight_decay_that_it_begins_with():
    assert first_stage(demonstrations(), ANNEALED.model_copy(update={"steps": 1})).weight_decay(0) == 0.1
    assert first_stage(demonstrations()).weight_decay(0) is None


def test_a_cold_start_after_reinforcement_is_refused():
    trainer = trainer_for(run_spec())
    trainer.update(with_old_logprobs(trainer, rollouts()))
    with pytest.raises(RuntimeError, match="come before"):
        trainer.supervised(first_stage(demonstrations()), steps=1, first_step=0)


def test_reinforcement_begins_with_a_fresh_optimizer():
    """After a cold start the first update moves as far as Adam without a past: the learning rate per weight."""
    trainer = trainer_for(run_spec(recipe={"stages": [{"steps": 40}], "optimizer": {"learning_rate": 1e-4}}))
    trainer.supervised(first_stage(demonstrations()), steps=10, first_step=0)
    before = trainer.backend.weights()
    trainer.update(with_old_logprobs(trainer, rollouts()))
    moved = torch.cat([(after - before[name]).abs().flatten() for name, after in trainer.backend.weights().items()])
    assert moved.max() <= 1.01e-4
    assert moved.median() == pytest.approx(1e-4, rel=0.01)


@pytest.mark.parametrize("stop_after", ["cold start", "some updates"])
def test_save_and_load_continue_to_the_same_bits(tmp_path, stop_after):
    straight, stopped = trainer_for(run_spec()), trainer_for(run_spec())
    for trainer in (straight, stopped):
        trainer.supervised(first_stage(demonstrations()), steps=5, first_step=0)
    if stop_after == "some updates":
        for trainer in (straight, stopped):
            for seed in range(3):
                trainer.update(with_old_logprobs(trainer, rollouts(seed=seed)))
    stopped.save(tmp_path / "here")
    resumed = trainer_for(run_spec(seed=99))
    resumed.load(tmp_path / "here")
    assert resumed.updates == straight.updates
    for seed in range(3, 6):
        reports = [t.update(with_old_logprobs(t, rollouts(seed=seed))) for t in (straight, resumed)]
        assert reports[0] == reports[1]
    assert same_weights(straight, resumed)


def test_equal_inputs_give_equal_bits_and_another_seed_others():
    a, b, other = trainer_for(run_spec()), trainer_for(run_spec()), trainer_for(run_spec(seed=1))
    for trainer in (a, b, other):
        trainer.supervised(first_stage(demonstrations()), steps=3, first_step=0)
        trainer.update(with_old_logprobs(trainer, rollouts()))
    assert same_weights(a, b)
    assert not same_weights(a, other)


def test_a_crash_while_saving_leaves_no_folder_and_the_next_save_works(tmp_path, monkeypatch):
    trainer = trainer_for(run_spec())
    with monkeypatch.context() as patch:
        patch.setattr(backend_module.torch, "save", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            trainer.save(tmp_path / "here")
    assert not (tmp_path / "here").exists()
    trainer.save(tmp_path / "here")
    assert sorted(path.name for path in tmp_path.rglob("*")) == [
        "config.json",
        "here",
        "model",
        "model.safetensors",
        "tokenizer.json",
        "trainer.pt",
    ]


@pytest.mark.parametrize("file", ["model/model.safetensors", "trainer.pt"])
def test_a_full_disk_is_an_os_error_with_its_reason_and_has_its_space_back(tmp_path, file):
    trainer = trainer_for(run_spec())
    # With an optimiser that is larger than the weights.
    trainer.supervised(first_stage(demonstrations()), steps=1, first_step=0)
    trainer.save(tmp_path / "here")
    least, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, ((tmp_path / "here" / file).stat().st_size - 1000, most))
    try:
        with pytest.raises(OSError, match="File too large"):
            trainer.save(tmp_path / "there")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (least, most))
    assert [path.name for path in tmp_path.iterdir()] == ["here"]


def test_saving_over_another_checkpoint_is_refused(tmp_path):
    trainer = trainer_for(run_spec())
    trainer.save(tmp_path / "here")
    with pytest.raises(OSError):
        trainer.save(tmp_path / "here")


def test_weights_are_copies():
    trainer = trainer_for(run_spec())
    for tensor in trainer.backend.weights().values():
        tensor.zero_()
    assert any(tensor.any() for tensor in trainer.backend.weights().values())


@pytest.mark.parametrize("max_tokens", [1, 50, 130, 10**6])
def test_microbatches_hold_every_sample_once_within_their_bound(max_tokens):
    samples = rollouts(20)
    cut = microbatch.microbatches(samples, device=torch.device("cpu"), max_tokens=max_tokens)
    assert sorted(row for batch in cut for row in batch.rows) == list(range(20))
    for batch in cut:
        assert batch.token_ids_BT.numel() <= max_tokens or len(batch.rows) == 1
        for row, i in enumerate(batch.rows):
            length = len(samples[i])
            assert batch.token_ids_BT[row, :length].tolist() == samples[i].token_ids.tolist()
            assert not batch.mask_BT[row, length:].any()
