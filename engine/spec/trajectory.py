"""A trajectory as it was sampled: token ids, log-probs, tool calls, rewards.

It is what the rollout makes, the trainer reads, the event stream carries and the page shows.
"""

from typing import Any, Literal

from pydantic import Field, model_validator

from engine.spec import files_of_0_2
from engine.spec.strict import Strict

Split = Literal["train", "heldout"]
Purpose = Literal["train", "eval-greedy", "eval-sampled", "eval-purified", "demonstration"]
"""``demonstration``: scripted for the cold start; no policy sampled it.  ``eval-purified``: with SAAR at work."""

ErrorClass = Literal[
    "syntax",
    "name",
    "import",
    "type",
    "value",
    "index",
    "zero-division",
    "timeout",
    "memory",
    "output",
    "killed",
    "illegal",
    "unknown-tool",
    "arguments",
    "frozen",
    "other",
]
"""``illegal``: an action that the environment does not admit in its present state; ``unknown-tool``, ``arguments``: a
call that no tool of the environment takes, which was not made; ``frozen``: stopped by an alert."""

StopReason = Literal["answered", "done", "no-tool-call", "turn-limit", "truncated", "frozen"]
"""Why the episode ended: an answer; the environment's goal was reached or missed for good; neither an answer nor a
tool call; too many turns; the context was full; its sandbox was frozen because of an alert."""

ChangeKind = Literal[
    "purified", "purification-failed", "stripped", "prefilled", "turn-masked", "mismatch-masked", "resampled"
]
"""``purified``: a failed call was replaced by its correction; ``purification-failed``: no correction worked, and the
last failing attempt stays; ``stripped``: experience that the policy read was taken out of training; ``prefilled``: an
expert's turns; ``turn-masked``: a turn not learned; ``mismatch-masked``: tokens not learned, because the trainer finds
them far likelier than the generator did; ``resampled``: played in place of one that taught nothing."""


class Task(Strict):
    """One problem.  ``answer`` is what scoring compares with and is never shown to the policy."""

    id: str
    split: Split
    level: int
    question: str
    answer: str


class ToolCall(Strict):
    name: str
    arguments: str
    output: str
    status: Literal["ok", "error"]
    error_class: ErrorClass | None = None
    seconds: float


class Change(Strict):
    """Something that changed what is trained on, so that a reader can see it and undo it in thought."""

    kind: ChangeKind
    turn: int = Field(ge=0)
    """The turn it concerns, counted as in ``Trajectory.turns``."""
    start: int = Field(ge=0)
    """First token it concerns: of ``token_ids``, or of ``context_ids`` for ``stripped``."""
    stop: int = Field(ge=0)
    """The token after the last one."""
    reason: str
    """A short name, e.g. ``shallow``, ``deep``, ``error``, ``near-duplicate``, ``replay``."""
    before: str = ""
    """The text that was there, if any."""
    after: str = ""
    """The text that is there now, if any."""
    removed_ids: list[int] = []
    """Tokens that stood there, as sampled."""
    details: dict[str, str | int | float] = {}
    """What else is known: attempts, error_class, similarity, ..."""


class Turn(Strict):
    """What the policy read, what it then wrote, and what the tool answered.

    ``context_ids`` are the tokens appended before this call (prompt or observation; loss mask 0),
    ``token_ids`` the sampled ones (loss mask 1).  ``pieces`` is the text of each sampled token,
    so that a viewer needs no tokenizer.
    """

    context_ids: list[int]
    context_text: str
    token_ids: list[int]
    pieces: list[str]
    logprobs: list[float]
    """Of the sampled tokens, as the generator reported them (nats), at the temperature of ``schedule.logprobs_at``."""
    policy_versions: list[int]
    advantages: list[float] | None = None
    """Per sampled token; None until the credit phase, and in evaluation."""
    old_logprobs: list[float] | None = None
    """Recomputed by the trainer before its update; None in evaluation."""
    tool_call: ToolCall | None = None
    prefilled: bool = False
    """An expert's turn, replayed: the policy did not sample it, and only imitation learns it."""
    imitated: bool = False
    """Prefilled and learned by imitation: no further than the crucial turn, or no rollout of its group succeeded."""
    masked_because: str | None = None
    """Why no token of this turn is trained on, or None."""
    experience_span: tuple[int, int] | None = None
    """Where ``context_ids`` holds experience, half open."""
    verdict: Literal["good", "bad"] | None = None
    """A judge's, where credit asks for one and the judge did not fail."""


class Start(Strict):
    """Where in an expert's trajectory a rollout began."""

    expert: str
    """The id of the expert's trajectory."""
    prefix: int = Field(ge=0)
    """The number of its turns that were prefilled; 0 is a fresh start."""
    turns: int = Field(ge=1)
    """All turns of the expert."""
    reward: float | None = None
    """What the expert earned, by which its turns are imitated; None: what the recipe pays for the right answer."""


class Trajectory(Strict):
    id: str
    """``<purpose>-<prompt>-<member>``: the same rollout has the same id in every attempt of a run."""
    purpose: Purpose
    prompt: int = Field(ge=0)
    """The running number of its prompt among those of its purpose, over the whole run, from 0."""
    member: int = Field(ge=0)
    """Which rollout of its prompt."""
    sampled_at_version: int = Field(ge=-1)
    """The policy version that sampled its first token; for evaluations the version evaluated; -1 for demonstrations."""
    trained_at_step: int | None = Field(default=None, ge=1)
    """The step whose update it was part of.  None: an evaluation, left out, masked, or in quarantine until released."""
    task: Task
    turns: list[Turn]
    stop_reason: StopReason
    answer: str | None
    success: bool
    reward: float
    rewards: dict[str, float]
    """The components whose sum is ``reward``."""
    masked_because: str | None = None
    """Why no token of it is trained on, or None."""
    changes: list[Change] = []
    """Everything that made what is trained on differ from what was sampled, in order of time."""
    start: Start | None = None
    """None for a rollout that began at the start of its task."""
    first_attempt_errors: int | None = None
    """Failed tool calls before any repair: with purification, more than ``tool_errors`` counts.  None: the same."""
    alerts: list[str] = []
    """Ids of the alerts that quarantined it."""

    @model_validator(mode="before")
    @classmethod
    def _of_0_2(cls, document: Any) -> Any:
        return files_of_0_2.trajectory(document)

    @property
    def sampled_for_step(self) -> int:
        """The first step that could train on it; for evaluations the number of steps finished before them."""
        return self.sampled_at_version + 1 if self.purpose == "train" else max(0, self.sampled_at_version)

    @property
    def sampled_tokens(self) -> int:
        """Those of the policy: an expert's replayed turns are not among them."""
        return sum(len(turn.token_ids) for turn in self.turns if not turn.prefilled)

    @property
    def tool_calls(self) -> list[ToolCall]:
        """Likewise the policy's own."""
        return [turn.tool_call for turn in self.turns if turn.tool_call is not None and not turn.prefilled]

    @property
    def tool_errors(self) -> int:
        return sum(call.status == "error" for call in self.tool_calls)
