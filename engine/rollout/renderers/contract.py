"""What stands between messages and token ids.

A renderer belongs to a model's vocabulary: it writes messages as the ids that the policy reads, and reads
the ids that the policy wrote.  Sampled ids are kept as they are and never made from text a second time, so
``prompt`` and ``bridge`` only ever write what stands *between* the policy's turns.

A chat template may break this: Qwen3's, say, leaves earlier thoughts out once a user speaks again.  Then the context of
the next turn does not begin with all that was read and sampled before, and ``rewritten`` says what it is instead: the
trajectory goes on in a new segment, in which earlier turns are text to be read and nothing of them is trained again.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from engine.spec.message import AssistantMessage, Message, ToolSchema


@dataclass(frozen=True, slots=True)
class Parsed:
    """What a turn says, and where."""

    message: AssistantMessage
    begins: int
    """Where in the turn's ids the call or the answer begins; before it there is reasoning only."""
    spoken: str = ""
    """What is said before the calls, or the answer, as the policy wrote it: the message holds no white space around it.
    Empty where nothing can be read."""


@dataclass(frozen=True, slots=True)
class Settled:
    """What a turn under way says already: whatever follows, its message begins so, unless the turn turns out to be one
    that cannot be read."""

    reasoning: str = ""
    content: str = ""


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Exchange:
    """A turn of the policy and what it was told on it.  Compared by identity: a renderer keeps what it knows of one."""

    token_ids: tuple[int, ...]
    """As sampled."""
    parsed: Parsed
    messages: tuple[Message, ...]


@dataclass(frozen=True, slots=True)
class Conversation:
    """All that was said in an episode, the last observation included."""

    opening: tuple[Message, ...]
    tools: tuple[ToolSchema, ...]
    experience: tuple[str, ...]
    exchanges: tuple[Exchange, ...]


@dataclass(frozen=True, slots=True)
class Rewritten:
    """The whole context of the next turn, written again."""

    token_ids: tuple[int, ...]
    observed: int
    """Where in ``token_ids`` what came since the last turn begins."""
    experience_span: tuple[int, int] | None = None
    """Where ``token_ids`` hold the experience, half open; None where they hold none."""


class SpelledMark(ValueError):
    """What an assistant's message spells is the model's mark of a thought or a call, and cannot be read as one."""

    def __init__(self, field: str, reason: str, remedy: str) -> None:
        super().__init__(reason)
        self.field, self.remedy = field, remedy


class Renderer(Protocol):
    @property
    def append_only(self) -> bool:
        """Return whether ``rewritten`` has nothing to say while tools alone answer: such a trajectory is one segment.

        Where somebody else speaks again, it may have.
        """
        ...

    @property
    def stop_ids(self) -> frozenset[int]:
        """A sampled turn ends at the first of these."""
        ...

    @property
    def end_id(self) -> int:
        """What a turn that was cut short is ended with, so that others may follow it; one of ``stop_ids``."""
        ...

    def prompt(
        self, messages: Sequence[Message], tools: Sequence[ToolSchema], experience: Sequence[str] = ()
    ) -> list[int]:
        """Return what the policy reads first: the experience of earlier episodes, if any, and the messages."""
        ...

    def experience_span(
        self, messages: Sequence[Message], tools: Sequence[ToolSchema], experience: Sequence[str]
    ) -> tuple[int, int]:
        """Return where ``prompt`` holds the experience, half open; without it there is the prompt of no experience."""
        ...

    def bridge(self, messages: Sequence[Message]) -> list[int]:
        """Return what the policy reads between two of its turns."""
        ...

    def rewritten(self, conversation: Conversation, turns: int = 1) -> Rewritten | None:
        """Return what stands before the next turn where that is not all that stood before the last ``turns`` turns,
        with those and their ``bridge`` behind it.

        None where it is.  The caller asks before each turn but
        the first and begins anew where it is told to, so that what stands before the last turn is already what the
        template writes there.  Messages are compared by what they say: ids that a policy sampled are no break, however
        they are spelled.  Of several turns, those before the last are such as the renderer wrote: it is asked about
        them together, for it may have to write the whole conversation to answer.
        """
        ...

    def parse(self, token_ids: Sequence[int], tools: Sequence[ToolSchema]) -> Parsed:
        """Return what a turn that ended with a stop id says.  Never raises: what is malformed is in the message."""
        ...

    def settled(self, token_ids: Sequence[int], tools: Sequence[ToolSchema]) -> Settled:
        """Return what a turn that has not ended says so far.  Never raises: it is empty where nothing is certain."""
        ...

    def write(self, message: AssistantMessage, tools: Sequence[ToolSchema]) -> list[int]:
        """Return what a policy that means ``message`` writes.  The inverse of ``parse``; demonstrations are made so."""
        ...

    def split(self, message: AssistantMessage, tools: Sequence[ToolSchema]) -> AssistantMessage:
        """Return the message with the thought and the calls that its content spells as its own.

        Raises SpelledMark where it spells a mark of either that is not read so.
        """
        ...

    def quote(self, content: str) -> list[int]:
        """Return a turn as the policy reads it that somebody else wrote, who says ``content`` and calls nothing.

        It need not be read as what it says: text may resemble a call.  Raises ValueError where it cannot be written.
        """
        ...

    def text(self, token_ids: Sequence[int]) -> str:
        """For people."""
        ...

    def pieces(self, token_ids: Sequence[int]) -> list[str]:
        """The text of each token, for people."""
        ...
