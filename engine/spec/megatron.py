"""How a run's ranks share a network in Megatron: the sizes of its parallel dimensions."""

from typing import Literal

from pydantic import Field

from engine.spec.strict import Strict

Recompute = Literal["as-model", "attention", "layers"]


class Megatron(Strict):
    """Parts into which the trainer's ranks divide the network (arXiv:1909.08053, arXiv:2104.04473).

    What ``trainer_ranks`` leaves beyond tensor x pipeline x context is data parallel: each replica of the network takes
    a share of every batch.  The loss and its gradient are those of one rank, and a run may be resumed with another
    layout.
    """

    tensor: int = Field(default=1, ge=1, le=256)
    """Parts of every matrix, by heads, by inner dimension and by vocabulary; all of these must divide."""
    pipeline: int = Field(default=1, ge=1, le=256)
    """Parts of the network's depth; the layers must divide."""
    context: int = Field(default=1, ge=1, le=256)
    """Parts of every sequence, for contexts that one rank's memory does not hold."""
    expert: int = Field(default=1, ge=1, le=256)
    """Parts of a mixture's experts, over the ranks of a pipeline stage; 1 unless the model is a mixture."""
    sequence_parallel: bool = False
    """Whether norms and residuals are divided by positions over the tensor ranks (arXiv:2205.05198).  A mixture with
    ``tensor`` above 1 needs it."""
    sequence_packing: bool = False
    """Whether the sequences of a micro-batch are computed in one row without padding, none of which sees another."""
    distributed_optimizer: bool = False
    """Whether master weights and moments are divided over the data-parallel ranks (ZeRO 1, arXiv:1910.02054), parameter
    by parameter, in place of being held by each."""
    recompute: Recompute = "as-model"
    """What is computed again in the backward pass in place of being kept: ``layers`` all of a layer, ``attention`` the
    attention alone; ``as-model`` is ``layers`` where ``model.gradient_checkpointing`` is set, else nothing."""
