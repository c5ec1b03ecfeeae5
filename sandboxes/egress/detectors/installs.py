"""Programs from somewhere that nobody named: packages from other indexes, scripts piped into a shell."""

import ast
import re
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import ClassVar

from sandboxes.egress.detectors.actions import actions_of, dotted
from sandboxes.egress.detectors.destinations import (
    KEPT,
    REGISTRIES,
    below,
    hosts_in,
    is_here,
    names_of,
    special_kind,
    where,
)
from sandboxes.egress.detectors.detector import Context, Detector
from sandboxes.egress.detectors.exec_event import ExecEvent
from sandboxes.egress.detectors.finding import Deed, DetectorEvent, Finding, RuleInfo, finding
from sandboxes.egress.detectors.observed_action import ObservedAction
from sandboxes.egress.detectors.reverse_shells import takes_orders
from sandboxes.egress.detectors.shell import SHELLS, Command
from sandboxes.egress.record import EgressRecord

INSTALL = RuleInfo(
    "install-from-nowhere",
    "a package from a place that is not allowed",
    "warning",
    "Safety & Security",
    "T1195",
    "packages from hosts that neither the policy nor the installers' own registries name; names that an "
    "installer asks for after the policy changed its configuration",
    "packages that were downloaded by other means",
    "allow the host",
)
PIPED = RuleInfo(
    "download-and-run",
    "a download is run at once",
    "warning",
    "Safety & Security",
    "T1105",
    "a stranger's download that is piped into a shell, also through others, made executable, or handed to `exec`",
    "downloads that a program of one's own keeps and runs",
    "allow the host",
)

_INSTALLERS = frozenset({
    "pip", "pip3", "uv", "poetry", "npm", "yarn", "pnpm", "gem", "cargo", "go", "conda", "mamba", "easy_install",
    "pipx", "npx", "bun", "composer", "bundle", "cpan", "luarocks", "opam", "cabal", "mvn", "dpkg", "rpm", "apt",
    "apt-get", "yum", "dnf", "apk", "brew",
})  # fmt: skip
_FETCHERS = frozenset({"curl", "wget", "aria2c", "fetch"})
_RUNNERS = SHELLS | {"python", "python3", "perl", "ruby", "node", "php"}

_PACKAGE = re.compile(
    rb"(?m)^GET /\S{0,200}(?:\.whl|\.tar\.gz|\.tgz|\.gem|\.crate|\.deb|\.rpm|\.apk|/simple/\S*|\.egg)[ ?]"
    rb"|^User-Agent: (?:pip|uv|npm|Bundler|RubyGems|cargo|conda)/"
)
"""What installers ask for."""
_SUBSTITUTED = re.compile(
    r"(?:\beval|\bsource|\b(?:ba|z|da)?sh(?: -[a-z]+){0,3})\s+[\"']?(?:\$\(|`|<\()\s*(?:curl|wget)\b[^)`]{0,1000}"
)


class Installs(Detector):
    """``allowed`` says whether a host is the policy's.  Misses indexes set by files or by the environment."""

    rules: ClassVar[tuple[RuleInfo, ...]] = (INSTALL, PIPED)

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._allowed = context.allowed
        self._fetched: OrderedDict[str, Command] = OrderedDict()
        self._installing: tuple[str | None, str] | None = None
        """The tool call in which an installer was started, and its command."""
        self._text: tuple[str | None, str] = (None, "")
        self._configured = False
        """Whether the policy changed what tells installers whom to ask."""

    def feed(self, event: DetectorEvent) -> Iterator[Finding]:
        if isinstance(event, EgressRecord):
            yield from self._asked(event)
            return
        if isinstance(event, ExecEvent):
            self._text = (event.label, "\n".join((*event.argv, event.stdin, event.code)))
        self._configured = self._configured or _configures(event, self._text)
        found = actions_of(event).commands
        pairs = list(zip([None, *found], found, strict=False))
        if isinstance(event, ObservedAction):
            pairs += self._tree.pipes(event)
        for before, command in pairs:
            if _installs(command):
                self._installing = (event.label, command.text)
            configured = _configured_by(event)
            if _installs(command) and (host := self._stranger(f"{command.text} {configured}")) is not None:
                yield finding(INSTALL, event, host, [command.text, configured])
            fetched = before is not None and before.program in _FETCHERS and command.piped
            if fetched and before is not None and command.program in _RUNNERS and takes_orders(command):
                if (host := self._stranger(before.text)) is not None:
                    yield finding(PIPED, event, host, [f"{before.text} | {command.text}"])
        if (
            isinstance(event, ExecEvent)
            and event.writes is None
            and (evidence := _runs_download(event, self._allowed)) is not None
        ):
            yield finding(PIPED, event, "python", [evidence])
        yield from self._kept_and_run(event, found)

    def _kept_and_run(self, event: ExecEvent | ObservedAction, found: list[Command]) -> Iterator[Finding]:
        """``curl -o x URL; chmod +x x; ./x``, and ``bash <(curl URL)`` or ``bash -c "$(curl URL)"``."""
        fetched = self._fetched if isinstance(event, ObservedAction) else OrderedDict(self._fetched)
        for command in found:
            if is_fetching(command) and self._stranger(command.text) is not None:
                for name in _targets(command):
                    fetched[name] = command
                    fetched.move_to_end(name)
                    if len(fetched) > KEPT:
                        fetched.popitem(last=False)
        for command in found:
            first = [word for word in command.arguments if not word.startswith(("-", "+"))][
                : 2 if command.program == "chmod" else 1
            ]
            started = {command.program, *(word.rsplit("/", 1)[-1] for word in first)}
            if command.program == "chmod" and not re.search(r"\+\S*x|[1357]", " ".join(command.arguments[:1])):
                continue
            if command.program in SHELLS and "-n" in command.arguments:
                continue  # it reads the script and runs nothing
            source = next((fetched[name] for name in started if name in fetched), None)
            if source is not None and (
                command.program in fetched or command.program in _RUNNERS | {"chmod", "source", "."}
            ):
                yield finding(PIPED, event, self._stranger(source.text) or "?", [source.text, command.text])
        for script in actions_of(event).scripts:
            if (inner := _SUBSTITUTED.search(script)) is not None and (host := self._stranger(inner[0])) is not None:
                yield finding(PIPED, event, host, [inner[0]])

    def _asked(self, record: EgressRecord) -> Iterator[Finding]:
        """A name that an installer asks for, of which its command line says nothing: a file or the environment does."""
        if record.decision.allowed or record.phase != "attempt":
            return
        if (asked := _PACKAGE.search(record.opening_up)) is not None and special_kind(record.attempt) != "loopback":
            if not any(below(name, REGISTRIES) for name in names_of(record.attempt)):
                evidence = [record.attempt.target, asked[0].decode("latin-1")]
                yield finding(INSTALL, record, where(record.attempt), evidence)
                return
        if self._installing is None or not self._configured:
            return  # it asks whom the environment has configured
        label, command = self._installing
        named = sorted(names_of(record.attempt))
        if record.label != label or not named or any(is_here(name) or below(name, REGISTRIES) for name in named):
            return
        yield finding(INSTALL, record, named[0], [command, record.attempt.target])

    def _stranger(self, text: str) -> str | None:
        """The first host in the text that is neither the sandbox's own nor allowed."""
        return next(
            (
                host
                for host in hosts_in(text)
                if not is_here(host) and not self._allowed(host) and not below(host, REGISTRIES)
            ),
            None,
        )


_CONFIGURATION = re.compile(
    r"(?:^|/)(?:pip\.conf|\.?npmrc|requirements[^/]*\.txt|pyproject\.toml|uv\.toml|setup\.(?:py|cfg)|package\.json|Gemfile|Cargo\.toml|go\.mod"
    r"|\.gemrc|config\.toml|\.yarnrc(?:\.yml)?|\.condarc|environment\.ya?ml|sources\.list[^/]*|\.env)$"
)
_VARIABLE = re.compile(r"(?:PIP|NPM|npm_config|UV|CARGO|GEM|BUNDLE|GOPROXY|CONDA|YARN)\w*=")


def _configured_by(event: DetectorEvent) -> str:
    """What the environment of a started program tells an installer."""
    variables = event.environment if isinstance(event, ObservedAction) else ()
    return " ".join(variable for variable in variables if _VARIABLE.match(variable))


def _configures(event: Deed, text_before: tuple[str | None, str]) -> bool:
    """Openly written dependencies are none that name a place."""
    if event.label is None:
        return False
    label, text = text_before
    names = [path.rsplit("/", 1)[-1] for path in actions_of(event).writes if _CONFIGURATION.search(path)]
    openly = label == event.label and all(name in text for name in names)
    if names and openly and not re.search(r"://|git\+|index|registry|proxy", text):
        return False
    evidence = isinstance(event, ObservedAction) and any(_VARIABLE.match(variable) for variable in event.environment)
    return evidence or any(_CONFIGURATION.search(path) for path in actions_of(event).writes)


_FETCH_CALLS = frozenset({"urlopen", "urlretrieve", "get", "request", "recv", "fetch"})
_DOWNLOADS = frozenset({"urlopen", "requests.get", "httpx.get", "urllib.request.urlopen", "request.urlopen"})


def _runs_download(event: ExecEvent, allowed: Callable[[str], bool]) -> str | None:
    """Python that fetches from a stranger and runs code that it does not name."""
    did = actions_of(event)
    called = {call.callee: call.strings for call in did.calls}
    runs = any(name in {"exec", "eval"} for name in called)
    hosts = [
        host
        for call in did.calls
        for host in hosts_in(" ".join(call.strings))
        if call.callee.rpartition(".")[2] in _FETCH_CALLS
    ]
    if any(
        callee in {"exec", "eval"} and _fetches(node) for tree in did.trees for node, callee in tree.callees.items()
    ):
        return "exec of what a call fetches"
    away = next((host for host in hosts if not is_here(host) and not allowed(host)), None)
    return f"exec of what {away} sends" if runs and away is not None else None


def _fetches(node: ast.AST) -> bool:
    """Whether what a call is given is fetched where it stands, whoever is asked."""
    calls = (part for part in ast.walk(node) if isinstance(part, ast.Call))
    return any(dotted(call.func) in _DOWNLOADS for call in calls)


def is_fetching(command: Command) -> bool:
    """Also a fetcher under another name: it is told where to put what."""
    if command.program in _FETCHERS:
        return True
    evidence = any(
        re.fullmatch(r"-[a-zA-Z]{0,6}[oO]|--output(?:-document)?(?:=.*)?", word) for word in command.arguments
    )
    return evidence and any(re.match(r"(?:https?|ftp)://", word) for word in command.arguments)


def _installs(command: Command) -> bool:
    module = command.program.startswith("python") and command.arguments[:2] in {("-m", "pip"), ("-m", "uv")}
    if command.program not in _INSTALLERS and not module:
        return False
    return bool(
        {
            "install",
            "add",
            "i",
            "sync",
            "-i",
            "get",
            "download",
            "tool",
            "ci",
            "update",
            "create",
            "exec",
            "wheel",
            "-r",
        }
        & set(command.arguments)
    )


def _targets(command: Command) -> set[str]:
    names = [path.rsplit("/", 1)[-1] for path in command.writes]
    pairs = zip(command.arguments, command.arguments[1:], strict=False)
    names += [word.rsplit("/", 1)[-1] for flag, word in pairs if flag in {"-o", "-O", "--output", "--output-document"}]
    names += [word.rstrip("/").rsplit("/", 1)[-1] for word in command.arguments if "://" in word]
    return {name for name in names if name and not name.startswith("-")}
