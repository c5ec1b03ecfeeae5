"""A trajectory as it was sampled: token ids, log-probs, tool calls, rewards.

It is what the rollout makes, the trainer reads, the event stream carries and the page shows.
"""

from typing import Literal

from pydantic import Field

from engine.spec.strict import Strict

Split = Literal["train", "heldout"]
Purpose = Literal["train", "eval-greedy", "eval-sampled", "demonstration"]
"""``demonstration``: scripted for the cold start; no policy sampled it."""

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
    "other",
]

StopReason = Literal["answered", "no-tool-call", "turn-limit", "truncated"]
"""Why the episode ended: an answer; neither an answer nor a tool call; too many turns; the context was full."""


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
    """Of the sampled tokens, as the generator reported them (nats)."""
    policy_versions: list[int]
    advantages: list[float] | None = None
    """Per sampled token; None until the credit phase, and in evaluation."""
    old_logprobs: list[float] | None = None
    """Recomputed by the trainer before its update; None in evaluation."""
    tool_call: ToolCall | None = None


class Trajectory(Strict):
    id: str
    """``<purpose>-<step>-<group>-<index>``: the same rollout has the same id in every attempt of a run."""
    purpose: Purpose
    step: int = Field(ge=0)
    """The training step whose update it feeds; for evaluations, the number of finished steps."""
    group: int = Field(ge=0)
    """Which prompt of the step."""
    index: int = Field(ge=0)
    """Which sample of the group."""
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

    @property
    def sampled_tokens(self) -> int:
        return sum(len(turn.token_ids) for turn in self.turns)

    @property
    def tool_calls(self) -> list[ToolCall]:
        return [turn.tool_call for turn in self.turns if turn.tool_call is not None]

    @property
    def tool_errors(self) -> int:
        return sum(call.status == "error" for call in self.tool_calls)
