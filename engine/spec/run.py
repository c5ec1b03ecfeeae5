"""What is a run?  One document that the REST body, the web form, the TOML file and the engine share.

Every field has its default, its range and its reason next to it; the pages and the reference are
generated from them.  Combinations that cannot work are refused here, with the remedy.
"""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, StringConstraints, model_validator

from engine.spec.backends import GENERATORS, TRAINERS
from engine.spec.environment import SUITED_VOCABULARY, Environment, PythonMath, Vocabulary
from engine.spec.impossible import impossible
from engine.spec.recipe import Recipe
from engine.spec.requirement import refusals_beside
from engine.spec.strict import MOST_STEPS, MOST_TASKS, MOST_THINGS, Strict

Name = Annotated[str, StringConstraints(min_length=1, max_length=100, pattern=r"^[\w][\w .:+-]*$")]


COLDEST = 0.01
"""The lowest temperature at which log-probs are taken: logits that differ by 1 are 100 nats apart there."""


class Dataset(Strict):
    """Tasks are generated from their number: the same number is the same task everywhere; splits never overlap."""

    train_tasks: int = Field(default=20000, ge=1, le=MOST_TASKS)
    heldout_tasks: int = Field(default=510, ge=1, le=MOST_TASKS)
    seed: int = Field(default=0, ge=0, lt=2**31)
    """Of the task generator; runs with equal dataset seeds see equal tasks."""


class Model(Strict):
    """A small transformer of the Qwen3 architecture with a built-in vocabulary, initialised at random."""

    architecture: Literal["qwen3"] = "qwen3"
    vocabulary: Vocabulary = "characters"
    """What its tokens are: single characters, or these and the words of a built-in world, each word one token.
    A run that does not say gets the words of its environment where that has some."""
    layers: int = Field(default=2, ge=1, le=64)
    hidden_size: int = Field(default=96, ge=8, le=65536)
    heads: int = Field(default=4, ge=1, le=1024)
    kv_heads: int = Field(default=2, ge=1, le=1024)
    head_dim: int = Field(default=24, ge=2, le=1024)
    intermediate_size: int = Field(default=256, ge=8, le=2**20)
    context_tokens: int = Field(default=128, ge=16, le=2**20)
    """Prompt, sampled tokens and tool outputs of one episode must fit in here."""

    @model_validator(mode="after")
    def _heads_share_kv_heads(self) -> Self:
        if self.heads % self.kv_heads:
            raise impossible(
                "kv_heads",
                self.kv_heads,
                f"{self.heads} heads cannot share {self.kv_heads} kv_heads evenly",
                f"choose a divisor of {self.heads}",
            )
        if self.head_dim % 2:
            raise impossible(
                "head_dim", self.head_dim, "rotary embeddings need an even head_dim", f"use {self.head_dim + 1}"
            )
        return self


class Resources(Strict):
    """What the run may use."""

    trainer: Literal[*TRAINERS] = "torch"  # type: ignore[valid-type]
    generator: Literal[*GENERATORS] = "torch"  # type: ignore[valid-type]
    device: Literal["cpu", "cuda"] = "cpu"
    threads: int = Field(default=2, ge=1, le=1024)
    """CPU threads of the trainer and of the generator (they take turns).  1 makes a run exactly repeatable."""
    rollout_workers: int = Field(default=1, ge=1, le=256)
    kv_slots: int = Field(default=64, ge=1, le=4096)
    """Episodes that the generator keeps in its KV cache at once."""
    sandboxes: int = Field(default=64, ge=1, le=4096)
    """Sandboxes per rollout worker."""


class Schedule(Strict):
    steps: int = Field(default=40, ge=1, le=MOST_STEPS)
    """RL steps, each one batch of rollouts and one or more updates."""
    prompts_per_step: int = Field(default=32, ge=1, le=MOST_THINGS)
    group_size: int = Field(default=8, ge=1, le=MOST_THINGS)
    """Rollouts per prompt."""
    minibatch_trajectories: int = Field(default=256, ge=1, le=MOST_THINGS)
    """Trajectories per optimiser update; must divide prompts_per_step x group_size."""
    temperature: float = Field(default=1.0, gt=0, le=10)
    """At which training samples; evaluation samples at 1."""
    logprobs_at: Literal["one", "sampling"] = "one"
    """The temperature of log-probs, and so of ratios, KL, entropy and the policy that is trained.  ``one``: 1, whatever
    is sampled at.  ``sampling``: logits are divided by ``temperature``, as verl does; the cold start stays at 1."""
    checkpoint_every: int = Field(default=10, ge=1, le=MOST_STEPS)
    """Steps between checkpoints.  The last step always makes one."""
    keep_checkpoints: int = Field(default=3, ge=1, le=MOST_STEPS)
    stall_timeout_s: float = Field(default=300.0, gt=0, le=30 * 86400)
    """A phase that lasts longer is a stall: the attempt is ended and the reason names the phase."""
    max_attempts: int = Field(default=10, ge=1, le=1000)
    """How often the run is started at most, the first time included."""

    @property
    def logprob_temperature(self) -> float:
        """By which logits are divided before a log-prob is taken of what training samples."""
        return self.temperature if self.logprobs_at == "sampling" else 1.0


class Evaluation(Strict):
    """Held-out tasks, solved greedily and by sampling at temperature 1."""

    every: int = Field(default=10, ge=0, le=MOST_STEPS)
    """Steps between evaluations; 0 evaluates only before the first and after the last step."""
    tasks: int = Field(default=510, ge=1, le=MOST_THINGS)
    """Held-out tasks per evaluation before and after RL."""
    interim_tasks: int = Field(default=90, ge=1, le=MOST_THINGS)
    """Held-out tasks per evaluation in between."""


class RunSpec(Strict):
    """Everything that decides what a run does."""

    name: Name
    environment: Annotated[Environment, Field(discriminator="id")] = PythonMath()
    dataset: Dataset = Dataset()
    model: Model = Model()
    recipe: Recipe = Recipe()
    resources: Resources = Resources()
    schedule: Schedule = Schedule()
    evaluation: Evaluation = Evaluation()
    seed: int = Field(default=0, ge=0, lt=2**31)

    @model_validator(mode="before")
    @classmethod
    def _environment_is_python_math_unless_named(cls, given: Any) -> Any:
        environment = given.get("environment") if isinstance(given, dict) else None
        if isinstance(environment, dict) and "id" not in environment:
            return {**given, "environment": {"id": PythonMath().id, **environment}}
        return given

    @model_validator(mode="before")
    @classmethod
    def _vocabulary_suits_the_environment_unless_named(cls, given: Any) -> Any:
        """Old specs do not name it, and keep their meaning."""
        if not isinstance(given, dict):
            return given
        environment, model = given.get("environment"), given.get("model", {})
        environment_id = environment.get("id") if isinstance(environment, dict) else getattr(environment, "id", None)
        suited = (
            SUITED_VOCABULARY.get(environment_id, "characters") if isinstance(environment_id, str) else "characters"
        )
        if isinstance(model, Model) and "vocabulary" not in model.model_fields_set:
            return {**given, "model": model.model_copy(update={"vocabulary": suited})}
        if isinstance(model, dict) and "vocabulary" not in model:
            return {**given, "model": {**model, "vocabulary": suited}}
        return given

    @model_validator(mode="after")
    def _parts_fit_together(self) -> Self:
        for refusal in refusals_beside(self, self.recipe):
            raise refusal
        batch = self.schedule.prompts_per_step * self.schedule.group_size
        minibatch = self.schedule.minibatch_trajectories
        if batch > MOST_THINGS:
            raise impossible(
                "schedule.prompts_per_step",
                self.schedule.prompts_per_step,
                f"{batch} trajectories per step (prompts_per_step x group_size) are more than {MOST_THINGS}",
                f"use at most {MOST_THINGS // self.schedule.group_size}",
            )
        if batch % minibatch:
            raise impossible(
                "schedule.minibatch_trajectories",
                minibatch,
                f"{batch} trajectories per step (prompts_per_step x group_size) "
                f"do not divide into minibatches of {minibatch}",
                f"use a divisor of {batch}",
            )
        self._log_probs_can_be_taken()
        for field in ("tasks", "interim_tasks"):
            if getattr(self.evaluation, field) > self.dataset.heldout_tasks:
                raise impossible(
                    f"evaluation.{field}",
                    getattr(self.evaluation, field),
                    f"the dataset holds out only {self.dataset.heldout_tasks} tasks",
                    f"use at most {self.dataset.heldout_tasks}, or raise dataset.heldout_tasks",
                )
        return self

    def _log_probs_can_be_taken(self) -> None:
        schedule = self.schedule
        if schedule.logprobs_at == "sampling" and schedule.temperature < COLDEST:
            raise impossible(
                "schedule.temperature",
                schedule.temperature,
                "log-probs at so low a temperature are those of a greedy policy: 0 or out of reach",
                f'use at least {COLDEST}, or schedule.logprobs_at = "one"',
            )

    @property
    def longest_response_tokens(self) -> int:
        """What the policy can write in one episode at most."""
        return min(self.model.context_tokens, self.environment.max_turns * self.environment.max_turn_tokens)

    @property
    def rl_steps(self) -> int:
        """``schedule.steps``, or 0 where the recipe has no RL."""
        return self.schedule.steps if self.recipe.reinforces else 0
