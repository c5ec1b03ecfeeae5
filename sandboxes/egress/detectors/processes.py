"""Fork bombs, and programs that look for more rights than the box has."""

import ast
import re
from typing import ClassVar, TypeGuard

from sandboxes.egress.detectors.doings import Tree, doings, dotted, outermost_calls
from sandboxes.egress.detectors.finding import Event, Finding, RuleInfo, Severity, finding
from sandboxes.egress.detectors.shell import Command
from sandboxes.egress.record import EgressRecord

BOMB = RuleInfo("fork-bomb", "processes that multiply without end", "critical", "Safety & Security", "T1499.001")
PRIVILEGE = RuleInfo("privilege-program", "more rights are sought", "critical", "Controllability", "T1548")
ESCAPE = RuleInfo("escape-attempt", "a way out of the box is tried", "critical", "Controllability", "T1611")

REFUSED_FORKS = 20
_BOMB = re.compile(r"([:\w.]{1,40})\s*\(\)\s*\{[^{}]{0,200}?\1\s*\|\s*\1\s*&[^{}]{0,80}\}")
_SELF = re.compile(r"while\s+(?:true|:|\[ 1 \])\s*+;?\s*+do\s+(?:\./)?(?:\$0|\"\$0\")[^;\n]{0,40}&")
_ONELINER = re.compile(
    r"\bfork\s+while\s+(?:fork|1|true)\b|\bfork\(?\)?\s+while\b|loop\s*\{\s*fork|while\s*\(1\)\s*\{\s*fork"
)
_WAYS_OUT = re.compile(
    r"/proc/sys/kernel/core_pattern|release_agent|/var/run/docker\.sock|/run/docker\.sock|/run/containerd/containerd\.sock"
    r"|^/proc/1/(?:root|ns|mem|cwd|fd)|^/dev/(?:sd[a-z]|nvme|mem|kmem|vd[a-z])|^/proc/(?:kcore|sysrq-trigger)|^/sys/kernel/uevent"
)
_ENUMERATORS = frozenset({
    "linpeas", "linpeas.sh", "linenum", "linenum.sh", "pspy", "pspy64", "deepce.sh", "amicontained",
    "linux-exploit-suggester.sh", "dirtycow", "pwnkit", "traitor", "peirates", "botb",
})  # fmt: skip


class ForkBombs:
    """By shape in shell and Python, and by what the kernel refused.  Misses compiled ones until it refuses."""

    rules: ClassVar[tuple[RuleInfo, ...]] = (BOMB,)

    def feed(self, event: Event) -> Finding | None:
        if isinstance(event, EgressRecord):
            return None
        did = doings(event)
        texts = [*did.scripts, *(word for command in did.commands for word in command.arguments if "fork" in word)]
        for text in texts:
            for pattern in (_BOMB, _SELF, _ONELINER):
                if (match := pattern.search(text)) is not None:
                    return finding(BOMB, event, "shell", [match[0]])
        for tree in did.trees:
            if (line := endless_fork(tree)) is not None:
                return finding(BOMB, event, "python", [f"line {line}: fork in an endless loop"])
        if event.forks_refused >= REFUSED_FORKS:
            return finding(BOMB, event, "refused", [f"{event.forks_refused} processes refused"])
        return None


def endless_fork(tree: Tree) -> int | None:
    """The line of the outermost ``while True`` that makes processes and neither ends nor waits."""
    if not any(_is_endless(node) for node in tree.nodes):
        return None
    line = None
    does: dict[int, frozenset[str]] = {}
    for node in reversed(tree.nodes):  # what stands inside comes first, so that each is looked at once
        if _is_endless(node):
            inner = _NOTHING.union(*(does.get(id(statement), _NOTHING) for statement in node.body))
            line = node.lineno if inner == {"makes"} else line
        inside = [does[id(child)] for child in ast.iter_child_nodes(node) if does.get(id(child))]
        does[id(node)] = _NOTHING.union(_done_by(node, tree.callees.get(node, "")), *inside)
    return line


_NOTHING: frozenset[str] = frozenset()
_MAKES = frozenset({
    "os.fork", "fork", "os.forkpty", "subprocess.Popen", "Popen", "multiprocessing.Process", "Process",
})  # fmt: skip
_WAITS = frozenset({"wait", "waitpid", "_exit", "join", "sleep", "accept", "communicate", "get", "recv", "exit"})


def _is_endless(node: ast.AST) -> TypeGuard[ast.While]:
    return isinstance(node, ast.While) and isinstance(node.test, ast.Constant) and bool(node.test.value)


def _done_by(node: ast.AST, callee: str) -> frozenset[str]:
    if callee in _MAKES:
        return frozenset({"makes"})
    ends = isinstance(node, ast.Break | ast.Return) or callee.rpartition(".")[2] in _WAITS
    return frozenset({"ends"}) if ends else _NOTHING


class Privileges:
    """``sudo`` alone is habit, and says so as info.  Misses exploits that come as a binary."""

    rules: ClassVar[tuple[RuleInfo, ...]] = (PRIVILEGE, ESCAPE)

    def feed(self, event: Event) -> Finding | None:
        if isinstance(event, EgressRecord):
            return None
        did = doings(event)
        for path in (*did.reads, *did.writes, *(word for one in did.commands for word in one.arguments)):
            if (match := _WAYS_OUT.search(path)) is not None:
                return finding(ESCAPE, event, match[0], [path])
        for path in did.writes:
            if path.startswith("/etc/sudoers"):
                return finding(PRIVILEGE, event, path, [f"writes {path}"])
        for tree in did.trees:
            if (line := _sets_user_id(tree)) is not None:
                return finding(PRIVILEGE, event, "chmod", [f"line {line}: a set-user-id bit"])
        for command in did.commands:
            rule_severity = _graver(command)
            if rule_severity is not None:
                return finding(rule_severity[0], event, command.program, [command.text], rule_severity[1])
        habit = next((command for command in did.commands if {"sudo", "doas"} & set(command.wrappers)), None)
        return finding(PRIVILEGE, event, "sudo", [habit.text], "info") if habit is not None else None


def _sets_user_id(tree: Tree) -> int | None:
    changing = {"chmod", "fchmod", "lchmod"}
    for node, inner in outermost_calls(tree, lambda _, callee: callee.rpartition(".")[2] in changing):
        for part in inner:
            named = isinstance(part, ast.Name | ast.Attribute) and dotted(part).endswith("S_ISUID")
            if named or isinstance(part, ast.Constant) and isinstance(part.value, int) and part.value & 0o4000:
                return node.lineno
    return None


def _graver(command: Command) -> tuple[RuleInfo, Severity] | None:
    program, words = command.program, command.arguments
    if (
        program in {"nsenter", "insmod", "modprobe", "kexec", "runc", "ctr", "debugfs"}
        or program.lower() in _ENUMERATORS
    ):
        return (ESCAPE, "critical") if words or program.lower() in _ENUMERATORS else None
    if program in {"gdb", "strace", "ltrace"} and re.search(r"-p\s?1\b", command.text):
        return ESCAPE, "critical"
    if (
        program == "mount"
        and any(not word.startswith("-") for word in words)
        or program in {"pivot_root", "swapon", "losetup"}
    ):
        return ESCAPE, "warning"
    if program == "unshare" and words or program == "chroot" and words:
        return ESCAPE, "warning"
    if program == "docker" and re.search(r"--privileged|--pid[= ]host|-v /:|--net(?:work)?[= ]host", command.text):
        return ESCAPE, "critical"
    if (
        program == "chmod"
        and len(words) > 1
        and words[1] != "--help"
        and re.fullmatch(r"(?:[go]*[ua][ugoa]*)?\+[rwx]*s[rwx]*|0?[4567][0-7]{3}", words[0])
    ):
        return PRIVILEGE, "critical"  # set-group-id alone is how folders are shared
    if program in {"setcap", "pkexec", "capsh"} and words:
        return PRIVILEGE, "critical" if program == "setcap" else "warning"
    if program == "find" and re.search(r"-perm\s+[-/]?(?:u=s|[246]000)", command.text):
        return PRIVILEGE, "warning"
    return (PRIVILEGE, "warning") if program == "su" and not {"-c", "--help"} & set(words) else None
