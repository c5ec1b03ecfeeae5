"""The workload on TRL's GRPOTrainer: ``python -m benchmarks.peers.trl_grpo WORKLOAD.json RUN.json``.

Runs in TRL's own virtual environment.  The options are the fastest of those that were tried for
TRL on this workload (docs/benchmarks.md lists them); gradient checkpointing, which TRL turns on by
default, is off.
"""

import asyncio
import os
import sys
import time
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

os.environ |= {"HF_HUB_OFFLINE": "1", "TRL_EXPERIMENTAL_SILENCE": "1", "TOKENIZERS_PARALLELISM": "false"}

import torch
from datasets import Dataset
from tokenizers import AddedToken, Regex
from tokenizers import Tokenizer as FastTokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from benchmarks.measurement import Run, Step
from benchmarks.peers.lockstep import LockstepGenerator
from benchmarks.workload import Workload, digit_share, sampled_tokens, turns
from engine.cluster.rollout_members import rollout_worker_for
from engine.cluster.sandboxes import opened_sandboxes
from engine.environments.contract import Sandboxes
from engine.environments.registry import environment_for
from engine.loop.expert_pool import ExpertPool
from engine.loop.planner import Planner, Played, planner_for
from engine.models.origin import model_origin
from engine.models.tokenizer import MARKS, tokenizer_for
from engine.rollout.renderers.contract import Renderer
from engine.rollout.renderers.registry import renderer_for
from engine.rollout.requests import EpisodeRequest
from engine.rollout.worker import Collected
from engine.spec.message import Message
from engine.spec.mixture import alone
from engine.spec.objective import Clipped
from engine.spec.run import RunSpec
from engine.spec.trajectory import Trajectory

MICRO_BATCH = 64
"""Rows per forward and backward pass at most; gradients are accumulated to one update per batch."""


class TimedTrainer(GRPOTrainer):
    """Clocks around TRL's own phases; nothing that TRL does is changed."""

    rollout_s = score_s = 0.0
    completion_ids: list[list[int]]
    """The sampled ids of the last batch."""

    def _generate(self, *arguments: Any, **options: Any) -> Any:
        begin = time.perf_counter()
        result = super()._generate(*arguments, **options)
        self.rollout_s += time.perf_counter() - begin
        self.completion_ids = result[1]
        return result

    def _generate_and_score_completions(self, *arguments: Any, **options: Any) -> Any:
        begin, rollout_before = time.perf_counter(), self.rollout_s
        result = super()._generate_and_score_completions(*arguments, **options)
        self.score_s += time.perf_counter() - begin - (self.rollout_s - rollout_before)
        return result


class StepClock(TrainerCallback):
    """Turns the trainer's clocks into steps, from the end of one to the end of the next."""

    def __init__(self, episodes: "Episodes | None") -> None:
        self.trainer: TimedTrainer | None = None
        self.steps: list[Step] = []
        self._episodes = episodes

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        self._last, self._last_cpu = time.perf_counter(), time.process_time()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        trainer, now, cpu_now = self.trainer, time.perf_counter(), time.process_time()
        assert trainer is not None
        seconds, cpu = now - self._last, cpu_now - self._last_cpu
        rest = seconds - trainer.rollout_s - trainer.score_s
        self.steps.append(Step(seconds, trainer.rollout_s, trainer.score_s, rest, cpu, *self._done(trainer)))
        trainer.rollout_s = trainer.score_s = 0.0
        self._last, self._last_cpu = now, cpu_now

    def _done(self, trainer: TimedTrainer) -> tuple[int, int, int]:
        """Trajectories, turns, sampled tokens of the step."""
        if self._episodes is None:
            lengths = list(map(len, trainer.completion_ids))
            return len(lengths), len(lengths), sum(lengths)
        done = self._episodes.last
        return len(done), turns(done), sampled_tokens(done)


def hf_tokenizer() -> PreTrainedTokenizerFast:
    """The built-in vocabulary with equal ids; marks are recognised in text, since TRL's prompts are text."""
    ours = tokenizer_for("characters")
    fast = FastTokenizer(WordLevel({text: i for i, text in enumerate(ours.vocab)}, unk_token=ours.vocab[ours.unk]))
    fast.pre_tokenizer = Split(Regex(r"[\s\S]"), "isolated")
    fast.add_special_tokens([AddedToken(mark, special=True, normalized=False) for mark in MARKS])
    return PreTrainedTokenizerFast(
        tokenizer_object=fast, pad_token="<pad>", unk_token="<unk>", bos_token="<bos>", eos_token="<eos>"
    )


def single_turn_reward(renderer: Renderer) -> Callable[..., list[float]]:
    def digit_share_of_completion(completion_ids: list[list[int]], **_: Any) -> list[float]:
        return [digit_share(renderer.pieces(token_ids)) for token_ids in completion_ids]

    return digit_share_of_completion


def episode_reward(reward: list[float], **_: Any) -> list[float]:
    """Return what the episode itself earned; ``Episodes`` passes it on."""
    return reward


def requests_of(planner: Planner, spec: RunSpec, step: int) -> list[EpisodeRequest]:
    """The rollouts of training step ``step`` (from 1), group by group, where no expert is known."""
    prompts = (step - 1) * spec.schedule.prompts_per_step
    played = Played(tasks_taken=prompts, prompts=prompts)
    return planner.requests(planner.plans(step - 1, played, ExpertPool()))


class Episodes:
    """TRL's ``rollout_func`` for whole episodes: Palestra's own episode code over ``LockstepGenerator``.

    Prompts arrive as TRL's sampler repeats them, group by group, which is the order of ``requests_of``.
    """

    def __init__(
        self, spec: RunSpec, sandboxes: Sandboxes, run: Callable[[Coroutine[Any, Any, Collected]], Collected]
    ) -> None:
        self._spec, self._sandboxes, self._run = spec, sandboxes, run
        self._planner = planner_for(spec)
        self._step = 0
        self.last: list[Trajectory] = []

    def __call__(self, prompts: list[str], trainer: GRPOTrainer) -> dict[str, Any]:
        self._step += 1
        requests = requests_of(self._planner, self._spec, self._step)
        generator = LockstepGenerator(
            model=trainer.accelerator.unwrap_model(trainer.model),
            pad=trainer.processing_class.pad_token_id,
            context_tokens=model_origin(self._spec.model).context_tokens,
            episodes=len(requests),
        )
        collected = self._run(rollout_worker_for(self._spec, generator, self._sandboxes).collect(requests))
        if collected.discarded:
            raise RuntimeError(f"episodes were lost, so the batch is not whole: {dict(collected.discarded)}")
        self.last = collected.trajectories
        tokenizer = tokenizer_for("characters")
        if [tokenizer.decode(trajectory.turns[0].context_ids) for trajectory in self.last] != prompts:
            raise RuntimeError("TRL asked for other prompts than those of this step")
        rows = [_row(trajectory) for trajectory in self.last]
        return {
            "prompt_ids": [trajectory.turns[0].context_ids for trajectory in self.last],
            "completion_ids": [token_ids for token_ids, _ in rows],
            "env_mask": [mask for _, mask in rows],
            "logprobs": None,  # only asked for when another engine samples than the trajectory that trains
            "reward": [trajectory.reward for trajectory in self.last],
        }


def _row(trajectory: Trajectory) -> tuple[list[int], list[int]]:
    """Everything after the prompt, and 1 where the policy wrote it."""
    token_ids: list[int] = []
    mask: list[int] = []
    for number, turn in enumerate(trajectory.turns):
        observed = turn.context_ids if number else []
        token_ids += [*observed, *turn.token_ids]
        mask += [0] * len(observed) + [1] * len(turn.token_ids)
    return token_ids, mask


def config(workload: Workload, output: Path) -> GRPOConfig:
    spec = workload.run_spec()
    batch = spec.schedule.prompts_per_step * spec.schedule.group_size
    rows = min(MICRO_BATCH, batch)
    passes = batch // rows
    clip, optimizer = spec.recipe.objective, spec.recipe.optimizer
    if not isinstance(clip, Clipped):
        raise ValueError(f"the workload's objective is {clip.kind}, and TRL's is clipped")
    return GRPOConfig(
        output_dir=str(output),
        max_steps=workload.steps,
        per_device_train_batch_size=rows,
        gradient_accumulation_steps=passes,
        steps_per_generation=passes,
        num_generations=spec.schedule.group_size,
        max_completion_length=spec.environment.max_turn_tokens,
        # No early stop in `completions`; with a rollout_func TRL does not look at this.
        generation_kwargs={"min_new_tokens": spec.environment.max_turn_tokens},
        temperature=spec.schedule.temperature,
        beta=0.0,
        epsilon=clip.clip_low,
        epsilon_high=clip.clip_high,
        learning_rate=optimizer.learning_rate,
        weight_decay=optimizer.weight_decay,
        max_grad_norm=optimizer.grad_clip,
        lr_scheduler_type="constant",
        shuffle_dataset=False,
        gradient_checkpointing=False,
        bf16=False,
        use_cpu=True,
        seed=spec.seed,
        report_to="none",
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
    )


def prompt_texts(workload: Workload, tokenizer: PreTrainedTokenizerFast) -> list[str]:
    """One text per group of every step.  Raises RuntimeError when TRL would read other ids than Palestra."""
    spec = workload.run_spec()
    environment, planner = environment_for(spec.environment, spec.dataset), planner_for(spec)
    renderer = renderer_for(spec.model, spec.environment)
    tasks = environment.tasks("train")
    token_ids = [
        renderer.prompt([Message("user", tasks[request.task].question)], environment.tools(tasks[request.task]))
        for step in range(1, workload.steps + 1)
        for request in requests_of(planner, spec, step)
        if request.member == 0
    ]
    texts = [renderer.text(ids) for ids in token_ids]
    if tokenizer(texts)["input_ids"] != token_ids:
        raise RuntimeError("the prompts have other token ids in TRL's tokenizer than in ours")
    return texts


def measure(workload: Workload, output: Path) -> list[Step]:
    """All steps, the warm-up included."""
    spec = workload.run_spec()
    if workload.setting == "completions":
        return _train(workload, output, single_turn_reward(renderer_for(spec.model, spec.environment)))
    # Lockstep keeps every episode of the batch open, each with its slot and its sandbox.
    batch = spec.schedule.prompts_per_step * spec.schedule.group_size
    resources = spec.resources.model_copy(update={"kv_slots": batch, "sandboxes": batch})
    spec = spec.model_copy(update={"resources": resources})
    with asyncio.Runner() as runner:
        opened = AsyncExitStack()
        try:
            folder = Path(opened.enter_context(TemporaryDirectory(prefix="palestra-bench-")))
            sandboxes = runner.run(
                opened.enter_async_context(
                    opened_sandboxes(alone(spec.environment), folder, size=spec.resources.sandboxes)
                )
            ).pool
            return _train(workload, output, episode_reward, Episodes(spec, sandboxes, runner.run))
        finally:
            runner.run(opened.aclose())


def _train(
    workload: Workload, output: Path, reward: Callable[..., list[float]], episodes: Episodes | None = None
) -> list[Step]:
    tokenizer = hf_tokenizer()
    clock = StepClock(episodes)
    trainer = TimedTrainer(
        model=AutoModelForCausalLM.from_pretrained(Path(workload.policy_folder, "model"), dtype=torch.float32),
        processing_class=tokenizer,
        reward_funcs=reward,
        args=config(workload, output),
        train_dataset=Dataset.from_dict({"prompt": prompt_texts(workload, tokenizer)}),
        callbacks=[clock],
        rollout_func=episodes,
    )
    clock.trainer = trainer
    trainer.train()
    return clock.steps


def main(workload_file: str, run_file: str) -> None:
    workload = Workload.read(Path(workload_file))
    torch.set_num_threads(workload.run_spec().resources.threads)
    with TemporaryDirectory() as output:
        steps = measure(workload, Path(output))
    versions = {name: version(name) for name in ("trl", "transformers", "accelerate", "torch")}
    Run("trl", steps[workload.warmup_steps :], versions, torch.get_num_threads()).write(Path(run_file))


if __name__ == "__main__":
    main(*sys.argv[1:])
