"""Which programs a shell script would run.  An approximation of a shell that is good at what people write.

It never runs anything, and what it cannot read (variables, functions, arithmetic) stays as it is.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from sandboxes.egress.detectors.parse_budget import COMMAND, TOO_DEEP, ParseBudget

DEPTH = 4
"""How deep ``bash -c``, ``$(...)`` and here-documents may be nested."""

SHELLS = frozenset({"sh", "bash", "dash", "zsh", "ksh", "ash"})
_WRAPPERS = {
    "sudo": "ugpCDhTrtR", "doas": "uC", "nohup": "", "env": "uSC", "timeout": "ks", "nice": "n", "ionice": "cnp",
    "setsid": "", "exec": "a", "command": "", "time": "fo", "stdbuf": "ioe", "xargs": "IiLnPdEs", "busybox": "",
    "eval": "", "watch": "n", "chronic": "", "unbuffer": "", "then": "", "do": "", "else": "", "if": "", "while": "",
    "until": "", "!": "", "{": "", "elif": "", "screen": "S", "parallel": "j",
}  # fmt: skip
"""Words before the program proper, each with the letters of its options that take a value."""
_HERE = re.compile(r"<<-?[ \t]*(['\"]?)([A-Za-z_][A-Za-z0-9_]*)\1")
_SUBSTITUTION = re.compile(r"\$\(([^()]++)\)|`([^`]++)`")
_TOKEN = re.compile(
    r"""[ \t\r]++ | (?P<comment>\#[^\n]*+) | (?P<mark>[;&|()<>\n]++)
    | (?P<word>(?: [^ \t\r\n;&|()<>'"\\]++ | \\. | '[^']*+' | "(?:[^"\\]++|\\.)*" | ['"\\] )+)""",
    re.X | re.S,
)
"""A quote that is never closed is a letter like any other."""
_QUOTED = re.compile(r"""'(?P<single>[^']*+)'|"(?P<double>(?:[^"\\]++|\\.)*)"|\\(?P<escaped>.)""", re.S)
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\+?=")


@dataclass(frozen=True, slots=True)
class Command:
    program: str
    """Without its folder."""
    arguments: tuple[str, ...]
    writes: tuple[str, ...] = ()
    """Files to which its output goes."""
    reads: tuple[str, ...] = ()
    piped: bool = False
    """Whether its input is the output of the command before."""
    wrappers: tuple[str, ...] = ()
    stdin: str = ""
    """A here-document."""

    @property
    def text(self) -> str:
        return " ".join((self.program, *self.arguments))


def commands(script: str, budget: ParseBudget | None = None, depth: int = 0) -> list[Command]:
    """In order of appearance, those inside substitutions and ``bash -c`` included."""
    budget = ParseBudget() if budget is None else budget
    if not script.strip():
        return []
    if depth > DEPTH:
        budget.unparsed[TOO_DEEP] = None
        return []
    if not budget.spend(len(script)):
        return []
    plain, documents = _without_documents(script.replace("\\\n", " "))
    found: list[Command] = []
    for words, piped in _simple(plain):
        command = command_of(words, piped=piped, documents=documents)
        if command is None:
            continue
        if not budget.spend(COMMAND):
            return found
        found.append(command)
        found += nested(command, budget, depth)
    for match in _SUBSTITUTION.finditer(plain):
        found += commands(match[1] or match[2], budget, depth + 1)
    return found + _run_later(found, budget, depth)


def nested(command: Command, budget: ParseBudget, depth: int = 0) -> list[Command]:
    """Return what ``bash -c TEXT`` or a here-document for a shell runs."""
    if command.program not in SHELLS:
        return []
    inner: list[Command] = []
    for flag, text in zip(command.arguments, command.arguments[1:], strict=False):
        if re.fullmatch(r"-[a-z]*c", flag):
            inner += commands(text, budget, depth + 1)
    if takes_code(command):
        return inner + commands(command.stdin, budget, depth + 1)
    with budget.guessing():
        return inner + commands(command.stdin, budget, depth + 1)


def takes_code(command: Command) -> bool:
    """Return whether the input of a shell or of Python is what it runs for certain.  Else it may be data of that."""
    words, place = command.arguments, 0
    while place < len(words) and words[place].startswith("-"):
        word = words[place]
        if word in {"-", "-s", "-i"}:
            return True
        if word == "-m" or re.fullmatch(r"-[a-z]*c", word):
            return False
        place += 2 if word in {"-W", "-X", "-o", "-O"} else 1
    return place >= len(words) or words[place].startswith(("/dev/", "/proc/"))


_ASKS = frozenset({"--help", "--version", "-h", "-V", "-?", "help", "version", "-help", "-version", "-v"})


def asks_for_help(command: Command) -> bool:
    """Return whether a program is asked what it is and nothing else; a shell or an interpreter may run its words."""
    if command.program in SHELLS or re.match(r"python|pypy|perl|ruby|node|php|lua|tclsh", command.program):
        return False
    words = command.arguments
    return (len(words) == 1 and words[0] in _ASKS) or (len(words) == 2 and words[1] in {"--help", "--version"})


def command_of(words: list[str], *, piped: bool = False, documents: dict[str, str] | None = None) -> Command | None:
    """One command from its words: assignments and wrappers skipped, redirections taken out."""
    kept, writes, reads, stdin = _redirected(words, documents or {})
    wrappers: list[str] = []
    place = 0
    while place < len(kept):
        head = kept[place].rsplit("/", 1)[-1]
        if _ASSIGNMENT.match(kept[place]):
            place += 1
        elif head in _WRAPPERS and place + 1 < len(kept):
            wrappers.append(head)
            place = _after_options(kept, place + 1, _WRAPPERS[head], counts=head == "timeout")
        else:
            break
    if place >= len(kept):
        return Command("", (), writes, reads, piped, tuple(wrappers), stdin) if writes or wrappers else None
    program = kept[place].rsplit("/", 1)[-1]
    return Command(program, tuple(kept[place + 1 :]), writes, reads, piped, tuple(wrappers), stdin)


def _after_options(words: list[str], place: int, valued: str, *, counts: bool) -> int:
    while place < len(words) and words[place].startswith("-") and len(words[place]) > 1:
        takes_value = len(words[place]) == 2 and words[place][1] in valued
        place += 2 if takes_value else 1
    if counts and place < len(words) and re.fullmatch(r"[\d.]+[smhd]?", words[place]):
        place += 1
    return place


def _redirected(words: list[str], documents: dict[str, str]) -> tuple[list[str], tuple[str, ...], tuple[str, ...], str]:
    kept: list[str] = []
    writes: list[str] = []
    reads: list[str] = []
    stdin, place = "", 0
    while place < len(words):
        word = words[place]
        following = words[place + 1] if place + 1 < len(words) else ""
        if word in {">", ">>", ">|", "&>", ">&", "&>>", "<>"} and following:
            writes.append(following)
            if kept and kept[-1] in {"1", "2"}:
                kept.pop()
            place += 1
        elif word == "<" and following:
            reads.append(following)
            place += 1
        elif word == "<<<" and following:
            stdin = following
            place += 1
        elif word in documents:
            stdin = documents[word]
        else:
            kept.append(word)
        place += 1
    return kept, tuple(writes), tuple(reads), stdin


def _without_documents(script: str) -> tuple[str, dict[str, str]]:
    """The script with each here-document replaced by one word, and what that word stands for."""
    documents: dict[str, str] = {}
    lines, kept = script.split("\n"), []
    place = 0
    while place < len(lines):
        line = lines[place]
        match = _HERE.search(line) if "<<<" not in line else None
        place += 1
        if match is None:
            kept.append(line)
            continue
        end = next((n for n in range(place, len(lines)) if lines[n].strip() == match[2]), len(lines))
        word = f"__document_{len(documents)}__"
        documents[word] = "\n".join(lines[place:end])
        kept.append(f"{line[: match.start()]} {word} {line[match.end() :]}")
        place = end + 1
    return "\n".join(kept), documents


def _simple(script: str) -> Iterator[tuple[list[str], bool]]:
    """(words, whether piped into) of each simple command."""
    current: list[str] = []
    piped = False
    for token in _TOKEN.finditer(script):
        mark = token["mark"]
        if mark is not None and not set(mark) & {"<", ">"}:
            if current:
                yield current, piped
            current, piped = [], mark.startswith("|") and mark != "||"
        elif mark is not None:
            current.append(mark)
        elif token["word"] is not None:
            current.append(_QUOTED.sub(_plain, token["word"]))
    if current:
        yield current, piped


def _plain(quoted: re.Match[str]) -> str:
    if quoted["double"] is not None:
        return re.sub(r'\\(["\\])', r"\1", quoted["double"])
    return quoted["single"] if quoted["single"] is not None else quoted["escaped"]


def _run_later(found: list[Command], budget: ParseBudget, depth: int) -> list[Command]:
    """Here-documents that were written to a file which the same script then runs by a shell, or as a program."""
    texts = {path.removeprefix("./"): command.stdin for command in found for path in command.writes if command.stdin}
    started: list[Command] = []
    for command in found:
        names = [command.program, *(command.arguments[:1] if command.program in SHELLS else ())]
        for name in names:
            if (text := texts.pop(name.removeprefix("./"), None)) is not None:
                started += commands(text, budget, depth + 1)
    return started
