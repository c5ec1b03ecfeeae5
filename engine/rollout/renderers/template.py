"""A model's own chat template, run as what it is: a stranger's program over strangers' text.

The template runs in Jinja's immutable sandbox with the functions and filters that chat templates expect
(``raise_exception``, ``strftime_now``, ``tojson``, ``{% break %}``, ``{% generation %}``), and within bounds: turns of
loops and calls of macros are counted, and so are the characters that it writes or multiplies.  What the bounds cannot
see (a filter that works long on one value) a process of its own can: ``engine/rollout/renderers/preflight.py``.

Text and marks are told apart in what comes out.  Into each text from outside goes a *seam*, a character of Unicode's
private use that stands in none of them, behind each character with which one of the tokenizer's marks begins.  So no
mark can be spelled by text, nor read in it by the template: a user who writes ``</think>`` has thought nothing.  Where
the rendering spells a mark without a seam, the template wrote it.  Then the seams go, and the text is as it was.
``strftime_now`` is always the same day, for a run that is played again reads the same prompt.
"""

import hashlib
import json
import re
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from functools import cached_property, lru_cache
from itertools import chain
from types import BuiltinMethodType, MethodType
from typing import Any, NoReturn

from jinja2 import TemplateError, nodes, pass_context
from jinja2.compiler import CodeGenerator, Frame
from jinja2.ext import Extension, loopcontrols
from jinja2.filters import do_indent
from jinja2.parser import Parser
from jinja2.runtime import Context, LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from engine.models.pretrained_tokenizer import PretrainedTokenizer, pattern_of
from engine.models.refusal import FIELD, refused

MOST_STEPS = 10**6
"""Turns of loops and calls of macros in one rendering."""
MOST_BITS = 2**16
"""The length of a whole number that the template makes by multiplying."""
MOST_CHARACTERS = 2**26
"""In one rendering, and in one value that the template keeps under a name, joins or multiplies."""
MOST_RENDERINGS, MOST_REMEMBERED = 2**14, 2**24
"""Renderings that are kept, and their characters in all."""
SHORT_TEXTS, SHORT_CHARACTERS = 4096, 4096
"""Texts of at most so many characters of which it is kept where their seams go: keys, and messages said before."""
STEP, SIZED, JOINED = "_step", "_sized", "_joined"
"""The names of the filters that count: a step; what is given, unless it is too long; parts as one text, likewise."""
MOST_NAMES = 1024
"""Attributes, by type and name, of which it is kept whether a template may read them."""
TODAY = date(2024, 7, 26)
"""What templates are told is today: the date that those of Llama 3 fall back to."""
Documents = Sequence[Mapping[str, Any]]
_SEAMS = range(0x100000, 0x10FFFE)
_SEAM = chr(_SEAMS[0])
"""The usual one."""
_BEYOND_ASCII = re.compile(r"[^\x00-\x7f]")


class TemplateRefused(ValueError):
    """The template cannot write these messages: it says so itself, fails, or exceeds a bound."""


@dataclass(slots=True, eq=False)
class Passage:
    """Messages of a conversation, or its tools, as a template reads them."""

    documents: Documents
    digest: bytes
    sewn: list[Any] | None = None
    """With the usual seam, once they were written."""


class ChatTemplate:
    """Renders messages as text in which the tokenizer's marks are marks.

    Raises ModelFolderRefused for a template that is no Jinja.  One rendering at a time: the bounds are counted here.
    """

    def __init__(self, source: str, tokenizer: PretrainedTokenizer) -> None:
        self._tokenizer, self._seams = tokenizer, _Seams(tokenizer.marks)
        self._environment = _Environment(
            trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _Generation, _Bounds]
        )
        self._environment.globals |= {"raise_exception": _raise, "strftime_now": TODAY.strftime}
        bounds = self._environment.bounds
        self._environment.filters |= {"tojson": self._tojson, "indent": _indented}
        self._environment.filters |= {STEP: bounds.step, SIZED: bounds.sized, JOINED: bounds.joined}
        self._seam, self._recent = "", _Recent()
        try:
            self._template = self._environment.from_string(_bounded(self._environment.parse(source)))
        except (TemplateError, RecursionError, ValueError) as error:
            message = f"the chat template is no Jinja template: {error}"
            raise refused(
                FIELD, str(tokenizer.folder), message, "take the template that the model came with"
            ) from error

    @cached_property
    def nothing(self) -> Passage:
        """No messages, or no tools."""
        return self.passage(())

    def passage(self, documents: Documents) -> Passage:
        """What is written again whenever a conversation grows is prepared once."""
        return Passage(documents, digest_of(documents))

    def written(
        self,
        messages: Documents,
        tools: Documents | None,
        *,
        generation: bool,
        variables: Mapping[str, Hashable],
    ) -> str:
        """The conversation as the template writes it, in the form that the tokenizer encodes.

        ``generation``: with the opening of the policy's next turn behind it.  Raises TemplateRefused.
        """
        described = self.passage(tools) if tools else self.nothing
        return self.passages_written([self.passage(messages)], described, generation=generation, variables=variables)

    def passages_written(
        self, passages: Sequence[Passage], tools: Passage, *, generation: bool, variables: Mapping[str, Hashable]
    ) -> str:
        """The conversation of these passages, likewise.  Raises TemplateRefused."""
        key = tools.digest, *(passage.digest for passage in passages), generation, *variables.items()
        return self._recent.remembered(key, lambda: self._written(passages, tools, generation, variables))

    def _written(
        self, passages: Sequence[Passage], tools: Passage, generation: bool, variables: Mapping[str, Hashable]
    ) -> str:
        messages, described = self._sewn(passages, tools)
        rendered = self._rendered(
            {
                **self._tokenizer.special_texts,
                **variables,
                "messages": messages,
                "tools": described or None,
                "add_generation_prompt": generation,
            }
        )
        marked = self._tokenizer.mark_pattern.sub(lambda found: self._tokenizer.mark(found.group()), rendered)
        return marked.replace(self._seam, "")

    def _sewn(self, passages: Sequence[Passage], tools: Passage) -> tuple[list[Any], list[Any]]:
        """Messages and tools with a seam that none of their texts holds.  No template can change them."""
        self._seam = _SEAM
        try:
            for passage in (*passages, tools):
                if passage.sewn is None:
                    passage.sewn = self._seams.sewn(passage.documents, _SEAM)
        except _SeamInText:
            pass
        else:
            return [message for passage in passages for message in passage.sewn or ()], [*(tools.sewn or ())]
        messages = list(chain.from_iterable(passage.documents for passage in passages))
        taken = set(json.dumps([messages, tools.documents], ensure_ascii=False))
        if (seam := next((seam for seam in map(chr, _SEAMS) if seam not in taken), None)) is None:
            raise TemplateRefused(f"the messages hold all of the {len(_SEAMS)} characters that could be a seam")
        self._seam = seam
        return self._seams.sewn(messages, seam), self._seams.sewn(tools.documents, seam)

    def _rendered(self, variables: Mapping[str, Any]) -> str:
        self._environment.bounds.steps_left = MOST_STEPS
        written, chunks = 0, list[str]()
        try:
            for chunk in self._template.generate(**variables):
                chunks.append(chunk)
                written += len(chunk)
                _check_size(written)
        except TemplateRefused:
            raise
        # A template is a program: it can fail in every way in which Python can.
        except Exception as error:
            raise TemplateRefused(f"the chat template fails: {type(error).__name__}: {error}") from error
        return "".join(chunks)

    def _tojson(
        self,
        value: Any,
        ensure_ascii: bool = False,
        indent: int | None = None,
        separators: tuple[str, str] | None = None,
        sort_keys: bool = False,
    ) -> str:
        """JSON as chat templates mean it: nothing is escaped for HTML, and a seam stays a seam."""
        text = json.dumps(value, ensure_ascii=False, indent=indent, separators=separators, sort_keys=sort_keys)
        return _BEYOND_ASCII.sub(self._escaped, text) if ensure_ascii else text

    def _escaped(self, found: re.Match[str]) -> str:
        return found.group() if found.group() == self._seam else json.dumps(found.group())[1:-1]


class _Recent:
    """What was written last, for each conversation is written again when it has grown, to see whether it only grew.

    A rendering depends on nothing but what is said: the day is always the same, and a template keeps nothing.
    """

    def __init__(self) -> None:
        self._written: OrderedDict[Hashable, str] = OrderedDict()
        self._characters = 0

    def remembered(self, key: Hashable, written: Callable[[], str]) -> str:
        """What ``written`` gives for the inputs of this key, or gave lately."""
        if (text := self._written.get(key)) is not None:
            self._written.move_to_end(key)
            return text
        text = self._written[key] = written()
        self._characters += len(text)
        while self._characters > MOST_REMEMBERED or len(self._written) > MOST_RENDERINGS:
            self._characters -= len(self._written.popitem(last=False)[1])
        return text


class _SeamInText(Exception):
    """A text holds the character that was to be its seam."""


class _Seams:
    """Where seams go: into text, so that none of the marks can be spelled by it."""

    def __init__(self, marks: Iterable[str]) -> None:
        # A mark that begins with a letter is looked for whole: a seam behind each "t" would spoil every key "type".
        signs = [mark for mark in marks if not mark[0].isalnum()]
        self._begins = {mark[0] for mark in signs}
        rests = {mark[place:] for mark in signs for place in range(1, len(mark))}
        self._rests = tuple(rest for rest in rests if not rest.isalnum())
        self._words = pattern_of([mark for mark in marks if mark[0].isalnum()])
        self._sewn_short = lru_cache(SHORT_TEXTS)(self._sewn_text)

    def sewn(self, value: Any, seam: str) -> Any:
        """The value with its texts sewn, keys of mappings included.  Raises _SeamInText."""
        match value:
            case str():
                return (self._sewn_short if len(value) <= SHORT_CHARACTERS else self._sewn_text)(value, seam)
            case dict() | Mapping():
                return {self.sewn(key, seam): self.sewn(entry, seam) for key, entry in value.items()}
            case list() | tuple():
                return [self.sewn(entry, seam) for entry in value]
            case _:
                return value

    def _sewn_text(self, text: str, seam: str) -> str:
        if seam in text:
            raise _SeamInText
        sewn = text.translate({ord(begin): begin + seam for begin in self._begins})
        sewn = self._words.sub(lambda found: found.group()[0] + seam + found.group()[1:], sewn)
        # What a template wrote before it may be the head of a mark of which this is the rest.
        return seam + sewn if sewn.startswith(self._rests) else sewn


class _Bounds(Extension):
    """Counts what a rendering does.

    As filters, which a compiled template calls directly; ``pass_context`` keeps them out of what is computed at once.
    """

    steps_left = MOST_STEPS

    @pass_context
    def step(self, context: Context, nothing: None) -> None:
        self.steps_left -= 1
        if self.steps_left < 0:
            raise TemplateRefused(f"the chat template loops: more than {MOST_STEPS} turns in one rendering")

    @pass_context
    def sized(self, context: Context, value: Any) -> Any:
        if isinstance(value, str | list | tuple | dict):
            _check_size(len(value))
        return value

    @pass_context
    def joined(self, context: Context, *parts: Any) -> str:
        text = "".join(map(str, parts))
        _check_size(len(text))
        return text


class _Generation(Extension):
    """``{% generation %}``, by which some templates mark what the policy writes: here it is only what stands in it."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


_OF_DICT = frozenset(dir(dict))
_ALIKE = frozenset({str, Namespace, LoopContext})
"""Types of which the sandbox lets a template read an attribute, or does not, whatever the object."""
_SMALL = nodes.Const, nodes.Compare, nodes.Not
"""What is assigned of these stands in the template, or is true or false."""
_OF_CALLS = frozenset({"_loop_vars", "_block_vars"})
"""What a compiled template gives with each call, for functions that take its context."""


def _formats(value: Any) -> bool:
    """Whether it is a method by which a text formats, for which the sandbox has one of its own."""
    return isinstance(value, MethodType | BuiltinMethodType) and value.__name__ in ("format", "format_map")


class _Generator(CodeGenerator):
    """Asks for an entry of a message where it stands, and not by a call of ``getattr`` below, which gives the same."""

    def visit_Getattr(self, node: nodes.Getattr, frame: Frame) -> None:  # noqa: N802 - as its parent
        if not isinstance(node.node, nodes.Name) or node.attr in _OF_DICT:
            super().visit_Getattr(node, frame)
            return
        held, entry = frame.symbols.ref(node.node.name), repr(node.attr)
        self.write(f"({held}[{entry}] if type({held}) is dict and {entry} in {held} else ")
        super().visit_Getattr(node, frame)
        self.write(")")


class _Environment(ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset({"*", "**"})
    code_generator_class = _Generator

    @cached_property
    def bounds(self) -> _Bounds:
        bounds = self.extensions[_Bounds.identifier]
        assert isinstance(bounds, _Bounds)
        return bounds

    @cached_property
    def _readable(self) -> dict[tuple[type, str], bool]:
        return {}

    def getattr(self, obj: Any, attribute: str) -> Any:
        """What the sandbox gives, without its detour for what templates ask most: an entry of a message, and the
        attributes of those types whose answer follows from type and name."""
        kind = type(obj)
        if kind is dict and attribute not in _OF_DICT:
            return obj[attribute] if attribute in obj else self.undefined(obj=obj, name=attribute)
        if kind in _ALIKE and self._readable.get((kind, attribute)):
            try:
                value = getattr(obj, attribute)
            except AttributeError:
                return super().getattr(obj, attribute)
            if not _formats(value):
                return value
        return self._looked_at(obj, kind, attribute)

    def _looked_at(self, obj: Any, kind: type, attribute: str) -> Any:
        """As the sandbox does it; where it gave the attribute itself, it would give it of each such object."""
        value = super().getattr(obj, attribute)
        if kind in _ALIKE and len(self._readable) < MOST_NAMES:
            self._readable[kind, attribute] = self.is_safe_attribute(obj, attribute, value)
        return value

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805 - as its parent
        """The sandbox decides what a template may call; a method of a text, which it always may, is called at once."""
        if type(__obj) is BuiltinMethodType and type(__obj.__self__) is str:
            named = {name: value for name, value in kwargs.items() if name not in _OF_CALLS}
            return __obj(*args, **named)
        return super().call(__context, __obj, *args, **kwargs)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "**":
            raise TemplateRefused("the chat template raises numbers to a power, which nothing bounds")
        if isinstance(left, int) and isinstance(right, int) and left.bit_length() + right.bit_length() > MOST_BITS:
            raise TemplateRefused(f"the chat template makes a number of more than {MOST_BITS} bits")
        for counted, times in ((left, right), (right, left)):
            if isinstance(counted, str | list | tuple) and isinstance(times, int):
                _check_size(len(counted) * times)
        return super().call_binop(context, operator, left, right)


def _bounded(template: nodes.Template) -> nodes.Template:
    """The same program with a step counted in each loop and macro, and the size of what it assigns."""
    for block in template.find_all((nodes.For, nodes.Macro, nodes.CallBlock)):
        assert isinstance(block, nodes.For | nodes.Macro | nodes.CallBlock)
        block.body.insert(0, nodes.ExprStmt(_filtered(STEP, nodes.Const(None)), lineno=block.lineno))
    for assignment in template.find_all(nodes.Assign):
        assert isinstance(assignment.node, nodes.Expr)
        if not isinstance(assignment.node, _SMALL):
            assignment.node = _filtered(SIZED, assignment.node)
    for scope in template.find_all(nodes.With):
        scope.values = [_filtered(SIZED, value) for value in scope.values]
    for written in template.find_all(nodes.AssignBlock):
        where = {"lineno": written.lineno, "environment": written.environment}
        written.filter = nodes.Filter(written.filter, SIZED, [], [], None, None, **where)
    for concatenation in list(template.find_all(nodes.Concat)):
        concatenation.nodes = [_filtered(JOINED, *concatenation.nodes)]
    return template


def _indented(text: Any, *options: Any, **named: Any) -> str:
    """Jinja's own would first lengthen a list, which is that of other renderings too."""
    if not isinstance(text, str):
        raise TemplateRefused(f"the chat template indents a {type(text).__name__}: only text can be")
    return do_indent(text, *options, **named)


def _filtered(name: str, value: nodes.Expr, *more: nodes.Expr) -> nodes.Filter:
    return nodes.Filter(value, name, list(more), [], None, None)


def _check_size(characters: int) -> None:
    if characters > MOST_CHARACTERS:
        raise TemplateRefused(f"the chat template writes more than {MOST_CHARACTERS} characters")


def _raise(message: str) -> NoReturn:
    raise TemplateRefused(f"the chat template refuses: {message}")


def digest_of(value: Any) -> bytes:
    """The digest of what JSON can say; half a surrogate pair in it is fine."""
    return hashlib.blake2b(json.dumps(value).encode(), digest_size=16).digest()
