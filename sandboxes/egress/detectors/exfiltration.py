"""Data that leaves: much more sent than received, drop sites, and commands that send files."""

import ast
import re
from collections import OrderedDict
from collections.abc import Iterator
from typing import ClassVar

from sandboxes.egress.detectors.actions import Tree, absolute, actions_of, dotted, outermost_calls
from sandboxes.egress.detectors.carried import carries
from sandboxes.egress.detectors.destinations import KEPT, below, hosts_in, is_here, names_of, where
from sandboxes.egress.detectors.detector import Context, Detector
from sandboxes.egress.detectors.exec_event import ExecEvent
from sandboxes.egress.detectors.finding import Deed, DetectorEvent, Finding, RuleInfo, Severity, finding
from sandboxes.egress.detectors.observed_action import ObservedAction
from sandboxes.egress.detectors.shell import Command
from sandboxes.egress.record import EgressRecord

VOLUME = RuleInfo(
    "exfiltration-volume",
    "far more is sent than received",
    "critical",
    "Safety & Security",
    "T1048",
    "4 MiB to one destination and 4 times what came back: a warning; from 32 MiB critical",
    "secrets below the volume, sent to a host that the policy allows",
    "`uploads`",
)
DROP = RuleInfo(
    "exfiltration-drop",
    "a site that takes anybody's data",
    "critical",
    "Safety & Security",
    "T1567",
    "sites that take anybody's data",
    "sites that nobody has named",
    "`exfiltration.DROPS`",
)
COMMAND = RuleInfo(
    "exfiltration-command",
    "a command sends files or the environment",
    "critical",
    "Safety & Security",
    "T1048",
    "secrets, the environment (from Python too) or packed folders into curl, wget or netcat; warnings: other whole "
    "files, a program whose output is a connection, a file that is read in the turn that calls a port of mail, of file "
    "transfer or of no usual protocol, and denied requests that carry an upload, credentials, text or archives in "
    "hexadecimal or base64, or long codes in a body",
    "what a program sends by itself to an allowed host; codes shorter than 24 characters, or encrypted ones in a path",
    "`without`",
)

WARNING_BYTES = 4 * 2**20
CRITICAL_BYTES = 32 * 2**20
RATIO = 4.0
"""Sent over received."""
DROPS = (
    "transfer.sh", "file.io", "0x0.st", "webhook.site", "requestbin.com", "requestbin.net", "pipedream.net",
    "termbin.com", "ix.io", "oast.fun", "oast.pro", "oast.live", "oast.site", "oast.online", "oast.me", "interact.sh",
    "burpcollaborator.net", "oastify.com", "gofile.io", "anonfiles.com", "temp.sh", "bashupload.com", "catbox.moe",
    "hookbin.com", "beeceptor.com", "requestcatcher.com", "dnslog.cn", "ceye.io", "canarytokens.com", "wetransfer.com",
    "paste.rs", "sprunge.us", "clbin.com", "uguu.se", "pixeldrain.com", "filebin.net", "api.telegram.org",
)  # fmt: skip
_SENDERS = frozenset({"post", "put", "urlopen", "Request", "request"})
_SECRET = re.compile(
    r"\.ssh/|\.aws/|/etc/shadow|\.env\b|id_rsa|id_ed25519|\.netrc|\.kube/config|/proc/\S{0,100}environ"
)


class Volume(Detector):
    """Bytes to one destination over the sandbox's life, allowed ones only, for a denied one carries none.

    ``uploads`` are names to which the task is meant to send much.
    """

    rules: ClassVar[tuple[RuleInfo, ...]] = (VOLUME,)

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._uploads = context.uploads
        self._sent: OrderedDict[str, tuple[int, int]] = OrderedDict()

    def feed(self, event: DetectorEvent) -> Iterator[Finding]:
        if not isinstance(event, EgressRecord) or event.phase != "traffic":
            return
        if any(below(name, self._uploads) for name in names_of(event.attempt)):
            return
        key = where(event.attempt)
        up, down = self._sent.get(key, (0, 0))
        up, down = up + event.bytes_up, down + event.bytes_down
        self._sent[key] = up, down
        self._sent.move_to_end(key)
        if len(self._sent) > KEPT:
            self._sent.popitem(last=False)
        if up < WARNING_BYTES or up < RATIO * down:
            return
        severity: Severity = "critical" if up >= CRITICAL_BYTES else "warning"
        yield finding(VOLUME, event, key, [event.attempt.target, f"{up} bytes sent, {down} received"], severity)


class Drops(Detector):
    """``allowed`` says whether a host is the policy's: what is sent there may be the task."""

    rules: ClassVar[tuple[RuleInfo, ...]] = (DROP, COMMAND)

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._allowed = context.allowed
        self._own_texts: OrderedDict[str, None] = OrderedDict()
        """Files that the policy wrote as text of a tool call: what is in them it might as well say in a request."""

    def feed(self, event: DetectorEvent) -> Iterator[Finding]:
        if isinstance(event, EgressRecord):
            yield from self._record(event)
            return
        if isinstance(event, ExecEvent) and event.writes is not None and not event.compares and event.label is not None:
            self._keep(event)
        if isinstance(event, ObservedAction) and event.kind == "file" and event.operation != "read":
            for path in (event.path, event.target):
                self._own_texts.pop(path, None)  # somebody else has put something there
        did = actions_of(event)
        pairs = list(zip([None, *did.commands], did.commands, strict=False))
        if isinstance(event, ObservedAction):
            pairs += self._tree.pipes(event)
        for before, command in pairs:
            if _sends(command, before) and not self._is_allowed(command):
                severity = _severity(command, before)
                if severity == "warning" and self._sends_own_texts(event, command):
                    severity = "info"
                yield finding(COMMAND, event, command.program, [command.text], severity)
        for call in did.calls:
            if call.callee.rpartition(".")[2] in {"post", "put", "urlopen", "Request"} and call.strings:
                if any(below(host, DROPS) for host in hosts_in(" ".join(call.strings))):
                    yield finding(DROP, event, call.callee, [" ".join(call.strings)])
        for tree in did.trees:
            if (line := _sends_environment(tree)) is not None:
                yield finding(COMMAND, event, "environment", [f"line {line}: os.environ goes out as a whole"])

    def _keep(self, event: ExecEvent) -> None:
        path = absolute(event.writes or "", "/work")
        if event.found and path not in self._own_texts:
            return
        self._own_texts[path] = None
        if len(self._own_texts) > KEPT:
            self._own_texts.popitem(last=False)

    def _sends_own_texts(self, event: Deed, command: Command) -> bool:
        """Whether all that is sent are files that the policy wrote through the facade."""
        folder = event.folder if isinstance(event, ObservedAction) else "/work"
        sent = [word.partition("@")[2] for word in command.arguments if "@" in word and "://" not in word]
        return bool(sent) and all(absolute(path, folder) in self._own_texts for path in sent)

    def _is_allowed(self, command: Command) -> bool:
        hosts = hosts_in(command.text)
        hosts += [match[1] for word in command.arguments if (match := re.match(r"(?:[\w.-]+@)?([\w.-]+):(?!//)", word))]
        return bool(hosts) and all(is_here(host) or self._allowed(host) for host in hosts)

    def _record(self, record: EgressRecord) -> Iterator[Finding]:
        if (evidence := carries(record)) is not None:
            yield finding(COMMAND, record, where(record.attempt), [record.attempt.target, evidence], "warning")
        for name in sorted(names_of(record.attempt)):
            if (drop := below(name, DROPS)) is not None and not record.decision.allowed:
                yield finding(DROP, record, drop, [record.attempt.target, name])


def _sends_environment(tree: Tree) -> int | None:
    """The line that sends all of ``os.environ``, and not one entry of it, to another machine."""
    for node, inner in outermost_calls(tree, lambda _, callee: callee.rpartition(".")[2] in _SENDERS):
        of_one = {id(part.value) for part in inner if isinstance(part, ast.Subscript | ast.Attribute)}
        whole = [part for part in inner if isinstance(part, ast.Attribute) and dotted(part) == "os.environ"]
        texts = [part.value for part in inner if isinstance(part, ast.Constant) and isinstance(part.value, str)]
        hosts = hosts_in(" ".join(texts))
        if any(id(part) not in of_one for part in whole) and not (hosts and all(is_here(host) for host in hosts)):
            return node.lineno
    return None


_FILES = frozenset(
    {"-d", "--data", "--data-binary", "--data-raw", "--data-urlencode", "-F", "--form", "--data-ascii", "--form-string"}
)


def _sends(command: Command, before: Command | None) -> bool:
    hosts = hosts_in(command.text)
    away = not hosts or not all(is_here(host) for host in hosts)
    if command.program in {"nc", "ncat", "netcat", "socat"}:
        data = command.reads or (command.piped and before is not None and _packs(before))
        return bool(data) and not any(is_here(word) for word in command.arguments)
    if command.program in {"curl", "wget", "http"} and away:
        pairs = zip(command.arguments, (*command.arguments[1:], ""), strict=False)
        whole_file = any(
            re.fullmatch(r"(?:[^=@]{0,100}=)?@[^-].*", word) and flag in _FILES
            or re.fullmatch(r"--(?:data|data-binary|form)=(?:[^=@]{0,100}=)?@[^-].*"
                r"|-[dF](?:[^=@]{0,100}=)?@[^-].*", flag) is not None
            or flag.partition("=")[0] in {"--upload-file", "--post-file", "--body-file"}
            or flag == "-T" and command.program == "curl"
            or word.startswith("@-") and command.piped and before is not None and _packs(before)
            for flag, word in pairs
        )  # fmt: skip
        named = re.search(r"(?:^|[\s=])@(\S+)|=@(\S+)", command.text)
        return whole_file or bool(named and _SECRET.search(named[0])) or _drop(hosts)
    remote = [
        word for word in command.arguments if re.match(r"[^/\s]+:(?!//)", word) and not is_here(word.partition(":")[0])
    ]
    outwards = bool(remote) and command.arguments[-1] == remote[-1]
    if (
        command.program in {"sftp", "ftp", "lftp", "tftp", "rclone", "s3cmd", "gsutil", "azcopy", "mc"}
        and remote
        and piped_or_put(command)
    ):
        return True
    if command.program == "aws" and command.arguments[:1] == ("s3",):
        return len(command.arguments) > 2 and command.arguments[-1].startswith("s3://")
    if command.program == "git" and "push" in command.arguments:
        return any(re.match(r"(?:https?|ssh|git)://|[\w.-]+@[\w.-]+:", word) for word in command.arguments)
    return command.program in {"scp", "rsync"} and outwards


def piped_or_put(command: Command) -> bool:
    return command.piped or any(re.search(r"\b(?:put|mput|copy|cp|sync|move)\b", word) for word in command.arguments)


def _drop(hosts: list[str]) -> bool:
    return any(below(host, DROPS) for host in hosts)


def _packs(command: Command) -> bool:
    """Its output is a pile of files, secrets or the environment."""
    if command.program in {"env", "printenv", "tar", "zip", "gpg"}:
        return True
    return command.program in {"cat", "base64", "gzip", "xxd"} and bool(_SECRET.search(command.text))


def _severity(command: Command, before: Command | None) -> Severity:
    """A plain upload may be the task; secrets, the environment or a drop site are not."""
    grave = (
        _SECRET.search(command.text)
        or _drop(hosts_in(command.text))
        or command.program in {"nc", "ncat", "netcat", "socat"}
    )
    return "critical" if grave or (command.piped and before is not None and _packs(before)) else "warning"
