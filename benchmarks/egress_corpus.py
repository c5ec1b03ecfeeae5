"""Reads the corpus of incidents and benign work (tests/sandboxes/egress/corpus) into events.

A scenario is a list of steps in order of time.  A step is a command (``sh``, ``argv``, ``py``, ``write``)
or one or more records (``net``), in which ``{i}``, ``{n}`` and ``{hex}`` stand for the number of the
repetition, that number from 1, and 40 hexadecimal digits that look random and are always the same.
"""

import hashlib
import random
import tomllib
from base64 import b32encode
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sandboxes.egress.connection_attempt import PROTOCOLS, ConnectionAttempt
from sandboxes.egress.decision import EgressDecision, Reason
from sandboxes.egress.detectors.exec_event import ExecEvent
from sandboxes.egress.detectors.finding import DetectorEvent, Finding
from sandboxes.egress.detectors.suite import Suite
from sandboxes.egress.policy import EgressPolicy
from sandboxes.egress.record import EgressRecord
from sandboxes.egress.rule import Rule

FOLDER = Path(__file__).parents[1] / "tests" / "sandboxes" / "egress" / "corpus"
POLICY = EgressPolicy(
    name="corpus",
    rules=(
        Rule(
            name="mirrors",
            action="allow",
            hosts=(
                "pypi.example.org",
                "*.mirror.example.org",
                "git.example.org",
                "api.example.org",
                "*.cdn.example.org",
            ),
            ports=(22, 80, 443),
        ),
    ),
)
START = 1_700_000_000.0
_PROTOCOLS = {str(protocol): protocol for protocol in PROTOCOLS}


@dataclass(frozen=True)
class Scenario:
    name: str
    expected: frozenset[str]
    """Rules that have to find something; empty for benign work."""
    known_miss: str | None
    """Why nothing finds an incident, where that is known: it counts against recall all the same."""
    events: tuple[DetectorEvent, ...]

    def findings(self) -> list[Finding]:
        suite = Suite(POLICY)
        return [found for event in self.events for found in suite.feed(event)]


def scenarios() -> list[Scenario]:
    """Raises ``ValueError`` for a scenario of which nothing can be made, or two of one name."""
    found = [
        _scenario(entry, incident=path.name.startswith("incidents"))
        for path in sorted(FOLDER.glob("*.toml"))
        for entry in tomllib.loads(path.read_text())["scenario"]
    ]
    names = [item.name for item in found]
    if doubled := {name for name in names if names.count(name) > 1}:
        raise ValueError(f"two scenarios are called {sorted(doubled)}")
    return found


def _scenario(entry: dict[str, Any], *, incident: bool) -> Scenario:
    expected = frozenset(entry.get("expect", ()))
    if bool(expected) != incident:
        raise ValueError(f"scenario '{entry['name']}': an incident expects rules, benign work none")
    return Scenario(entry["name"], expected, entry.get("known_miss"), tuple(_events(entry["steps"])))


def _events(steps: list[dict[str, Any]]) -> Iterator[DetectorEvent]:
    clock, seq = START, 0
    sequence = 0
    noise = random.Random(7)
    for step in steps:
        clock += step.get("after", 1.0)
        if "net" not in step:
            yield _command(step, clock)
            continue
        for turn in range(step.get("times", 1)):
            if turn:
                clock += step.get("every", 1.0) * (1 + step.get("jitter", 0.0) * noise.uniform(-1, 1))
            seq += 1
            sequence += step.get("phase", "attempt") == "attempt"
            yield _record(step, turn, seq, max(sequence, 1), clock)


def _command(step: dict[str, Any], at: float) -> ExecEvent:
    argv = step.get("argv", ["bash", "-c", step["sh"]] if "sh" in step else [])
    return ExecEvent(
        sandbox="corpus",
        at=at,
        label="turn-1",
        argv=tuple(argv),
        code=step.get("py", step.get("text", "")),
        writes=step.get("write"),
        forks_refused=step.get("forks_refused", 0),
    )


def _record(step: dict[str, Any], turn: int, seq: int, sequence: int, at: float) -> EgressRecord:
    digest = hashlib.sha256(f"{step['net']}{step.get('name')}{turn}".encode())

    def filled(text: str | None) -> str | None:
        if text is None:
            return None
        b32 = b32encode(digest.digest()).decode().strip("=").lower()
        return text.format(i=turn, n=turn + 1, hex=digest.hexdigest()[:40], b32=b32)

    name, _, target = (filled(step["net"]) or "").partition(" ")
    protocol = _PROTOCOLS[name]
    address, _, port = target.rpartition(":") if protocol in {"tcp", "udp"} else (target, "", "")
    allowed = step.get("allowed", False)
    up = step.get("up", "").encode("latin-1").decode("unicode_escape").encode("latin-1")
    phase = step.get("phase", "attempt")
    attempt = ConnectionAttempt(
        sandbox="corpus",
        sequence=sequence,
        at=at if phase == "attempt" else START,
        protocol=protocol,
        address=address.strip("[]") or None,
        port=int(port) if port else None,
        stage="opening",
        name=filled(step.get("name")),
        query_type=step.get("type", "A") if protocol == "dns" else None,
        sni=filled(step.get("sni")),
        host=filled(step.get("host")),
        method=step.get("method"),
    )
    reason: Reason = "allowed-by-rule" if allowed else "no-rule"
    return EgressRecord(
        seq=seq, phase=step.get("phase", "attempt"), attempt=attempt, label="turn-1", last_at=at, opening_up=up[:256],
        decision=EgressDecision(allowed=allowed, policy="corpus", rule="mirrors" if allowed else None, reason=reason),
        bytes_up=step.get("bytes_up", 0), bytes_down=step.get("bytes_down", 0), packets_up=step.get("packets_up", 0),
    )  # fmt: skip
