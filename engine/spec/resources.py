"""What a run may use: its trainer and generator, their processes, and who gets what of the machines."""

from collections.abc import Iterator
from typing import Literal

from pydantic import Field
from pydantic_core import PydanticCustomError

from engine.spec.backends import ALWAYS_LED, GENERATORS, SHARDED_TRAINERS, SHARING_GENERATORS, TRAINERS
from engine.spec.impossible import Combination, impossible, within
from engine.spec.megatron import Megatron
from engine.spec.model import Model
from engine.spec.placement import Placement
from engine.spec.sglang import JudgeServers, Sglang

MOST_RANKS = 256
"""As many as one machine can have."""


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
