"""What an ``ExecEvent`` would do, or an ``ObservedAction`` did: programs, paths read and written, calls of Python code.

Comments, docstrings, data and text that is only written to a file are no actions: a program that
*mentions* a miner does not mine.
"""

import ast
import base64
import binascii
import posixpath
import re
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from sandboxes.egress.detectors.exec_event import ExecEvent
from sandboxes.egress.detectors.observed_action import ObservedAction
from sandboxes.egress.detectors.parse_budget import CALL, COMMAND, FIELD, TOO_DEEP, ParseBudget
from sandboxes.egress.detectors.shell import Command, asks_for_help, command_of, commands, nested, takes_code

_RUNNERS = frozenset({
    "os.system", "os.popen", "os.execv", "os.execvp", "os.execl", "os.execlp", "os.execve", "os.spawnl", "os.spawnlp",
    "os.spawnv", "os.spawnvp", "os.posix_spawn", "subprocess.run", "subprocess.Popen", "subprocess.call",
    "subprocess.check_call", "subprocess.check_output", "subprocess.getoutput", "subprocess.getstatusoutput",
    "asyncio.create_subprocess_exec", "asyncio.create_subprocess_shell", "pty.spawn", "pexpect.spawn", "run", "Popen",
    "system", "check_output", "check_call", "call", "popen", "exec_command", "get_ipython.system",
})  # fmt: skip
_BASE64 = re.compile(r"[A-Za-z0-9+/]{16,}={0,2}")
_READERS = frozenset({
    "cat", "less", "more", "head", "tail", "cp", "mv", "tar", "zip", "gzip", "base64", "xxd", "od", "strings",
    "hexdump", "grep", "egrep", "rg", "awk", "sed", "cut", "sort", "scp", "rsync", "dd", "nl", "tac", "source", ".",
    "jq", "tee", "openssl", "ln", "7z", "aws", "gsutil", "rclone", "diff",
})  # fmt: skip
_RUNS_DECODED = re.compile(
    r"\b(?:eval|exec|source|system|popen|subprocess|spawn)\b|\|\s*(?:\w+\s+){0,3}(?:(?:ba|da|z|k)?sh"
    r"|python[\d.]*|perl)\b|\b(?:ba|da|z|k)?sh\b|^base64 "
)
"""Somebody runs what is decoded, or may."""
EXPRESSION_DEPTH = 100
DOTS = 16
"""The most dots of a name; what stands before them does not matter."""
_FORMATTED = re.compile(r"""[fF][rR]?['"]""")
_PYTHON = re.compile(r"python[\d.]*|pypy3?|ipython3?")


@dataclass(frozen=True, slots=True)
class Call:
    callee: str
    """Dotted, as written: ``os.system``; only the last parts where it is called on an expression."""
    strings: tuple[str, ...]
    """Its string arguments; the constant parts of f-strings."""


@dataclass(frozen=True, slots=True)
class Tree:
    """A tree of Python code, walked once for all who look at it: what stands inside another node comes after it."""

    nodes: list[ast.AST]
    callees: dict[ast.AST, str]
    """Calls, and whom as ``dotted``."""


@dataclass(slots=True)
class Actions:
    commands: list[Command] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    imports: set[str] = field(default_factory=set)
    reads: list[str] = field(default_factory=list)
    opened: list[str] = field(default_factory=list)
    """Those of ``reads`` that Python code opens itself, which no observer sees."""
    writes: list[str] = field(default_factory=list)
    trees: list[Tree] = field(default_factory=list)
    scripts: list[str] = field(default_factory=list)
    """Shell texts as they were given."""
    budget: ParseBudget = field(default_factory=ParseBudget)

    @property
    def words(self) -> Iterator[str]:
        """Arguments of commands and strings of calls."""
        for command in self.commands:
            yield from command.arguments
        for call in self.calls:
            yield from call.strings


MOST_LATEST = 8
_latest: tuple[tuple[ExecEvent | ObservedAction, Actions], ...] = ()
"""The last few events that were asked about, the newest first."""


def actions_of(event: ExecEvent | ObservedAction) -> Actions:
    """All detectors look at the same event one after another, so the last few are kept."""
    global _latest
    for known, actions in _latest:  # by identity: to hash an event costs more than most detectors do
        if known is event:
            return actions
    actions = _observed(event) if isinstance(event, ObservedAction) else _executed(event)
    _latest = ((event, actions), *_latest[: MOST_LATEST - 1])
    return actions


def _executed(event: ExecEvent) -> Actions:
    """What the text of a call runs, reads and writes."""
    found = Actions()
    if event.argv:
        _add_argv(found, list(event.argv), event.stdin)
    if event.writes:
        found.writes.append(absolute(event.writes, "/work"))  # what a file holds is no deed before it is run
    elif event.code:
        _add_python(found, event.code)
    found.reads += found.opened
    found.commands = [command for command in found.commands if not asks_for_help(command)]
    for command in list(found.commands):
        _add_paths(found, command)
    return found


def _observed(action: ObservedAction) -> Actions:
    """One program with its arguments, or one path.  What a shell's or an interpreter's text says is not in it."""
    found = Actions()
    if action.kind == "file":
        changed = (action.path, action.target) if action.operation == "rename" else (action.path,)
        (found.reads if action.operation == "read" else found.writes).extend(path for path in changed if path)
    elif action.kind == "program" and (command := started_command(action)) is not None and not asks_for_help(command):
        found.commands.append(command)
        _add_paths(found, command)
        found.reads = [absolute(path, action.folder) for path in found.reads]
        found.writes = [absolute(path, action.folder) for path in found.writes]
    return found


def started_command(action: ObservedAction) -> Command | None:
    """By the name that it was called with, or by its file's where that says more; a wrapper's command starts itself."""
    words = list(action.argv) or [action.program]
    own = words[0].rsplit("/", 1)[-1].removeprefix("-")
    name = action.program.rsplit("/", 1)[-1]
    if action.program.startswith("memfd:") or not own:
        own = name
    if name == "busybox" and own == name and len(words) > 1:
        return Command(words[1], tuple(words[2:]))
    return Command(own, tuple(words[1:]))


def absolute(path: str, folder: str) -> str:
    """As the sandbox sees it; ``~`` is what a shell has replaced already."""
    return posixpath.normpath(posixpath.join(folder, path)) if folder and path else path


def _add_argv(found: Actions, argv: list[str], stdin: str) -> None:
    command = command_of(argv)
    if command is None or not found.budget.spend(COMMAND + sum(map(len, argv))):
        return
    if stdin:
        command = Command(command.program, command.arguments, stdin=stdin, wrappers=command.wrappers)
    scripts = [text for text in argv[1:] if " " in text or "\n" in text]
    found.scripts += scripts
    _add_command(found, command)
    for inner in nested(command, found.budget):
        _add_command(found, inner)
    for text in scripts:
        _add_decoded(found, text)


def _add_command(found: Actions, command: Command) -> None:
    found.commands.append(command)
    if not _PYTHON.fullmatch(command.program):
        return
    for flag, text in zip(command.arguments, command.arguments[1:], strict=False):
        if flag == "-c":
            _add_python(found, text)
    if takes_code(command):
        _add_python(found, command.stdin)
    elif command.stdin:
        with found.budget.guessing():
            _add_python(found, command.stdin)


def _add_python(found: Actions, code: str) -> None:
    fields = code.count("{") if _FORMATTED.search(code) else 0
    if not code.strip() or not found.budget.spend(len(code) + FIELD * fields):
        return
    lines = code.split("\n")
    for line in lines:
        if line.lstrip().startswith("!"):
            _add_script(found, line.lstrip()[1:])
    plain = "\n".join("" if line.lstrip().startswith(("!", "%")) else line for line in lines)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an invalid escape in their string is not our concern
            tree = ast.parse(plain)
    except (RecursionError, MemoryError):
        found.budget.unparsed[TOO_DEEP] = None
        return
    except (SyntaxError, ValueError):
        _add_script(found, plain)  # perhaps a shell script that was written through the facade
        return
    walked = Tree([], {})
    found.trees.append(walked)
    for node in ast.walk(tree):
        if not found.budget.spend(CALL if isinstance(node, ast.Call) else 1):
            return
        walked.nodes.append(node)
        if isinstance(node, ast.Import):
            found.imports |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.imports |= {f"{node.module or ''}.{alias.name}" for alias in node.names} | {node.module or ""}
        elif isinstance(node, ast.Call):
            walked.callees[node] = dotted(node.func)
            _add_call(found, node, walked.callees[node])


def _add_script(found: Actions, script: str) -> None:
    found.scripts.append(script)
    for command in commands(script, found.budget):
        _add_command(found, command)
    _add_decoded(found, script)


def _add_decoded(found: Actions, text: str) -> None:
    """Base64 in a text that speaks of base64 was meant to be decoded, and perhaps run."""
    if ("base64" not in text and "b64decode" not in text) or _RUNS_DECODED.search(text) is None:
        return
    for match in _BASE64.finditer(text):
        if not found.budget.spend(COMMAND):
            return
        try:
            plain = base64.b64decode(match[0] + "=" * (-len(match[0]) % 4)).decode("ascii")
        except (binascii.Error, UnicodeDecodeError):
            continue
        for command in commands(plain, found.budget, depth=1):
            _add_command(found, command)


def _add_call(found: Actions, node: ast.Call, callee: str) -> None:
    given = (*node.args, *(word.value for word in node.keywords))
    texts = [text for value in given for text in _texts(value, found.budget)]
    found.calls.append(Call(callee, tuple(texts)))
    if callee in _RUNNERS or callee.rpartition(".")[2] in {"system", "popen", "exec_command", "check_output"}:
        _add_started(found, node, texts)
    if callee.rpartition(".")[2] == "b64decode":
        for text in texts:
            _add_decoded(found, f"base64 {text}")
    _add_file(found, node, callee, texts)


def _add_started(found: Actions, node: ast.Call, texts: list[str]) -> None:
    first = node.args[0] if node.args else None
    if isinstance(first, ast.List | ast.Tuple):
        words = ["".join(_texts(item, found.budget)) or "?" for item in first.elts]
        _add_argv(found, words, "")
    elif texts and isinstance(first, ast.Constant | ast.JoinedStr | ast.BinOp):
        _add_script(found, texts[0])


def _add_file(found: Actions, node: ast.Call, callee: str, texts: list[str]) -> None:
    last = callee.rpartition(".")[2]
    if last in {"open", "fdopen"} and texts:
        written = len(texts) > 1 and bool(set(texts[-1]) & set("wax+")) and len(texts[-1]) <= 3
        (found.writes if written else found.opened).append(texts[0])
    elif last in {"write_text", "write_bytes", "unlink", "touch"}:
        found.writes += _inner_texts(node.func, found.budget) if last != "unlink" or not texts else texts[:1]
    elif last in {"read_text", "read_bytes"}:
        found.opened += _inner_texts(node.func, found.budget)
    elif last in {"remove", "rmtree", "truncate", "chmod", "rename", "replace"} and callee.startswith(
        ("os.", "shutil.")
    ):
        found.writes += texts
    elif callee in {"shutil.copy", "shutil.copyfile", "shutil.copy2", "shutil.move"} and texts:
        found.opened.append(texts[0])
        found.writes += texts[1:]


def _inner_texts(node: ast.expr, budget: ParseBudget) -> list[str]:
    """The strings of the expression on which a method is called: ``(Path("a") / "b").read_text``."""
    strings = []
    for inner in ast.walk(node):
        if not budget.spend(1):
            break
        if isinstance(inner, ast.Constant) and isinstance(inner.value, str):
            strings.append(inner.value)
    return ["/".join(reversed(strings)), *strings] if len(strings) > 1 else strings


def _texts(node: ast.expr, budget: ParseBudget, depth: int = 0) -> list[str]:
    """The strings of an expression, as far as they stand there.  The same ones again for each call round it."""
    if depth > EXPRESSION_DEPTH:
        budget.unparsed[TOO_DEEP] = None
        return []
    if not budget.spend(1):
        return []
    match node:
        case ast.Constant(value=str(text)):
            return [text] if budget.spend(len(text)) else []
        case ast.Constant(value=bytes(raw)):
            return [raw.decode("latin-1")] if budget.spend(len(raw)) else []
        case ast.JoinedStr():
            return ["".join(text for part in node.values for text in _texts(part, budget, depth + 1) or ["?"])]
        case ast.BinOp():
            operands = [text for part in _operands(node) for text in _texts(part, budget, depth + 1)]
            return ["".join(operands)] if operands else []
        case ast.List() | ast.Tuple():
            return [text for item in node.elts for text in _texts(item, budget, depth + 1)]
        case ast.Dict():
            return [text for key, value in zip(node.keys, node.values, strict=True) if key is not None
                    for text in _pair(key, value, budget, depth)]  # fmt: skip
        case ast.Call(args=[inner, *_]):
            return _texts(inner, budget, depth + 1)
        case _:
            return []


def _operands(node: ast.expr) -> list[ast.expr]:
    """From left to right.  A sum of a thousand terms is as many nodes deep and no nesting that anybody wrote."""
    operands = []
    while isinstance(node, ast.BinOp):
        operands.append(node.right)
        node = node.left
    return [node, *reversed(operands)]


def _pair(key: ast.expr, value: ast.expr, budget: ParseBudget, depth: int) -> list[str]:
    name = "".join(_texts(key, budget, depth + 1))
    texts = _texts(value, budget, depth + 1)
    return [f'"{name}": "{text}"' for text in texts] if budget.spend(len(name) * len(texts)) else texts


def outermost_calls(tree: Tree, wanted: Callable[[ast.Call, str], bool]) -> Iterator[tuple[ast.Call, list[ast.AST]]]:
    """Calls with all that stands in their arguments; those within the arguments of another one are told with it.

    So no node is told twice: texts are hostile, and may be nested deeply.
    """
    covered: set[ast.AST] = set()
    for node, callee in tree.callees.items():
        if isinstance(node, ast.Call) and node not in covered and wanted(node, callee):
            inner = [part for given in (*node.args, *node.keywords) for part in ast.walk(given)]
            covered.update(inner)
            yield node, inner


def dotted(node: ast.expr) -> str:
    """``a.b.c`` of an expression, and ``b.c`` where it begins with something that has no name."""
    parts: list[str] = []
    for _ in range(2 * DOTS):
        if not isinstance(node, ast.Attribute | ast.Call):
            break
        if isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        else:
            node = node.func
    if isinstance(node, ast.Name):
        parts.append(node.id)
    return ".".join(reversed(parts))


def _add_paths(found: Actions, command: Command) -> None:
    found.writes += command.writes
    found.reads += command.reads
    names = [word for word in command.arguments if not word.startswith("-")]
    in_place = command.program in {"sed", "perl"} and any(re.match(r"-[a-z]*i", word) for word in command.arguments)
    if in_place or command.program in {"rm", "tee", "truncate", "chmod", "chown", "touch", "shred", "unlink", "chattr"}:
        found.writes += names
    elif command.program in {"cp", "mv", "ln", "install", "rsync"} and names:
        found.reads += names[:-1]
        found.writes += names[-1:] if command.program != "mv" else names
    elif command.program == "dd":
        found.writes += [word[3:] for word in command.arguments if word.startswith("of=")]
        found.reads += [word[3:] for word in command.arguments if word.startswith("if=")]
    elif command.program in _READERS:
        found.reads += names
    elif command.program in {"curl", "wget", "http", "nc"}:
        found.reads += [word.partition("@")[2] for word in command.arguments if "@" in word and "://" not in word]
        pairs = zip(command.arguments, command.arguments[1:], strict=False)
        found.reads += [word for flag, word in pairs if flag in {"-T", "--upload-file", "--post-file"}]
        joined = ("--upload-file=", "--post-file=", "--body-file=")
        found.reads += [word.partition("=")[2] for word in command.arguments if word.startswith(joined)]
