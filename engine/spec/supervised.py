"""The supervised stages of a run: what each learns before RL, in which order and how fast."""

from typing import Annotated, Literal, Self

from pydantic import Field, StringConstraints, model_validator

from engine.spec.impossible import impossible
from engine.spec.strict import MOST_STEPS, MOST_THINGS, Strict

RelativePath = Annotated[str, StringConstraints(pattern=r"^\w[\w-]*(\.[\w-]+)*(/\w[\w-]*(\.[\w-]+)*)*$")]
"""Neither absolute nor upwards: no part begins with a dot."""
Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
MOST_STAGES = 16
MOST_EPOCHS = 1000


class Demonstrations(Strict):
    """Scripted demonstrations of the environment.

    ``wrong_fraction`` of them guess the answer without the tool.  A majority makes guessing
    the policy's most likely behaviour, which RL then has to change.
    """

    kind: Literal["demonstrations"] = "demonstrations"
    count: int = Field(default=12288, ge=1, le=MOST_THINGS)
    """How many are made."""
    wrong_fraction: float = Field(default=0.6, ge=0, le=1)
    """The share of demonstrations that answer without using the tool."""
    tool_error_fraction: float = Field(default=0.2, ge=0, le=1)
    """The share of the other demonstrations in which one tool call is broken and then repaired."""


class Recordings(Strict):
    """Recorded trajectories, one JSON document per line, held in memory."""

    kind: Literal["recordings"] = "recordings"
    file: RelativePath
    """Relative to the data folder's ``trajectories``; of ``python -m engine train``, to the run file."""
    sha256: Sha256 | None = None
    """The file's content; absent: whatever it holds when the run first reads it."""


class Chat(Strict):
    """Conversations in the form of OpenAI's chat API, one JSON document per line, read from the disk as needed."""

    kind: Literal["chat"] = "chat"
    file: RelativePath
    """Relative to the data folder's ``trajectories``; of ``python -m engine train``, to the run file."""
    sha256: Sha256 | None = None
    """The file's content; absent: whatever it holds when the run first reads it."""
    turns: Literal["all", "last"] = "all"
    """Which turns of the assistant are learned."""
    too_long: Literal["refuse", "cut", "drop"] = "refuse"
    """What happens to a conversation that does not fit into the model's context: the run is refused, what does not fit
    is cut off, or the conversation is left out."""


class Text(Strict):
    """Plain text, one JSON document per line, every token of which is learned: continued pre-training (ALE, 3.2.1)."""

    kind: Literal["text"] = "text"
    file: RelativePath
    """Relative to the data folder's ``trajectories``; of ``python -m engine train``, to the run file."""
    sha256: Sha256 | None = None
    """The file's content; absent: whatever it holds when the run first reads it."""
    field: str = Field(default="text", min_length=1, max_length=100)
    """The name of the text in each document."""
    too_long: Literal["refuse", "cut", "drop", "split"] = "split"
    """What happens to a text that does not fit into the model's context; ``split``: it is learned in pieces."""


StageData = Demonstrations | Recordings | Chat | Text


class Revisiting(Strict):
    """A share of each batch is taken from the data of an earlier stage (ALE, 3.2.2)."""

    stage: int = Field(ge=1, le=MOST_STAGES)
    """The number of the earlier stage, from 1."""
    share: float = Field(default=0.2, gt=0, lt=1)
    """The share of a batch's examples, or of its tokens where ``batch_tokens`` counts them.  The paper gives no
    value."""
    keep: Literal["all", "verified"] = "all"
    """``verified``: trajectories that succeeded, without a failed call and without a turn that Rel(k) masks.  Chat and
    text say nothing of success."""


class Stage(Strict):
    """Supervised steps on one kind of data, with an optimiser of their own."""

    data: Annotated[StageData, Field(discriminator="kind")] = Demonstrations()
    """What is learned."""
    steps: int = Field(default=600, ge=1, le=MOST_STEPS)
    """Optimiser updates.  Not used with ``epochs``."""
    epochs: int = Field(default=0, ge=0, le=MOST_EPOCHS)
    """Passes over the data; 0: as many as ``steps`` make."""
    batch_size: int = Field(default=64, ge=1, le=MOST_THINGS)
    """Examples per step.  Not used with ``batch_tokens``."""
    batch_tokens: int = Field(default=0, ge=0, le=MOST_STEPS)
    """Tokens per step, at most; a longer example stands alone.  0: ``batch_size`` counts examples."""
    learning_rate: float = Field(default=2e-3, gt=0, le=1)
    """Its peak."""
    warmup: float = Field(default=0.05, ge=0, le=1)
    """The share of the steps over which the learning rate rises."""
    decay: Literal["cosine", "linear", "constant"] = "cosine"
    """How the learning rate goes on from its peak."""
    final_share: float = Field(default=0.1, ge=0, le=1)
    """The share of its peak at which the learning rate ends."""
    weight_decay: float = Field(default=0.0, ge=0, le=1)
    """AdamW's."""
    final_weight_decay: float | None = Field(default=None, ge=0, le=1)
    """AdamW's in the stage's last step, reached on a straight line from ``weight_decay`` in its first (ALE, 3.2.1: 0.1
    to 0.01 in stage II); absent: it stays as it is."""
    mask_errors: bool = False
    """Do not learn turns whose tool call failed: m_k = not Err(k) (ALE, eq. 1, 2).  In chat, ``is_error`` of a tool's
    message says so."""
    mask_irrelevant: bool = False
    """Do not learn redundant, near-duplicate, looping, pruned or compressing turns: Rel(k) (ALE, eq. 2)."""
    packing: bool = False
    """Fill rows of the model's context with several examples, none of which sees another."""
    validation_share: float = Field(default=0.0, ge=0, lt=1)
    """The share of the examples that is kept out of training, 512 at most; their loss is measured."""
    validation_every: int = Field(default=100, ge=1, le=MOST_STEPS)
    """Steps between measurements of that loss; the last step always makes one."""
    revisiting: Revisiting | None = None
    """Data of an earlier stage in each batch; absent: none."""
    checkpoint_every: int = Field(default=200, ge=1, le=MOST_STEPS)
    """Steps between checkpoints within the stage.  Its last step always makes one."""

    @model_validator(mode="after")
    def _batches_have_room_for_both(self) -> Self:
        if self.revisiting is not None and not self.batch_tokens and self.batch_size < 2:
            problem = "a batch of one example cannot hold one of this stage and one that is revisited"
            raise impossible("batch_size", self.batch_size, problem, "use at least 2, or remove revisiting")
        return self

    @model_validator(mode="after")
    def _masks_have_turns(self) -> Self:
        for name in ("mask_errors", "mask_irrelevant"):
            if getattr(self, name) and isinstance(self.data, Text):
                raise impossible(name, True, "plain text has no turns that could be masked", f"set {name} = false")
        return self


def check_revisiting(stages: tuple[Stage, ...]) -> None:
    """Raises for a stage that revisits one that is not before it, or asks it for what its data do not say."""
    for number, stage in enumerate(stages, start=1):
        if (revisiting := stage.revisiting) is None:
            continue
        field = f"stages.{number - 1}.revisiting"
        if revisiting.stage >= number:
            earlier = f"use a number below {number}" if number > 1 else "remove revisiting"
            raise impossible(f"{field}.stage", revisiting.stage, f"it is not before stage {number}", earlier)
        data = stages[revisiting.stage - 1].data
        if revisiting.keep == "verified" and not isinstance(data, (Demonstrations, Recordings)):
            raise impossible(
                f"{field}.keep",
                "verified",
                f"stage {revisiting.stage} learns {data.kind}, which says nothing of success",
                'use keep = "all"',
            )
