"""Code that is hidden from whoever reads it: decoded and run at once, put together, out of a memory file."""

import ast
import re
from collections.abc import Iterator
from typing import ClassVar

from sandboxes.egress.detectors.actions import Actions, actions_of
from sandboxes.egress.detectors.detector import Context, Detector
from sandboxes.egress.detectors.exec_event import ExecEvent
from sandboxes.egress.detectors.finding import DetectorEvent, Finding, RuleInfo, finding
from sandboxes.egress.detectors.observed_action import ObservedAction
from sandboxes.egress.detectors.reverse_shells import takes_orders
from sandboxes.egress.detectors.shell import SHELLS, Command
from sandboxes.egress.record import EgressRecord

HIDDEN = RuleInfo(
    "hidden-code",
    "code is decoded and run at once",
    "warning",
    "Controllability",
    "T1027",
    "`base64 -d | sh` and its like, where the same pipeline does not encode before; Python that runs what it "
    "decodes, or reaches functions by names that are put together; programs "
    "that exist in memory only",
    "encodings of one's own that end in an ordinary call",
    "leave the rule out where code is generated at run time",
)

_DECODERS = frozenset(
    {"base64", "base32", "xxd", "rev", "tr", "uudecode", "openssl", "gunzip", "zcat", "printf", "basenc"}
)
_INTERPRETERS = SHELLS | {"python", "python3", "perl", "ruby", "node", "php"}
_DECODED = (
    r"(?:b64decode|b32decode|b85decode|a85decode|b16decode|unhexlify|fromhex|zlib\.decompress|lzma\.decompress|bz2\.decompress|codecs\.decode"
    r"|marshal\.loads|rot_?13|\[::-1\]|\bchr\(|decodebytes|decompress\()"
)
_RUN = re.compile(
    rf"\b(?:exec|eval|os\.system|os\.popen|__import__|import_module)\s*\((?:[^()\n]|\([^()\n]*\)|\([^()\n]*\([^()\n]*\)[^()\n]*\)){{0,400}}?{_DECODED}"
    r"|getattr\s*\(\s*(?:__import__|importlib|os\b|subprocess\b|builtins|__builtins__|socket\b|sys\.modules)[^\n]{0,80},\s*(?:['\"][^'\"]*['\"]\s*\+|['\"]{2}\.join|[^\n,)]{0,60}\[::-1\]|[^\n,)]{0,60}(?:chr|decode|fromhex))"
    r"|__import__\s*\(\s*(?:['\"][^'\"]*['\"]\s*\+|['\"]{2}\.join|[^\n)]{0,60}\[::-1\]|chr\()"
    r"|import_module\s*\(\s*(?:['\"][^'\"]*['\"]\s*\+|['\"]{2}\.join|[^\n)]{0,60}\[::-1\])"
    r"|\bmemfd_create\s*\("
)
_SHELL = re.compile(
    r"\|\s*(?:base64\s+(?:-d|-D|--decode)|xxd\s+-r|openssl\s+(?:enc|base64)\b[^|\n]*-d|rev|base32\s+-d|tr\s+['\"]?[A-Za-z]-[A-Za-z])[^|\n]*\|\s*(?:sudo\s+)?(?:ba|z|da|k)?sh\b"
    r"|\beval\s+[\"']?(?:\$\(|`)[^)`\n]*(?:base64|xxd|rev|printf|openssl|tr\s)|printf\s+['\"]?(?:\\\\?x[0-9a-fA-F]{2}|\\\\?[0-7]{3}){4}[^|\n]*\|\s*(?:ba)?sh\b"
    r"|(?:^|[;&|\s(])\$'(?:\\x[0-9a-fA-F]{2}|\\[0-7]{3}){3}|(?:^|[;&|]\s*)[\"']?\$\(\s*(?:echo|printf)[^)\n]*\|\s*(?:base64\s+-d|xxd|rev)[^)\n]*\)|(?:\w\$\{?IFS\}?){2}"
)


class HiddenCode(Detector):
    """A warning and never more: what the hidden code does is told by what it does."""

    rules: ClassVar[tuple[RuleInfo, ...]] = (HIDDEN,)

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._text: tuple[str | None, str] = (None, "")
        """The tool call, and what it says."""

    def feed(self, event: DetectorEvent) -> Iterator[Finding]:
        if isinstance(event, EgressRecord):
            return
        if isinstance(event, ObservedAction):
            yield from self._started(event)
        elif event.writes is None:
            self._text = (event.label, "\n".join((*event.argv, event.stdin, event.code)))
            yield from _from_text(event)

    def _started(self, action: ObservedAction) -> Iterator[Finding]:
        if action.kind != "program":
            return
        if action.program.startswith("memfd:") or re.match(r"/proc/\d+/fd/|/dev/fd/", action.program):
            yield finding(HIDDEN, action, "memory", [" ".join((action.program, *action.argv))])
        pairs = list(self._tree.pipes(action))
        if any(_encodes(before) for before, _ in pairs) or self._is_shown(action):
            return  # what is decoded stands there as it is
        for before, command in pairs:
            if command.program in _INTERPRETERS and takes_orders(command) and _decodes(before):
                yield finding(HIDDEN, action, command.program, [f"{before.text} | {command.text}"])

    def _is_shown(self, action: ObservedAction) -> bool:
        return self._text[0] == action.label and _SHOWN.search(self._text[1]) is not None


def _from_text(event: ExecEvent) -> Iterator[Finding]:
    did = actions_of(event)
    texts = [
        event.code,
        *(
            word
            for command in did.commands
            if command.program.startswith("python")
            for word in (*command.arguments, command.stdin)
        ),
    ]
    for text in texts:
        if (match := _RUN.search(text)) is not None:
            yield finding(HIDDEN, event, "python", [match[0]])
    if any(re.search(_DECODED, text) for text in texts) and (line := _reaches_decoded(did)) is not None:
        yield finding(HIDDEN, event, "python", [f"line {line}: a name that is decoded is imported or called"])
    scripts = [*did.scripts, *(word for word in event.argv[1:] if event.argv[0].rsplit("/", 1)[-1] in SHELLS)]
    for script in scripts:
        if (match := _SHELL.search(script)) is not None:
            yield finding(HIDDEN, event, "shell", [match[0]])
    return


def _reaches_decoded(did: Actions) -> int | None:
    """The line of ``getattr(x, f("..."))`` or ``__import__(f("..."))``: a name that stands there in another form."""
    for tree in did.trees:
        for node, callee in tree.callees.items():
            reaches = callee.rpartition(".")[2] in {"getattr", "__import__", "import_module"}
            if not isinstance(node, ast.Call) or not reaches or not node.args:
                continue
            name = node.args[1 if callee == "getattr" and len(node.args) > 1 else 0]
            given = name.args if isinstance(name, ast.Call) else []
            if any(isinstance(word, ast.Constant) and isinstance(word.value, str | bytes) for word in given):
                return node.lineno
    return None


_SHOWN = re.compile(r"\b(base64|base32)(?:\s+-w\s*\d+)?\s*\|\s*\1\s+(?:-d|-D|--decode)\b")
"""An encoder right before its decoder: the programs of a pipeline may be told in any order."""


def _encodes(command: Command) -> bool:
    return command.program in {"base64", "base32", "basenc"} and not _decodes(command)


def _decodes(command: Command) -> bool:
    """``tr a-z A-Z`` of a listing would be fine, but not where a shell reads it."""
    if command.program in {"base64", "base32", "basenc"}:
        return any(word in {"-d", "-D", "--decode", "-di", "-id"} for word in command.arguments)
    if command.program == "openssl":
        return "-d" in command.arguments
    if command.program == "xxd":
        return any(word.startswith("-") and "r" in word for word in command.arguments)
    if command.program == "tr":
        return not any(re.fullmatch(r"-[cCst]*d[cCst]*|--delete", word) for word in command.arguments)
    return command.program in _DECODERS - {"printf"}
