"""Which programs a shell script would run.  An approximation of a shell that is good at what people write.

It never runs anything, and what it cannot read (variables, functions, arithmetic) stays as it is.
"""

import re
import shlex
from dataclasses import dataclass

DEPTH = 4
"""How deep ``bash -c``, ``$(...)`` and here-documents may be nested."""
COMMANDS = 400

SHELLS = frozenset({"sh", "bash", "dash", "zsh", "ksh", "ash"})
_WRAPPERS = {
    "sudo": "ugpCDhTrtR", "doas": "uC", "nohup": "", "env": "uSC", "timeout": "ks", "nice": "n", "ionice": "cnp",
    "setsid": "", "exec": "a", "command": "", "time": "fo", "stdbuf": "ioe", "xargs": "IiLnPdEs", "busybox": "",
    "eval": "", "watch": "n", "chronic": "", "unbuffer": "", "then": "", "do": "", "else": "", "if": "", "while": "",
    "until": "", "!": "", "{": "", "elif": "", "screen": "S", "parallel": "j",
}  # fmt: skip
"""Words before the program proper, each with the letters of its options that take a value."""
_SEPARATORS = frozenset({";", "&", "&&", "|", "||", "|&", ";;", "(", ")", "\n"})
_HERE = re.compile(r"<<-?[ \t]*(['\"]?)([A-Za-z_][A-Za-z0-9_]*)\1")
_SUBSTITUTION = re.compile(r"\$\(([^()]{1,4000})\)|`([^`]{1,4000})`")
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


def commands(script: str, depth: int = 0) -> list[Command]:
    """In order of appearance, those inside substitutions and ``bash -c`` included."""
    if depth > DEPTH or not script.strip():
        return []
    plain, documents = _without_documents(script.replace("\\\n", " "))
    found: list[Command] = []
    for words, piped in _simple(plain):
        command = command_of(words, piped=piped, documents=documents)
        if command is not None and len(found) < COMMANDS:
            found.append(command)
            found += nested(command, depth)
    for match in _SUBSTITUTION.finditer(plain):
        found += commands(match[1] or match[2] or "", depth + 1)
    found += _run_later(found, depth)
    return found[:COMMANDS]


def nested(command: Command, depth: int = 0) -> list[Command]:
    """What ``bash -c TEXT`` or a here-document for a shell runs."""
    if command.program not in SHELLS:
        return []
    inner = commands(command.stdin, depth + 1)
    for flag, text in zip(command.arguments, command.arguments[1:], strict=False):
        if re.fullmatch(r"-[a-z]*c", flag):
            inner += commands(text, depth + 1)
    return inner


def command_of(words: list[str], *, piped: bool = False, documents: dict[str, str] | None = None) -> Command | None:
    """One command from its words: assignments and wrappers skipped, redirections taken out."""
    kept, writes, reads, stdin = _redirected(words, documents or {})
    wrappers: list[str] = []
    while kept:
        head = kept[0].rsplit("/", 1)[-1]
        if _ASSIGNMENT.match(head) and "/" not in kept[0].partition("=")[0]:
            kept = kept[1:]
        elif head in _WRAPPERS and len(kept) > 1:
            wrappers.append(head)
            kept = _after_options(kept[1:], _WRAPPERS[head], counts=head == "timeout")
        else:
            break
    if not kept:
        return Command("", (), writes, reads, piped, tuple(wrappers), stdin) if writes or wrappers else None
    program = kept[0].rsplit("/", 1)[-1]
    return Command(program, tuple(kept[1:]), writes, reads, piped, tuple(wrappers), stdin)


def _after_options(words: list[str], valued: str, *, counts: bool) -> list[str]:
    while words and words[0].startswith("-") and len(words[0]) > 1:
        takes_value = len(words[0]) == 2 and words[0][1] in valued
        words = words[2:] if takes_value else words[1:]
    return words[1:] if counts and words and re.fullmatch(r"[\d.]+[smhd]?", words[0]) else words


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


def _simple(script: str) -> list[tuple[list[str], bool]]:
    """(words, whether piped into) of each simple command."""
    lexer = shlex.shlex(script, posix=True, punctuation_chars=";&|()<>\n")
    lexer.whitespace = " \t\r"
    lexer.whitespace_split = True
    lexer.commenters = "#"
    try:
        words = list(lexer)
    except ValueError:  # an open quote: read it as well as may be
        words = script.replace(";", " ; ").replace("|", " | ").split()
    found: list[tuple[list[str], bool]] = []
    current: list[str] = []
    piped = False
    for word in words:
        if word in _SEPARATORS or (word and set(word) <= set(";&|()\n")):
            if current:
                found.append((current, piped))
            current, piped = [], word.startswith("|") and word != "||"
        else:
            current.append(word)
    return [*found, (current, piped)] if current else found


def _run_later(found: list[Command], depth: int) -> list[Command]:
    """Here-documents that were written to a file which the same script then runs by a shell, or as a program."""
    texts = {path.removeprefix("./"): one.stdin for one in found for path in one.writes if one.stdin}
    started: list[Command] = []
    for command in found:
        names = [command.program, *(command.arguments[:1] if command.program in SHELLS else ())]
        for name in names:
            if (text := texts.pop(name.removeprefix("./"), None)) is not None:
                started += commands(text, depth + 1)
    return started
