"""What is a run?  One document that the REST body, the web form, the TOML file and the engine share.

Every field has its default, its range and its reason next to it; the pages and the reference are
generated from them.  Combinations that cannot work are refused here, with the remedy.
"""

from collections.abc import Iterator
from typing import Annotated, Any, Self

from pydantic import Field, StringConstraints, model_validator
from pydantic_core import PydanticCustomError

from engine.spec.environment import Agent, PythonMath
from engine.spec.estimator import CriticEstimator
from engine.spec.generation import Truncation
from engine.spec.impossible import Combination, impossible, within
from engine.spec.judge_requirements import refusals_of_judge
from engine.spec.mixture import RunEnvironment, parts_of, sandboxes_of, suited_vocabulary
from engine.spec.model import BuiltinModel, Model
from engine.spec.model_files import CatalogVersion
from engine.spec.players import LONGEST_SCRIPT, Player, turns_of_script
from engine.spec.recipe import Recipe
from engine.spec.requirement import needing_one_segment, refusals_beside
from engine.spec.resources import Resources
from engine.spec.schedule import Schedule
from engine.spec.sglang_requirements import refusals_of_sglang
from engine.spec.strict import MOST_STEPS, MOST_TASKS, MOST_THINGS, Strict

Name = Annotated[str, StringConstraints(min_length=1, max_length=100, pattern=r"^[\w][\w .:+-]*$")]


COLDEST = 0.01
"""The lowest temperature at which log-probs are taken: logits that differ by 1 are 100 nats apart there."""


class Dataset(Strict):
    """Tasks are generated from their number: the same number is the same task everywhere; splits never overlap.

    An environment over a team's own rows reads them from a stored version instead, which ``catalog`` names.
    """

    catalog: CatalogVersion | None = None
    """A version of one of the team's datasets, as ``name@version``; for environments that ask what a dataset holds."""
    folder: Annotated[str, StringConstraints(min_length=1, max_length=1000, pattern=r"^[^\x00-\x1f]+$")] | None = None
    """On the command line alone: the folder of a stored version, beside the run's file or anywhere by its absolute
    path, in place of ``catalog``."""
    train_tasks: int = Field(default=20000, ge=1, le=MOST_TASKS)
    heldout_tasks: int = Field(default=510, ge=1, le=MOST_TASKS)
    seed: int = Field(default=0, ge=0, lt=2**31)
    """The seed of the task generator; runs with equal dataset seeds see equal tasks."""

    @model_validator(mode="after")
    def _comes_from_one_place(self) -> Self:
        if self.catalog is not None and self.folder is not None:
            raise impossible(
                "folder", self.folder, "rows come from catalog or from a folder, not from both", "remove it"
            )
        return self

    @property
    def stored(self) -> tuple[str, str] | None:
        """The field that names rows of the team's own, and its value; None where tasks are made from their numbers."""
        named = [(name, value) for name in ("catalog", "folder") if (value := getattr(self, name)) is not None]
        return named[0] if named else None


class Evaluation(Strict):
    """Held-out tasks, solved greedily and by sampling."""

    every: int = Field(default=10, ge=0, le=MOST_STEPS)
    """Steps between evaluations; 0 evaluates only before the first and after the last step."""
    tasks: int = Field(default=510, ge=1, le=MOST_THINGS)
    """Held-out tasks per evaluation before and after RL."""
    interim_tasks: int = Field(default=90, ge=1, le=MOST_THINGS)
    """Held-out tasks per evaluation in between."""
    samples: int = Field(default=1, ge=1, le=1024)
    """Sampled tries of each task; greedily it is tried once.  More than one gives pass@k and narrower intervals."""
    temperature: float = Field(default=1.0, gt=0, le=10)
    """At which evaluation samples; it is greedy beside that."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    """Evaluation samples from the smallest set of likeliest tokens whose probability reaches this; 1: from all."""
    top_k: int = Field(default=0, ge=0, le=MOST_THINGS)
    """Evaluation samples from so many of the likeliest tokens; 0: from all."""
    min_p: float = Field(default=0.0, ge=0, le=1)
    """Evaluation samples from tokens at least so many times as likely as the likeliest; 0: from all."""

    players: list[Player] = Field(default=["model"], min_length=1, max_length=4)
    """Who plays the held-out tasks.  ``model``: the run's; beside it, where the recipe trains nothing: ``oracle``, the
    environment's own solution; ``nop``, an empty answer at once; ``script``, the turns of ``script``."""
    script: str = Field(default="", max_length=LONGEST_SCRIPT)
    """The turns of the player ``script``, a JSON object a line: {"call": "python", "arguments": {"code": "print(1)"}},
    or {"answer": "1"}.  A script that ends before its episode answers with nothing."""

    @model_validator(mode="after")
    def _script_can_be_read(self) -> Self:
        try:
            turns = turns_of_script(self.script)
        except ValueError as error:
            raise impossible("script", self.script[:80], f"it cannot be read: {error}", "mend the line") from error
        if bool(turns) != ("script" in self.players):
            problem = "it is played by nobody" if turns else "a script is to be played, and there is none"
            raise impossible("script", self.script[:80], problem, 'give one, with "script" among evaluation.players')
        if len(set(self.players)) < len(self.players):
            raise impossible("players", self.players, "one of them is named twice", "name each once")
        return self

    @property
    def truncation(self) -> Truncation:
        """The truncation of what evaluation samples from."""
        return Truncation(top_k=self.top_k, top_p=self.top_p, min_p=self.min_p)


class RunSpec(Combination):
    """Everything that decides what a run does."""

    name: Name
    environment: Annotated[RunEnvironment, Field(discriminator="id")] = PythonMath()
    dataset: Dataset = Dataset()
    model: Annotated[Model, Field(discriminator="kind")] = BuiltinModel()
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
    def _model_is_builtin_unless_named(cls, given: Any) -> Any:
        model = given.get("model") if isinstance(given, dict) else None
        if isinstance(model, dict) and "kind" not in model:
            return {**given, "model": {"kind": BuiltinModel().kind, **model}}
        return given

    @model_validator(mode="before")
    @classmethod
    def _vocabulary_suits_the_environment_unless_named(cls, given: Any) -> Any:
        """Old specs do not name it, and keep their meaning."""
        if not isinstance(given, dict):
            return given
        environment, model = given.get("environment"), given.get("model", {})
        suited = suited_vocabulary(environment)
        if isinstance(model, BuiltinModel) and "vocabulary" not in model.model_fields_set:
            return {**given, "model": model.model_copy(update={"vocabulary": suited})}
        if isinstance(model, dict) and model.get("kind", "builtin") == "builtin" and "vocabulary" not in model:
            return {**given, "model": {**model, "vocabulary": suited}}
        return given

    def refusals(self) -> Iterator[PydanticCustomError]:
        """Yield what one table asks for and another one cannot have, after what each cannot have by itself."""
        yield from within("resources", self.resources.refusals())
        yield from within("schedule", self.schedule.refusals())
        yield from self._environment_reads_the_dataset()
        yield from self._scheduled_components_are_paid()
        yield from self._agent_can_play()
        yield from refusals_beside(self, self.recipe)
        yield from self._batch_can_be_made()
        yield from self._parts_have_sandboxes()
        yield from self._rollouts_may_be_old()
        yield from self._devices_are_shared()
        yield from self._log_probs_can_be_taken()
        yield from refusals_of_sglang(self)
        yield from refusals_of_judge(self)
        yield from self._trainer_has_what_the_recipe_needs()
        yield from self._evaluation_fits()
        yield from self._players_can_play()

    def _batch_can_be_made(self) -> Iterator[PydanticCustomError]:
        schedule, minibatch = self.schedule, self.schedule.minibatch_trajectories
        batch = schedule.prompts_per_step * schedule.group_size
        if batch > MOST_THINGS:
            yield impossible(
                "schedule.prompts_per_step",
                schedule.prompts_per_step,
                f"{batch} trajectories per step (prompts_per_step x group_size) are more than {MOST_THINGS}",
                f"use at most {MOST_THINGS // schedule.group_size}",
            )
            return
        yield from self._buffer_fits()
        if batch % minibatch:
            yield impossible(
                "schedule.minibatch_trajectories",
                minibatch,
                f"{batch} trajectories per step (prompts_per_step x group_size) "
                f"do not divide into minibatches of {minibatch}",
                f"use a divisor of {batch}",
            )
            return
        replicas, rest = divmod(self.resources.trainer_ranks, self.resources.replica_ranks)
        if self.recipe.reinforces and replicas > minibatch and not rest:
            problem = (
                f"its {replicas} replicas share the {minibatch} trajectories of an update "
                "(schedule.minibatch_trajectories), and some would have none"
            )
            remedy = f"use at most {minibatch * self.resources.replica_ranks}, or larger minibatches"
            yield impossible("resources.trainer_ranks", self.resources.trainer_ranks, problem, remedy)

    def _rollouts_may_be_old(self) -> Iterator[PydanticCustomError]:
        """Whether what ``schedule.async_ratio`` allows is of any use here."""
        ratio, steps = self.schedule.async_ratio, self.schedule.steps
        if ratio and not self.recipe.reinforces:
            problem = "the recipe has no RL, so that no rollouts are played beside its training"
            yield impossible("schedule.async_ratio", ratio, problem, "use 0, or a recipe with RL")
            return
        for name in ("redundant_members", "redundant_groups"):
            if (started := getattr(self.schedule, name)) and not self.recipe.reinforces:
                problem = "the recipe has no RL, so that no group is played of which some rollouts could be too slow"
                yield impossible(f"schedule.{name}", started, problem, "use 0, or a recipe with RL")
        for part in parts_of(self.environment):
            response, oldest = part.environment.response, min(ratio, steps)
            is_held = part.environment.sandbox is not None and response.quarantine != "never"
            if is_held and 0 < response.release_within_steps < oldest:
                yield impossible(
                    f"{part.field}.response.release_within_steps",
                    response.release_within_steps,
                    f"a rollout may be {oldest} versions old before it is reviewed (schedule.async_ratio = {ratio}), "
                    "and too old to be released then",
                    f"use at least {oldest}, 0 to release none, or a smaller async_ratio",
                )

    def _players_can_play(self) -> Iterator[PydanticCustomError]:
        """Who tries an environment tells nothing of a model, and speaks turn by turn."""
        others = [player for player in self.evaluation.players if player != "model"]
        if others and self.recipe.trains:
            problem, remedy = f"{others[0]} tries the environment, and this recipe trains", 'use the recipe "evaluate"'
            yield impossible("evaluation.players", self.evaluation.players, problem, remedy)
        if others and any(isinstance(part.environment, Agent) for part in parts_of(self.environment)):
            problem = f"an agent's program plays this environment, and {others[0]} is none"
            yield impossible("evaluation.players", self.evaluation.players, problem, "try environment.tasks by itself")

    def _agent_can_play(self) -> Iterator[PydanticCustomError]:
        """What sets an episode back, or goes on in its middle, would need the agent's program to do the same."""
        if not any(isinstance(part.environment, Agent) for part in parts_of(self.environment)):
            return
        reason = "an agent owns its context, and its program cannot be put into the middle of an episode"
        if self.recipe.expert_starts is not None:
            yield impossible("recipe.expert_starts", "set", reason, "remove it, or train without an agent")
        for path, needed in needing_one_segment(self.recipe):
            problem = f"{needed}; an agent's calls are a tree of segments"
            yield impossible(f"recipe.{path}", "set", problem, "remove it, or train without an agent")

    def _environment_reads_the_dataset(self) -> Iterator[PydanticCustomError]:
        takes_dataset = getattr(self.environment, "takes_dataset", False)
        if self.dataset.stored is None and takes_dataset:
            problem = f"the tasks of the environment {self.environment.id} are rows of a dataset, and none is named"
            remedy = 'set it to "name@version"; on the command line dataset.folder may name a folder instead'
            yield impossible("dataset.catalog", None, problem, remedy)
        if self.dataset.stored is not None and not takes_dataset:
            field, value = self.dataset.stored
            yield impossible(
                f"dataset.{field}",
                value,
                f"the environment {self.environment.id} makes its tasks from their numbers, and reads no rows",
                "remove it, or choose an environment that asks what a dataset holds",
            )

    def _scheduled_components_are_paid(self) -> Iterator[PydanticCustomError]:
        """An environment that knows what it pays is asked; another one's components are known when they are paid."""
        paid: set[str] | None = getattr(self.environment, "reward_components", None)
        for number, schedule in enumerate(self.recipe.reward.schedules):
            if paid is not None and schedule.component not in paid:
                problem = f"the environment pays no such component; it pays {', '.join(sorted(paid)) or 'none'}"
                field = f"recipe.reward.schedules.{number}.component"
                yield impossible(field, schedule.component, problem, "name one of those, or remove the schedule")

    def _buffer_fits(self) -> Iterator[PydanticCustomError]:
        """A buffer is memory, and part of every checkpoint."""
        schedule = self.schedule
        members = schedule.group_size + schedule.redundant_members
        if schedule.overlaps and schedule.slots * members > MOST_THINGS:
            yield impossible(
                "schedule.async_ratio",
                schedule.async_ratio,
                f"{schedule.slots * members} rollouts could be in play or wait for training, more than {MOST_THINGS}",
                "use a smaller async_ratio, prompts_per_step or redundancy",
            )

    def _parts_have_sandboxes(self) -> Iterator[PydanticCustomError]:
        """Each part has sandboxes of its own, which no other part takes."""
        needed = len(sandboxes_of(self.environment))
        if self.resources.sandboxes < needed:
            problem = f"{needed} parts of the environment take sandboxes, and each needs one of its own"
            yield impossible("resources.sandboxes", self.resources.sandboxes, problem, f"use at least {needed}")

    def _devices_are_shared(self) -> Iterator[PydanticCustomError]:
        resources, schedule = self.resources, self.schedule
        if not (schedule.multiplexing and schedule.async_ratio):
            return
        is_apart = resources.device == "cuda" and resources.placement.generator == "apart"
        if resources.generator == "sglang" or is_apart:
            whose = "the servers of sglang have" if resources.generator == "sglang" else "a generator apart has"
            yield impossible(
                "schedule.multiplexing",
                True,
                f"{whose} GPUs that the trainer cannot use: there is nothing to share",
                'use false, or resources.generator = "torch" with resources.placement.generator = "colocated"',
            )
            return
        hold_s, stall_s = schedule.multiplexing_hold_s, schedule.stall_timeout_s
        if resources.generators > resources.shared_generators and hold_s < stall_s <= 2 * hold_s:
            problem = (
                "where other generators play on, a step waits for devices up to twice as long, "
                f"which is a stall (stall_timeout_s = {stall_s:g})"
            )
            yield impossible("schedule.multiplexing_hold_s", hold_s, problem, f"use less than {stall_s / 2:g}")

    def _log_probs_can_be_taken(self) -> Iterator[PydanticCustomError]:
        schedule = self.schedule
        if schedule.logprobs_at != "one" and schedule.temperature < COLDEST:
            yield impossible(
                "schedule.temperature",
                schedule.temperature,
                "log-probs at so low a temperature are those of a greedy policy: 0 or out of reach",
                f'use at least {COLDEST}, or schedule.logprobs_at = "one"',
            )

    def _trainer_has_what_the_recipe_needs(self) -> Iterator[PydanticCustomError]:
        if self.resources.trainer == "megatron" and isinstance(self.recipe.credit, CriticEstimator):
            yield impossible(
                "resources.trainer",
                "megatron",
                f"it has no critic, which recipe.credit = {getattr(self.recipe.credit, 'kind', 'critic')} needs",
                'use resources.trainer = "torch", or a credit without a critic',
            )

    def _evaluation_fits(self) -> Iterator[PydanticCustomError]:
        tasks, samples = self.evaluation.tasks, self.evaluation.samples
        if tasks * samples > MOST_THINGS:
            yield impossible(
                "evaluation.samples",
                samples,
                f"{tasks * samples} tries (tasks x samples) are more than {MOST_THINGS}",
                f"use at most {MOST_THINGS // tasks}",
            )
        for field in ("tasks", "interim_tasks"):
            if getattr(self.evaluation, field) > self.dataset.heldout_tasks:
                yield impossible(
                    f"evaluation.{field}",
                    getattr(self.evaluation, field),
                    f"the dataset holds out only {self.dataset.heldout_tasks} tasks",
                    f"use at most {self.dataset.heldout_tasks}, or raise dataset.heldout_tasks",
                )

    @property
    def rl_steps(self) -> int:
        """``schedule.steps``, or 0 where the recipe has no RL."""
        return self.schedule.steps if self.recipe.reinforces else 0
