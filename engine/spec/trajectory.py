"""A trajectory as it was sampled: token ids, log-probs, tool calls, rewards.

It is what the rollout makes, the trainer reads, the event stream carries and the page shows.

    trajectory ── segments ── turns        a segment is one context that only ever grew
                     └── a later one may begin like an earlier one: the shared beginning stands once, in the earlier

A conversation that is only appended to has one segment.  One whose context is edited (a renderer that leaves thoughts
out of the history, an agent that summarises or asks a sub-agent) has several.  A sampled token stands in one turn of
one segment, so that it is trained on at most once; where a later segment repeats it, it is only read.
"""

from collections.abc import Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from engine.spec import files_of_0_2
from engine.spec.agent import AgentRecord
from engine.spec.context import ContextRecord
from engine.spec.message import ToolRequest, text_of_arguments, unstorable
from engine.spec.strict import Strict

Split = Literal["train", "heldout"]
Purpose = Literal[
    "train",
    "eval-greedy",
    "eval-sampled",
    "eval-purified",
    "eval-oracle",
    "eval-nop",
    "eval-script",
    "demonstration",
    "difficulty",
]
"""``demonstration``: scripted for the cold start; no policy sampled it.  ``eval-purified``: with SAAR at work.
``eval-oracle``, ``eval-nop``, ``eval-script``: played to try the environment, not sampled by a policy.
``difficulty``: played to find out how hard its task is, and not stored."""

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

StopReason = Literal[
    "answered", "done", "no-tool-call", "turn-limit", "truncated", "frozen", "crashed", "silent", "killed"
]
"""Why the episode ended: an answer; the environment's goal was reached or missed for good, or an agent ended; neither
an answer nor a tool call; too many turns, or an agent's budget; the context was full; its sandbox was frozen because of
an alert; an agent crashed, never asked the policy, was killed by its sandbox."""

ChangeKind = Literal[
    "purified", "purification-failed", "stripped", "prefilled", "turn-masked", "mismatch-masked", "resampled"
]
"""``purified``: a failed call was replaced by its correction; ``purification-failed``: no correction worked, and the
last failing attempt stays; ``stripped``: experience that the policy read was taken out of training; ``prefilled``: an
expert's turns; ``turn-masked``: a turn not learned; ``mismatch-masked``: tokens not learned, because the trainer finds
them far likelier than the generator did; ``resampled``: played in place of one that taught nothing."""

LATEST = 1e11
"""Unix seconds that no moment of a run reaches; a date can be written of every one before."""

MADE_BY_TRAINING = "advantages and old log-probs"
"""``Trajectory.left_out`` where the document lacks nothing else."""


def storable_arguments(arguments: dict[str, Any]) -> dict[str, Any]:
    """The arguments.  Raises ValueError where some of them cannot be stored as JSON and read back as they are."""
    if problem := unstorable(arguments):
        raise ValueError(problem)
    return arguments


class Task(Strict):
    """One problem.  ``answer`` is what scoring compares with and is never shown to the policy."""

    id: str
    split: Split
    level: int
    question: str
    answer: str
    part: str | None = None
    """The part of the run's environment, by name; None where it has no parts."""


class ToolCall(Strict):
    """The record of a call: what the policy asked for, and what came of it."""

    id: str = ""
    """Its own among the calls of its turn, by which results are matched; empty in documents of version 0.2."""
    name: str
    arguments: Annotated[dict[str, Any], AfterValidator(storable_arguments)] = {}
    """The JSON object that the tool was given; empty where ``written`` stands for it."""
    written: str | None = None
    """The text of arguments that are not known as an object: they could not be read, or version 0.2 wrote them."""
    output: str
    status: Literal["ok", "error"]
    error_class: ErrorClass | None = None
    seconds: float
    began_at: float | None = None
    """When the environment was given the message with this call, in Unix seconds by the loop's clock.  None: it never
    was, for the call fitted no tool; or an engine wrote this that did not tell."""

    @classmethod
    def of(cls, request: ToolRequest, output: str, *, error_class: ErrorClass | None = None, seconds: float) -> Self:
        """The record of ``request``; a call with an error class has failed."""
        return cls(
            id=request.id,
            name=request.name,
            arguments={} if request.malformed is not None else dict(request.arguments),
            written=None if request.malformed is None else request.malformed.text,
            output=output,
            status="ok" if error_class is None else "error",
            error_class=error_class,
            seconds=seconds,
        )

    @property
    def failed(self) -> bool:
        return self.status == "error"

    @property
    def text(self) -> str:
        """The arguments for readers."""
        return text_of_arguments(self.arguments) if self.written is None else self.written


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
    """The log-probs of the sampled tokens, as the generator reported them (nats), at the temperature of
    ``schedule.logprobs_at``."""
    policy_versions: list[int]
    advantages: list[float] | None = None
    """There is one per sampled token; it is None until the credit phase, and in evaluation."""
    old_logprobs: list[float] | None = None
    """Recomputed by the trainer before its update; None in evaluation."""
    tool_calls: list[ToolCall] = []
    """The records of the calls that it asked for, in their order; none where it answered, or said neither."""
    answered: bool = False
    """It is an answer that the environment took.  An episode may go on behind one."""
    observed_text: str | None = None
    """What came since the turn before, where ``context_text`` holds more: a segment that writes the conversation
    again.  None: all of ``context_text``."""
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
    began_at: float | None = Field(default=None, ge=0, lt=LATEST)
    """When the generator was asked for it, in Unix seconds by the loop's clock.  None: an engine wrote this that did
    not report it, or it belongs to no moment, as an expert's turn."""
    seconds: float | None = Field(default=None, ge=0)
    """How long the generator took for it, queues and exchanges of weights included; of a purified turn, for all that
    was sampled and read in its place.  None where ``began_at`` is."""

    @model_validator(mode="before")
    @classmethod
    def _of_0_2(cls, document: Any) -> Any:
        return files_of_0_2.turn(document)

    @property
    def observation(self) -> str:
        """Return what the policy was told right before this turn."""
        return self.context_text if self.observed_text is None else self.observed_text

    @property
    def untimed(self) -> Self:
        """Without what a clock said of it and of its calls: equal turns are equal then."""
        calls = [call.model_copy(update={"began_at": None, "seconds": 0.0}) for call in self.tool_calls]
        return self.model_copy(update={"began_at": None, "seconds": None, "tool_calls": calls})

    @property
    def failed_calls(self) -> int:
        return sum(call.failed for call in self.tool_calls)

    @property
    def token_count(self) -> int:
        """The length of what it appended to its segment, read and sampled."""
        return len(self.context_ids) + len(self.token_ids)


class SharedPrefix(Strict):
    """The beginning that a segment has in common with an earlier one, and that stands there only."""

    segment: int = Field(ge=0)
    """Counted as in ``Trajectory.segments``."""
    tokens: int = Field(ge=1)
    """How many of that segment's tokens, from its very first one on, its own shared prefix included."""
    characters: int | None = Field(default=None, ge=0)
    """How long the shared part of the context is in which it ends, in characters.  None: it ends elsewhere; or its last
    token is a part of a letter; or an engine wrote this that did not measure it."""


class Segment(Strict):
    """Turns whose contexts each begin with everything before them: shared prefix, then turn after turn."""

    turns: list[Turn] = Field(min_length=1)
    prefix: SharedPrefix | None = None
    """None: it begins with the first token of its first turn."""
    numbers: list[int] | None = None
    """Where its turns stand among all turns of the trajectory, in order of time and from 0 on.  None: right behind
    those of the segments before it."""

    @property
    def token_count(self) -> int:
        """All tokens of its sequence, the shared ones included."""
        shared = 0 if self.prefix is None else self.prefix.tokens
        return shared + sum(turn.token_count for turn in self.turns)


class Start(Strict):
    """A start says where in an expert's trajectory a rollout began."""

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
    """The policy version that sampled its first token, for an agent, whose calls may overlap, the oldest of all its
    tokens; for evaluations the version evaluated; -1 for demonstrations."""
    trained_at_step: int | None = Field(default=None, ge=1)
    """The step whose update it was part of.  None: an evaluation, left out, masked, or in quarantine until released."""
    task: Task
    segments: list[Segment]
    """In the order in which they began; none where there was no room for a turn."""
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
    """It is None for a rollout that began at the start of its task."""
    first_attempt_errors: int | None = None
    """Failed tool calls before any repair: with purification, more than ``tool_errors`` counts.  None: the same."""
    alerts: list[str] = []
    """Ids of the alerts that quarantined it."""
    agent: AgentRecord | None = None
    """How the agent ended that played it; None where the policy's own turns were played."""
    context: ContextRecord | None = None
    """What became of its context, where the recipe has one."""
    left_out: str | None = None
    """What this document lacks of it, because all of it is too long for an event; None: nothing."""

    @model_validator(mode="before")
    @classmethod
    def _of_0_2(cls, document: Any) -> Any:
        return files_of_0_2.trajectory(document)

    @model_validator(mode="after")
    def _is_a_tree(self) -> Self:
        for number, segment in enumerate(self.segments):
            prefix = segment.prefix
            if prefix is None:
                continue
            if prefix.segment >= number:
                raise ValueError(
                    f"segments.{number}.prefix.segment = {prefix.segment}: use an earlier segment's number"
                )
            if prefix.tokens > (most := self.segments[prefix.segment].token_count):
                raise ValueError(
                    f"segments.{number}.prefix.tokens = {prefix.tokens}: use at most {most}, "
                    f"the length of segment {prefix.segment}"
                )
        numbers = self.turn_numbers
        if sorted(number for of_segment in numbers for number in of_segment) != list(range(sum(map(len, numbers)))):
            raise ValueError("segments.numbers: use each number of a turn, from 0 on, exactly once")
        for number, (segment, of_segment) in enumerate(zip(self.segments, numbers, strict=True)):
            if len(of_segment) != len(segment.turns) or of_segment != sorted(of_segment):
                raise ValueError(f"segments.{number}.numbers: use one number for each turn, in rising order")
        return self

    @property
    def turn_numbers(self) -> list[list[int]]:
        """By segment, where its turns stand in ``turns``."""
        numbers, following = [], 0
        for segment in self.segments:
            behind = list(range(following, following + len(segment.turns)))
            numbers.append(behind if segment.numbers is None else segment.numbers)
            following += len(segment.turns)
        return numbers

    @property
    def turns(self) -> Sequence[Turn]:
        """The turns of all segments in order of time.  To be read only; ``with_turns`` makes a changed trajectory."""
        if len(self.segments) == 1:
            return self.segments[0].turns
        placed: dict[int, Turn] = {}
        for segment, numbers in zip(self.segments, self.turn_numbers, strict=True):
            placed.update(zip(numbers, segment.turns, strict=True))
        return [placed[number] for number in range(len(placed))]

    def with_turns(self, turns: Sequence[Turn]) -> Self:
        """The same trajectory with other turns in the places of the present ones, which are as many."""
        if len(turns) != len(self.turns):
            raise ValueError(f"{len(turns)} turns in place of {len(self.turns)}")
        if len(self.segments) == 1:
            return self.model_copy(update={"segments": [self.segments[0].model_copy(update={"turns": [*turns]})]})
        segments = [
            segment.model_copy(update={"turns": [turns[number] for number in numbers]})
            for segment, numbers in zip(self.segments, self.turn_numbers, strict=True)
        ]
        return self.model_copy(update={"segments": segments})

    @property
    def can_be_learned(self) -> bool:
        """Return whether all of it stands here that was read, sampled and done: the rest training makes anew."""
        return self.left_out in (None, MADE_BY_TRAINING)

    @property
    def sampled_for_step(self) -> int:
        """The first step that could train on it; for evaluations the number of steps finished before them.

        At ``schedule.async_ratio`` 0 it is the step that did, if any did; above, a later one may.
        """
        return self.sampled_at_version + 1 if self.purpose == "train" else max(0, self.sampled_at_version)

    @property
    def sampled_tokens(self) -> int:
        """Those of the policy: an expert's replayed turns are not among them."""
        return sum(len(turn.token_ids) for turn in self.turns if not turn.prefilled)

    @property
    def opening_tokens(self) -> int:
        """What stood before its first turn; 0 without any."""
        return len(self.turns[0].context_ids) if self.turns else 0

    @property
    def longest_context(self) -> int:
        """The tokens of the longest segment, what it shares included; 0 without any."""
        return max((segment.token_count for segment in self.segments), default=0)

    @property
    def read_tokens(self) -> int:
        """What stood before its turns, in tokens, each time anew: what there is to read without a cache."""
        read = 0
        for segment in self.segments:
            before = segment.token_count - sum(turn.token_count for turn in segment.turns)
            for turn in segment.turns:
                read += before + len(turn.context_ids)
                before += turn.token_count
        return read

    @property
    def tool_calls(self) -> list[ToolCall]:
        """The records of the policy's own calls."""
        return [call for turn in self.turns if not turn.prefilled for call in turn.tool_calls]

    @property
    def tool_errors(self) -> int:
        return sum(call.failed for call in self.tool_calls)
