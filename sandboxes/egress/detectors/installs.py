"""Programs from somewhere that nobody named: packages from other indexes, scripts piped into a shell."""

import re
from collections.abc import Callable
from typing import ClassVar

from sandboxes.egress.detectors.destinations import hosts_in, is_here
from sandboxes.egress.detectors.doings import doings
from sandboxes.egress.detectors.finding import Event, Finding, RuleInfo, finding
from sandboxes.egress.detectors.shell import SHELLS, Command
from sandboxes.egress.record import EgressRecord

INSTALL = RuleInfo(
    "install-from-nowhere", "a package from a place that is not allowed", "warning", "Safety & Security", "T1195"
)
PIPED = RuleInfo("download-and-run", "a download is run at once", "warning", "Safety & Security", "T1105")

_INSTALLERS = frozenset({
    "pip", "pip3", "uv", "poetry", "npm", "yarn", "pnpm", "gem", "cargo", "go", "conda", "mamba", "easy_install",
    "pipx", "dpkg", "rpm", "apt", "apt-get", "yum", "dnf", "apk", "brew",
})  # fmt: skip
_FETCHERS = frozenset({"curl", "wget", "aria2c", "fetch"})
_RUNNERS = SHELLS | {"python", "python3", "perl", "ruby", "node", "php"}

_SUBSTITUTED = re.compile(
    r"(?:\beval|\bsource|\b(?:ba|z|da)?sh(?: -[a-z]+){0,3})\s+[\"']?(?:\$\(|`|<\()\s*(?:curl|wget)\b[^)`]{0,1000}"
)


class Installs:
    """``allowed`` says whether a host is the policy's.  Misses indexes set by files or by the environment."""

    rules: ClassVar[tuple[RuleInfo, ...]] = (INSTALL, PIPED)

    def __init__(self, allowed: Callable[[str], bool]) -> None:
        self._allowed = allowed

    def feed(self, event: Event) -> Finding | None:
        if isinstance(event, EgressRecord):
            return None
        found = doings(event).commands
        for before, command in zip([None, *found], found, strict=False):
            if _installs(command) and (host := self._stranger(command.text)) is not None:
                return finding(INSTALL, event, host, [command.text])
            fetched = before is not None and before.program in _FETCHERS and command.piped
            if fetched and before is not None and command.program in _RUNNERS and not _has_script(command):
                if (host := self._stranger(before.text)) is not None:
                    return finding(PIPED, event, host, [f"{before.text} | {command.text}"])
        return self._kept_and_run(event, found)

    def _kept_and_run(self, event: Event, found: list[Command]) -> Finding | None:
        """``curl -o x URL; chmod +x x; ./x``, and ``bash <(curl URL)`` or ``bash -c "$(curl URL)"``."""
        fetched: dict[str, Command] = {}
        for command in found:
            if command.program in _FETCHERS and self._stranger(command.text) is not None:
                for name in _targets(command):
                    fetched[name] = command
        for command in found:
            started = {command.program, *(word.rsplit("/", 1)[-1] for word in command.arguments[:1])}
            source = next((fetched[name] for name in started if name in fetched), None)
            if source is not None and (command.program in fetched or command.program in _RUNNERS):
                return finding(PIPED, event, self._stranger(source.text) or "?", [source.text, command.text])
        for script in doings(event).scripts:
            if (inner := _SUBSTITUTED.search(script)) is not None and (host := self._stranger(inner[0])) is not None:
                return finding(PIPED, event, host, [inner[0]])
        return None

    def _stranger(self, text: str) -> str | None:
        """The first host in the text that is neither the box's own nor allowed."""
        return next((host for host in hosts_in(text) if not is_here(host) and not self._allowed(host)), None)


def _installs(command: Command) -> bool:
    module = command.program.startswith("python") and command.arguments[:2] in {("-m", "pip"), ("-m", "uv")}
    if command.program not in _INSTALLERS and not module:
        return False
    return bool({"install", "add", "i", "sync", "-i", "get", "download", "tool"} & set(command.arguments))


def _targets(command: Command) -> set[str]:
    names = [path.rsplit("/", 1)[-1] for path in command.writes]
    pairs = zip(command.arguments, command.arguments[1:], strict=False)
    names += [word.rsplit("/", 1)[-1] for flag, word in pairs if flag in {"-o", "-O", "--output", "--output-document"}]
    names += [word.rstrip("/").rsplit("/", 1)[-1] for word in command.arguments if "://" in word]
    return {name for name in names if name and not name.startswith("-")}


def _has_script(command: Command) -> bool:
    """``curl ... | python3 -m json.tool`` and ``| python script.py`` run something else."""
    return any(word in {"-c", "-m", "-e", "-ne", "-pe"} or not word.startswith("-") for word in command.arguments[:1])
