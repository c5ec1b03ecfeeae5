"""Where a chat template puts the policy's turns, found out by letting it write a few.

A template says nothing about itself; it only writes.  So it is given small conversations, and what it puts around
their texts is looked at: the header before a turn, the thought that it begins on the policy's behalf, the mark at the
end, whether it takes tools, several calls in a turn, the arguments as an object or as text.  Nothing goes by the name
of a model.  What a template cannot write is refused here, before a run starts, or is a property of the frame.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from engine.models.pretrained_tokenizer import PretrainedTokenizer
from engine.models.refusal import FIELD, ModelFolderRefused, refused
from engine.rollout.renderers.template import ChatTemplate, TemplateRefused

Document = dict[str, Any]
"""A message, or a tool, in the form that chat templates read."""
Prefilled = Literal["nothing", "open-thought", "closed-thought"]

USER: Document = {"role": "user", "content": "u"}
_TEXT = "Xx"
_TOOL = {"type": "function", "function": {"name": "probe", "description": "", "parameters": {"type": "object"}}}


@dataclass(frozen=True, slots=True)
class TurnFrame:
    before: str
    """What stands before the policy's text in a conversation of ``USER`` and the policy; encodable, like ``end``."""
    prefilled: Prefilled
    """What the opening of a turn says for the policy, which stands in no history."""
    end: str
    """The mark that ends a turn."""
    writes_tools: bool
    """Whether the template tells of tools, and writes calls of them."""
    takes_tool_messages: bool
    """Whether a tool may speak, and the policy's turn then opens as it does after a user."""
    several_calls: bool
    arguments_as_text: bool


def turn_frame(template: ChatTemplate, tokenizer: PretrainedTokenizer, variables: Document) -> TurnFrame:
    """Raises ModelFolderRefused for a template that writes no turns which could be sampled."""
    probe = _Probe(template, tokenizer, variables)
    before, end = probe.around_text()
    as_text = probe.arguments_as_text()
    return TurnFrame(
        before=before,
        prefilled=probe.prefilled(before),
        end=end,
        writes_tools=as_text is not None and probe.tells_of_tools(),
        takes_tool_messages=probe.takes_tool_messages(),
        several_calls=as_text is not None and probe.takes(_calling(2, as_text=as_text), _TEXT + "1"),
        arguments_as_text=bool(as_text),
    )


def assistant(content: str, **entries: Any) -> Document:
    return {"role": "assistant", "content": content, **entries}


def call_id(number: int) -> str:
    """The id of a turn's ``number``-th call, from 0: nine characters, as Mistral's templates demand."""
    return f"call{number:05d}"


def call(number: int, name: str, arguments: Any) -> Document:
    return {"id": call_id(number), "type": "function", "function": {"name": name, "arguments": arguments}}


def tool_message(content: str, number: int, name: str) -> Document:
    return {"role": "tool", "content": content, "name": name, "tool_call_id": call_id(number)}


def _calling(calls: int, *, as_text: bool) -> list[Document]:
    arguments = [{"a": f"{_TEXT}{number}"} for number in range(calls)]
    written = [f'{{"a": "{entry["a"]}"}}' if as_text else entry for entry in arguments]
    return [USER, assistant("", tool_calls=[call(number, "probe", entry) for number, entry in enumerate(written)])]


@dataclass(frozen=True, slots=True)
class _Probe:
    template: ChatTemplate
    tokenizer: PretrainedTokenizer
    variables: Document

    def around_text(self) -> tuple[str, str]:
        """What stands before a turn's text, and the mark behind it."""
        begun, opened = self.written([USER]), self.written([USER], generation=True)
        turn = self.written([USER, assistant(_TEXT), USER])
        lead, found, behind = turn.removeprefix(begun).partition(_TEXT)
        if not turn.startswith(begun) or not found:
            raise self._unusable(
                "writes a conversation of three messages so that the first changes or the second lacks"
            )
        header = _common_head(opened.removeprefix(begun), lead)
        if lead[len(header) :].strip():
            text = self.tokenizer.shown(lead)
            raise self._unusable(f"writes {text!r} before a turn's text, which no renderer here can read")
        mark = self.tokenizer.secret_pattern.match(behind.lstrip())
        if mark is None:
            raise self._unusable("ends a turn without a mark, so that nothing would stop the policy")
        return begun + header, mark.group()

    def prefilled(self, before: str) -> Prefilled:
        begun = self.tokenizer.shown(self.written([USER], generation=True).removeprefix(before))
        match begun.split():
            case []:
                return "nothing"
            case ["<think>"]:
                return "open-thought"
            case ["<think>", "</think>"]:
                return "closed-thought"
            case _:
                raise self._unusable(f"opens a turn with {begun!r}, which is neither a header nor a thought")

    def arguments_as_text(self) -> bool | None:
        """None where the template writes no calls."""
        for as_text in (False, True):
            if self.takes(_calling(1, as_text=as_text), _TEXT + "0"):
                return as_text
        return None

    def tells_of_tools(self) -> bool:
        try:
            return self.template.written([USER], [_TOOL], generation=True, variables=self.variables).count("probe") > 0
        except TemplateRefused:
            return False

    def takes_tool_messages(self) -> bool:
        opening = self.written([USER], generation=True).removeprefix(self.written([USER]))
        messages = [USER, assistant(_TEXT), tool_message("Yy", 0, "probe")]
        try:
            written = self.template.written(messages, None, generation=True, variables=self.variables)
        except TemplateRefused:
            return False
        return "Yy" in written and written.endswith(opening)

    def takes(self, messages: Sequence[Document], text: str) -> bool:
        """Whether the template writes these messages, and the text that the last of them holds."""
        try:
            return text in self.template.written(messages, None, generation=False, variables=self.variables)
        except TemplateRefused:
            return False

    def written(self, messages: Sequence[Document], *, generation: bool = False) -> str:
        try:
            return self.template.written(messages, None, generation=generation, variables=self.variables)
        except TemplateRefused as error:
            raise self._unusable(f"cannot write a plain conversation of user and assistant: {error}") from error

    def _unusable(self, message: str) -> ModelFolderRefused:
        return refused(
            FIELD,
            str(self.tokenizer.folder),
            f"the chat template {message}",
            "use a model whose template writes a header, the turn's text and an end mark, e.g. Qwen's or Llama's",
        )


def _common_head(left: str, right: str) -> str:
    length = next((at for at, pair in enumerate(zip(left, right, strict=False)) if pair[0] != pair[1]), None)
    return left[: min(len(left), len(right)) if length is None else length]
