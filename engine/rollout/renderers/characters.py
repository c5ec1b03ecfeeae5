"""The renderer of the built-in alphabet, and its strict reading of what a policy wrote.

    <bos> <user> question <assistant>                       the prompt
    <tool> code </tool>                                     a call of the only tool, which takes one text (sampled)
    <tool> name {"argument": 1} </tool>                     a call of one of several tools, or of one that takes more
    <output> text </output> <assistant>                     what the tool answered
    <answer> text </answer>                                 a turn that ends the episode (sampled)

Spaces in this picture separate marks from text and are no tokens, but for the one behind a tool's name.
Text comes in through ``Tokenizer.encode``, which knows no marks: neither a question nor a tool's output can
close its own frame or open another.  Experience of earlier episodes stands between <user> and the question, as
plain text between ``<EXP>`` and ``</EXP>``, which are characters and no marks.  Schemas of tools are not written:
a policy of this alphabet begins with random weights and learns from what it is shown to do, not from descriptions.
"""

import json
from collections.abc import Sequence

from engine.models.tokenizer import Tokenizer
from engine.rollout.renderers.contract import Conversation, Parsed, Rewritten, Settled
from engine.spec.message import AssistantMessage, Malformed, Message, ToolRequest, ToolSchema, arguments_in


class CharacterRenderer:
    """A ``Renderer`` over the built-in tokenizer.  With ``reasoning``, plain text may stand before a turn's frame."""

    def __init__(self, tokenizer: Tokenizer, *, reasoning: bool) -> None:
        self._tokenizer, self._reasoning = tokenizer, reasoning

    @property
    def append_only(self) -> bool:
        return True

    @property
    def stop_ids(self) -> frozenset[int]:
        tokenizer = self._tokenizer
        return frozenset({tokenizer.tool_close, tokenizer.answer_close, tokenizer.eos})

    @property
    def end_id(self) -> int:
        return self._tokenizer.answer_close

    def prompt(
        self, messages: Sequence[Message], tools: Sequence[ToolSchema], experience: Sequence[str] = ()
    ) -> list[int]:
        tokenizer = self._tokenizer
        question = tokenizer.encode("\n".join(message.content for message in messages))
        return [tokenizer.bos, tokenizer.user, *self._experience_ids(experience), *question, tokenizer.assistant]

    def experience_span(
        self, messages: Sequence[Message], tools: Sequence[ToolSchema], experience: Sequence[str]
    ) -> tuple[int, int]:
        before = len((self._tokenizer.bos, self._tokenizer.user))
        return before, before + len(self._experience_ids(experience))

    def bridge(self, messages: Sequence[Message]) -> list[int]:
        return [*(token for message in messages for token in self._framed(message)), self._tokenizer.assistant]

    def rewritten(self, conversation: Conversation, turns: int = 1) -> Rewritten | None:
        return None

    def parse(self, token_ids: Sequence[int], tools: Sequence[ToolSchema]) -> Parsed:
        """Exactly one frame around plain characters is a call or an answer, and everything else is malformed.

        Malformed is anything before the opening mark (but for reasoning where that is allowed), any mark inside,
        a missing or a wrong closing mark.  Nothing is repaired, so that the policy is only paid for what it
        really wrote.
        """
        tokenizer = self._tokenizer
        begins = self._first_mark(token_ids) if self._reasoning else 0
        frame = token_ids[begins:]
        if len(frame) < 2 or any(tokenizer.is_mark(token) for token in frame[1:-1]):
            return Parsed(_unframed(self.text(token_ids)), begins)
        text, reasoning = tokenizer.decode(frame[1:-1]), tokenizer.decode(token_ids[:begins])
        match frame[0], frame[-1]:
            case tokenizer.tool_open, tokenizer.tool_close:
                return Parsed(_call(text, tools, reasoning), begins)
            case tokenizer.answer_open, tokenizer.answer_close:
                return Parsed(AssistantMessage(text, reasoning=reasoning), begins, text)
            case _:
                return Parsed(_unframed(self.text(token_ids)), begins)

    def settled(self, token_ids: Sequence[int], tools: Sequence[ToolSchema]) -> Settled:
        """An answer from its first character on; of a call nothing."""
        tokenizer = self._tokenizer
        begins = self._first_mark(token_ids) if self._reasoning else 0
        reasoning, frame = tokenizer.decode(token_ids[:begins]), token_ids[begins:]
        answers = bool(frame) and frame[0] == tokenizer.answer_open
        if not answers or any(tokenizer.is_mark(token) for token in frame[1:]):
            return Settled(reasoning)
        return Settled(reasoning, tokenizer.decode(frame[1:]))

    def write(self, message: AssistantMessage, tools: Sequence[ToolSchema]) -> list[int]:
        """Raises ValueError for a malformed message, which nobody means, and for several calls, for want of a frame."""
        for malformed in (message.malformed, *(request.malformed for request in message.requests)):
            if malformed is not None:
                raise ValueError(f"a malformed message cannot be written: {malformed.reason}")
        if len(message.requests) > 1:
            raise ValueError(f"a turn of this alphabet makes one call, not {len(message.requests)}")
        tokenizer = self._tokenizer
        before = tokenizer.encode(message.reasoning)
        if message.answers:
            return [*before, tokenizer.answer_open, *tokenizer.encode(message.content), tokenizer.answer_close]
        call = tokenizer.encode(_call_text(message.requests[0], tools))
        return [*before, tokenizer.tool_open, *call, tokenizer.tool_close]

    def split(self, message: AssistantMessage, tools: Sequence[ToolSchema]) -> AssistantMessage:
        """The message as it is: no text spells a mark of this alphabet."""
        return message

    def quote(self, content: str) -> list[int]:
        return self.write(AssistantMessage(content), [])

    def text(self, token_ids: Sequence[int]) -> str:
        return self._tokenizer.decode(token_ids)

    def pieces(self, token_ids: Sequence[int]) -> list[str]:
        return self._tokenizer.pieces(token_ids)

    def _framed(self, message: Message) -> list[int]:
        tokenizer, content = self._tokenizer, self._tokenizer.encode(message.content)
        if message.role == "tool":
            return [tokenizer.output_open, *content, tokenizer.output_close]
        return [tokenizer.user, *content]

    def _experience_ids(self, experience: Sequence[str]) -> list[int]:
        return self._tokenizer.encode("<EXP>" + "\n".join(experience) + "</EXP>\n") if experience else []

    def _first_mark(self, token_ids: Sequence[int]) -> int:
        """The place of the first mark; the end where there is none."""
        marks = (place for place, token in enumerate(token_ids) if self._tokenizer.is_mark(token))
        return next(marks, len(token_ids))


def _only_text_tool(tools: Sequence[ToolSchema]) -> tuple[str, str] | None:
    """The name and the argument of the only tool, where that takes nothing but one text."""
    if len(tools) != 1 or (argument := tools[0].only_text_argument) is None:
        return None
    return tools[0].name, argument


def _call_text(request: ToolRequest, tools: Sequence[ToolSchema]) -> str:
    if _only_text_tool(tools) is not None:
        return request.text
    return f"{request.name} {json.dumps(dict(request.arguments))}"


def _call(text: str, tools: Sequence[ToolSchema], reasoning: str) -> AssistantMessage:
    if (only := _only_text_tool(tools)) is not None:
        name, argument = only
        return AssistantMessage.calling(name, {argument: text}, reasoning=reasoning)
    name, _, written = text.partition(" ")
    try:
        arguments = arguments_in(written)
    except ValueError as problem:
        unreadable = ToolRequest(name, malformed=Malformed(written, str(problem)))
        return AssistantMessage(requests=(unreadable,), reasoning=reasoning)
    return AssistantMessage.calling(name, arguments, reasoning=reasoning)


def _unframed(text: str) -> AssistantMessage:
    return AssistantMessage(malformed=Malformed(text, "neither one call nor one answer"))
