"""What is a run?  One document that the REST body, the web form, the TOML file and the engine share.

Every field has its default, its range and its reason next to it; the pages and the reference are
generated from them.  Combinations that cannot work are refused here, with the remedy.
"""

from collections.abc import Iterator
from typing import Annotated, Any, Literal, Self

from pydantic import Field, StringConstraints, model_validator
from pydantic_core import PydanticCustomError

from engine.spec.backends import ALWAYS_LED, GENERATORS, SHARDED_TRAINERS, SHARING_GENERATORS, TRAINERS
from engine.spec.environment import Agent, PythonMath
from engine.spec.estimator import CriticEstimator
from engine.spec.generation import NO_TRUNCATION, Distribution, Truncation
from engine.spec.impossible import Combination, impossible, within
from engine.spec.judge_requirements import refusals_of_judge
from engine.spec.megatron import Megatron
from engine.spec.mixture import RunEnvironment, parts_of, sandboxes_of, suited_vocabulary
from engine.spec.model import BuiltinModel, Model
from engine.spec.model_files import CatalogVersion
from engine.spec.placement import Placement
from engine.spec.players import LONGEST_SCRIPT, Player, turns_of_script
from engine.spec.recipe import Recipe
from engine.spec.requirement import needing_one_segment, refusals_beside
from engine.spec.sglang import JudgeServers, Sglang
from engine.spec.sglang_requirements import refusals_of_sglang
from engine.spec.strict import MOST_STEPS, MOST_TASKS, MOST_THINGS, Strict

Name = Annotated[str, StringConstraints(min_length=1, max_length=100, pattern=r"^[\w][\w .:+-]*$")]


COLDEST = 0.01
"""The lowest temperature at which log-probs are taken: logits that differ by 1 are 100 nats apart there."""
MOST_RANKS = 256
"""As many as one machine can have."""


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


class Resources(Combination):
    """What the run may use."""

    trainer: Literal[*TRAINERS] = "torch"  # type: ignore[valid-type]
    trainer_ranks: int = Field(default=1, ge=1, le=MOST_RANKS)
    """Processes over which the trainer's weights, gradients and optimiser are divided, all on one machine; with
    ``device = "cuda"`` each has a GPU.  ``torch`` shards them evenly (FSDP2), ``megatron`` as the table ``megatron``
    says.  More of them take less memory each; the loss is that of one.  A run may be resumed with another number."""
    megatron: Megatron = Megatron()
    """How the ranks of the trainer ``megatron`` share the network."""
    generator: Literal[*GENERATORS] = "torch"  # type: ignore[valid-type]
    generators: int = Field(default=1, ge=1, le=256)
    """Generators of ``torch``, each a process on Ray or a thread in one process, with ``kv_slots`` of its own.  As many
    as there are ``trainer_ranks`` share their devices with those; the others have theirs alone, and go on sampling
    while ``schedule.multiplexing`` gives the shared ones to a step.  A run may be resumed with another number."""
    device: Literal["cpu", "cuda"] = "cpu"
    threads: int = Field(default=2, ge=1, le=1024)
    """CPU threads of each of the trainer's ranks, and of the generator (they take turns).  1 makes a run exactly
    repeatable."""
    threads_share: Literal["operations", "micro-batches"] = "operations"
    """With ``trainer = "torch"``: what its threads share.  ``operations``: the work of each one, which large networks
    are worth.  ``micro-batches``: each thread computes its own, of a ``threads``-th of the tokens, which small networks
    gain by; gradients are the same up to rounding, and repeat exactly."""
    share_prefixes: bool = False
    """Whether the trainer reads a prompt that several rollouts of a micro-batch begin with once, and not once for each.
    Log-probs and gradients are the same up to rounding; long prompts with short rollouts gain most."""
    rollout_workers: int = Field(default=1, ge=1, le=256)
    kv_slots: int = Field(default=64, ge=1, le=4096)
    """Episodes that each generator keeps in its KV cache at once."""
    decoders: int = Field(default=1, ge=1, le=64)
    """Processes in which ``generator = "torch"`` samples on the CPU: each has an equal share of ``kv_slots`` and of
    ``threads``, and all of the weights.  1: the generator's own process.  Two on two processors sample a small model
    about twice as fast.  Tokens do not depend on which of them a rollout is in; one that dies is started again."""
    batch_delay_ms: float = Field(default=0.0, ge=0.0, le=1000.0)
    """With ``generator = "torch"``: how long a pass that would sample for less than a quarter of the slots waits for
    more, where other rollouts are with their tools.  Fuller passes leave processors to others; each token of such a
    rollout takes up to so much longer.  Tokens are the same."""
    sandboxes: int = Field(default=64, ge=1, le=4096)
    """Sandboxes per rollout worker."""
    placement: Placement = Placement()
    sglang: Sglang = Sglang()
    """The settings of ``generator = "sglang"`` alone."""
    judge: JudgeServers | None = None
    """Servers of a language model that judges; absent: none are started."""

    def refusals(self) -> Iterator[PydanticCustomError]:
        """Yield what the trainer and the generator that are named cannot have."""
        yield from within("sglang", self.sglang.refusals())
        yield from self._trainer_can_have_ranks()
        yield from self._generator_can_be_one_of_several()
        yield from self._servers_are_asked()
        yield from self._trainer_can_share_prefixes()
        yield from self._trainer_can_share_microbatches()
        yield from self._generator_can_have_decoders()
        yield from self._generator_can_delay_passes()
        yield from self._layout_fits_the_ranks()

    def _trainer_can_have_ranks(self) -> Iterator[PydanticCustomError]:
        if self.trainer_ranks > 1 and self.trainer not in SHARDED_TRAINERS:
            yield impossible(
                "trainer_ranks",
                self.trainer_ranks,
                f"the trainer {self.trainer} is one process",
                f"use 1, or a trainer that can be sharded: {', '.join(SHARDED_TRAINERS)}",
            )

    def _generator_can_be_one_of_several(self) -> Iterator[PydanticCustomError]:
        if self.generators > 1 and self.generator not in SHARING_GENERATORS:
            sglang = "; resources.sglang.servers says how many servers it has" if self.generator == "sglang" else ""
            problem = f"sessions of {self.generator} cannot move from one generator to another{sglang}"
            yield impossible("generators", self.generators, problem, "use 1")

    def _servers_are_asked(self) -> Iterator[PydanticCustomError]:
        if self.generator != "sglang" and self.sglang != Sglang():
            remedy = 'remove the table, or set resources.generator = "sglang"'
            yield impossible("sglang", "set", f"the generator {self.generator} asks no servers", remedy)

    def _trainer_can_share_prefixes(self) -> Iterator[PydanticCustomError]:
        if self.share_prefixes and self.trainer == "megatron":
            problem = "the trainer megatron computes every row by itself"
            yield impossible("share_prefixes", True, problem, 'set it to false, or resources.trainer = "torch"')

    def _trainer_can_share_microbatches(self) -> Iterator[PydanticCustomError]:
        if self.threads_share == "operations":
            return
        if self.trainer != "torch" or self.trainer_ranks > 1:
            problem = "threads share the micro-batches of the trainer torch on one rank alone"
            remedy = 'use "operations", or resources.trainer = "torch" and one rank'
            yield impossible("threads_share", self.threads_share, problem, remedy)
        elif self.device != "cpu":
            problem = "a GPU computes one micro-batch at a time"
            yield impossible("threads_share", self.threads_share, problem, 'use "operations", or device = "cpu"')

    def _generator_can_have_decoders(self) -> Iterator[PydanticCustomError]:
        if self.decoders == 1:
            return
        if self.generator != "torch":
            problem = f"the generator {self.generator} has processes of its own"
            yield impossible("decoders", self.decoders, problem, 'use 1, or resources.generator = "torch"')
        elif self.device != "cpu":
            problem = "decoders share out processors, and one samples alone on its GPU"
            yield impossible("decoders", self.decoders, problem, 'use 1, or resources.device = "cpu"')
        elif self.generators > 1:
            problem = f"each of {self.generators} generators (resources.generators) samples in a process of its own"
            yield impossible("decoders", self.decoders, problem, "use 1, or one generator")
        elif self.decoders > self.kv_slots:
            problem = f"each takes one of the {self.kv_slots} slots at least (resources.kv_slots)"
            yield impossible("decoders", self.decoders, problem, f"use at most {self.kv_slots}, or more slots")

    def _generator_can_delay_passes(self) -> Iterator[PydanticCustomError]:
        if self.batch_delay_ms and self.generator != "torch":
            problem = f"the generator {self.generator} decides by itself when a pass begins"
            yield impossible("batch_delay_ms", self.batch_delay_ms, problem, 'use 0, or resources.generator = "torch"')

    def _layout_fits_the_ranks(self) -> Iterator[PydanticCustomError]:
        megatron, ranks = self.megatron, self.trainer_ranks
        if self.trainer != "megatron":
            if megatron != Megatron():
                remedy = 'remove the table, or set resources.trainer = "megatron"'
                yield impossible("megatron", "set", f"the trainer {self.trainer} has no such layout", remedy)
            return
        replica = self.replica_ranks
        if replica > MOST_RANKS:
            problem = "one replica (tensor x pipeline x context) takes more ranks than a run can have"
            remedy = f"make megatron.tensor, pipeline or context smaller, to a product of at most {MOST_RANKS}"
            yield impossible("megatron", "set", problem, remedy)
            return
        if ranks % replica:
            problem = f"one replica takes {replica} ranks (tensor x pipeline x context)"
            yield impossible("trainer_ranks", ranks, problem, f"use a multiple of {replica}")
            return
        if (ranks // megatron.pipeline) % megatron.expert:
            problem = f"the {ranks // megatron.pipeline} ranks of a pipeline stage do not divide by it"
            yield impossible("megatron.expert", megatron.expert, problem, "use a divisor of them")
        if megatron.sequence_parallel and megatron.tensor == 1:
            problem = "positions are divided over the tensor ranks, and there is one"
            yield impossible("megatron.sequence_parallel", True, problem, "set it to false, or raise megatron.tensor")

    def sends_adapter_of(self, model: Model) -> bool:
        """Return whether the generator gets the adapter of LoRA apart, and never the weights that it adapts."""
        is_adapted = getattr(model, "lora", None) is not None
        return is_adapted and self.generator == "sglang" and self.sglang.lora == "adapter"

    @property
    def replica_ranks(self) -> int:
        """Return how many of the trainer's ranks hold one replica of the network, which computes a share of a batch."""
        megatron = self.megatron
        return megatron.tensor * megatron.pipeline * megatron.context if self.trainer == "megatron" else 1

    @property
    def shared_generators(self) -> int:
        """Return how many generators share their devices with the trainer's ranks, the first ones."""
        return min(self.generators, self.trainer_ranks)

    @property
    def has_leader(self) -> bool:
        """Return whether the trainer is led: several ranks, or a backend whose only rank has a leader too."""
        return self.trainer_ranks > 1 or self.trainer in ALWAYS_LED


class Schedule(Combination):
    steps: int = Field(default=40, ge=1, le=MOST_STEPS)
    """RL steps, each one batch of rollouts and one or more updates."""
    prompts_per_step: int = Field(default=32, ge=1, le=MOST_THINGS)
    group_size: int = Field(default=8, ge=1, le=MOST_THINGS)
    """Rollouts per prompt."""
    minibatch_trajectories: int = Field(default=256, ge=1, le=MOST_THINGS)
    """Trajectories per optimiser update; must divide prompts_per_step x group_size."""
    temperature: float = Field(default=1.0, gt=0, le=10)
    """At which training samples; evaluation has its own."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    """Training samples from the smallest set of likeliest tokens whose probability reaches this; 1: from all."""
    top_k: int = Field(default=0, ge=0, le=MOST_THINGS)
    """Training samples from so many of the likeliest tokens; 0: from all.  Taken before ``top_p``."""
    min_p: float = Field(default=0.0, ge=0, le=1)
    """Training samples from tokens at least so many times as likely as the likeliest; 0: from all.  Taken last."""
    logprobs_at: Literal["one", "sampling", "truncated"] = "one"
    """The temperature of log-probs, and so of ratios, KL, entropy and the policy that is trained.  ``one``: 1, whatever
    is sampled at.  ``sampling``: logits are divided by ``temperature``, as verl does; supervised stages stay at 1.
    ``truncated``: the same, and over what ``top_k``, ``top_p`` and ``min_p`` keep, as it is sampled."""
    async_ratio: int = Field(default=0, ge=0, le=16)
    """How many versions old a rollout may be when it is trained on, counted from its first token.  0: generation and
    training take turns, and a run with ``threads = 1`` repeats exactly.  Above: they overlap (docs/staleness.md)."""
    weight_exchange: Literal["in-flight", "episode-borders"] = "in-flight"
    """When the generator takes new weights, above ``async_ratio`` 0.  ``in-flight``: at once, between two tokens; what
    is being played goes on with them.  ``episode-borders``: no episode begins until those that are being played have
    ended, so that each trajectory has one version."""
    redundant_members: int = Field(default=0, ge=0, le=1024)
    """Rollouts of a prompt that are started beyond ``group_size``; the first that come back are kept, the rest are
    ended.  Slow ones cost no time then, and short ones are favoured."""
    redundant_groups: int = Field(default=0, ge=0, le=MOST_THINGS)
    """Prompts that are in play beyond those of ``async_ratio + 1`` batches.  Each step may give up as many that are
    too slow; their prompts are played again once, and then waited for."""
    overdue: Literal["wait", "discard"] = "wait"
    """What is done with a group that would be older than ``async_ratio`` at the next step.  ``wait``: the step waits
    for it.  ``discard``: it is ended and its prompt is played again, once; then it is waited for."""
    multiplexing: bool = False
    """Above ``async_ratio`` 0, where generator and trainer share their devices: whether one of them at a time has them.
    While a batch is trained on the generator samples nothing; of several (``resources.generators``) those that share
    nothing go on, with what the others had begun.  Tools, judges and sandboxes go on.  Else all work at once, each
    slower."""
    multiplexing_hold_s: float = Field(default=1.0, ge=0, le=3600)
    """With ``multiplexing``: the devices change sides at most once in so many seconds."""
    checkpoint_every: int = Field(default=10, ge=1, le=MOST_STEPS)
    """Steps between checkpoints.  The last step always makes one."""
    keep_checkpoints: int = Field(default=3, ge=1, le=MOST_STEPS)
    stall_timeout_s: float = Field(default=300.0, gt=0, le=30 * 86400)
    """A phase that lasts longer is a stall: the attempt is ended and the reason names the phase."""
    max_attempts: int = Field(default=10, ge=1, le=1000)
    """How often the run is started at most, the first time included."""

    def refusals(self) -> Iterator[PydanticCustomError]:
        """Yield what of a schedule contradicts another field of it."""
        yield from self._redundancy_leaves_a_batch()
        yield from self._multiplexing_has_something_to_lay_into()

    def _redundancy_leaves_a_batch(self) -> Iterator[PydanticCustomError]:
        if self.redundant_groups > self.prompts_per_step:
            yield impossible(
                "redundant_groups",
                self.redundant_groups,
                f"a step that gives up more groups than the {self.prompts_per_step} it trains on could not train on "
                "them all once they have to be waited for",
                f"use at most {self.prompts_per_step}",
            )

    def _multiplexing_has_something_to_lay_into(self) -> Iterator[PydanticCustomError]:
        if self.multiplexing and not self.async_ratio:
            problem = "at schedule.async_ratio = 0 generation and training take turns anyway, step by step"
            yield impossible("multiplexing", True, problem, "use false, or an async_ratio of at least 1")
        if self.multiplexing and self.weight_exchange == "episode-borders":
            problem = (
                'with schedule.weight_exchange = "episode-borders" new weights wait for episodes that could not go on'
            )
            yield impossible("multiplexing", True, problem, 'use weight_exchange = "in-flight", or false')
        if self.multiplexing and self.multiplexing_hold_s >= self.stall_timeout_s:
            problem = f"a step that waits so long for devices is a stall (stall_timeout_s = {self.stall_timeout_s:g})"
            yield impossible("multiplexing_hold_s", self.multiplexing_hold_s, problem, "use less")

    @property
    def overlaps(self) -> bool:
        """Return whether groups are played one by one, beside the training; else a step plays its own, all together."""
        return bool(self.async_ratio or self.redundant_members or self.redundant_groups)

    @property
    def slots(self) -> int:
        """Groups that may be in play, ready or in training at once."""
        return (self.async_ratio + 1) * self.prompts_per_step + self.redundant_groups

    @property
    def logprob_temperature(self) -> float:
        """By which logits are divided before a log-prob is taken of what training samples."""
        return 1.0 if self.logprobs_at == "one" else self.temperature

    @property
    def truncation(self) -> Truncation:
        """The truncation of what training samples from."""
        return Truncation(top_k=self.top_k, top_p=self.top_p, min_p=self.min_p)

    @property
    def logprobs_truncated(self) -> bool:
        """Return whether log-probs are those of what ``truncation`` keeps."""
        return self.logprobs_at == "truncated"

    @property
    def logprob_distribution(self) -> Distribution:
        """The distribution whose log-probs are taken of what training samples."""
        return Distribution(self.logprob_temperature, self.truncation if self.logprobs_truncated else NO_TRUNCATION)


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
