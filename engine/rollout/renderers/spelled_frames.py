"""Thoughts and calls that stand as text in what an assistant says, as many data sets have them.

    {"content": "<think>\\nhm\\n</think>\\n\\nHello!"}       a thought, which templates split off the content themselves
    {"content": "<tool_call>\\n{...}\\n</tool_call>"}        a call in the form of the model

Text is never a mark, so that a model which learned them as they stand would learn to spell marks and to use none.
``split`` puts them where they belong, and refuses what it cannot read, for nothing else that spells a mark is meant.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from engine.rollout.renderers.contract import SpelledMark
from engine.rollout.renderers.tool_calls import Reading
from engine.spec.message import AssistantMessage, ToolSchema

THINK, THOUGHT = "<think>", "</think>"
_THOUGHTS = (THINK, THOUGHT)
_ELSEWHERE = "put a thought into reasoning_content and a call into tool_calls, or leave the mark out"


@dataclass(frozen=True, slots=True)
class SpelledFrames:
    thoughts: bool
    """Whether the template or the tokenizer knows marks around thoughts."""
    may_think: bool
    begins_thought: bool
    """Whether the template begins each turn with a thought, so that the content may begin within one."""
    calls: Sequence[str]
    """What stands around calls."""
    read: Callable[[Reading, Sequence[ToolSchema]], AssistantMessage]
    """The message of a turn behind its thought."""

    def split(self, message: AssistantMessage, tools: Sequence[ToolSchema]) -> AssistantMessage:
        """The message with thought and calls in their places.  Raises SpelledMark."""
        if self.thoughts:
            self._refuse(message.reasoning, _THOUGHTS, "reasoning_content", "it stands around the thought by itself")
            message = self._with_thought(message)
            self._refuse(message.content, _THOUGHTS, "content", "no thought is read there")
        if not message.requests and tools:
            message = self._with_calls(message, tools)
        why = "no call is read there" if tools else "tools declares nothing that could be called"
        self._refuse(message.content, self.calls, "content", why)
        return message

    def _with_thought(self, message: AssistantMessage) -> AssistantMessage:
        head = message.content.lstrip()
        if not head.startswith(THINK) and not self.begins_thought:
            return message
        thought, closed, spoken = head.removeprefix(THINK).partition(THOUGHT)
        if not closed:
            return message
        if thought.strip() and not self.may_think:
            reason = "it begins with a thought, and the model's turns hold none (model.reasoning)"
            raise SpelledMark("content", reason, "leave the thought out")
        if thought.strip() and message.reasoning.strip():
            raise SpelledMark("content", "it begins with a thought beside reasoning_content", "give one of them")
        self._refuse(thought, _THOUGHTS, "content", "it stands within a thought")
        return replace(message, content=spoken.lstrip(), reasoning=thought.strip() or message.reasoning)

    def _with_calls(self, message: AssistantMessage, tools: Sequence[ToolSchema]) -> AssistantMessage:
        """The message as it is, where its content calls nothing."""
        read = self.read(Reading(message.content, ""), tools)
        declared = {tool.name for tool in tools}
        for request in read.requests:
            if request.malformed is not None:
                reason = f"it spells a call that cannot be read: {request.malformed.reason}"
                raise SpelledMark("content", reason, _ELSEWHERE)
            if request.name not in declared:
                reason = f"it spells a call of {request.name}, which tools does not declare"
                raise SpelledMark("content", reason, "declare the tool in the document's tools")
        return replace(message, content=read.content, requests=read.requests) if read.requests else message

    def _refuse(self, text: str, marks: Sequence[str], field: str, why: str) -> None:
        if (spelled := next((mark for mark in marks if mark in text), None)) is not None:
            raise SpelledMark(field, f"it spells {spelled}, which would be learned as text: {why}", _ELSEWHERE)
