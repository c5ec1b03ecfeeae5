"""What the detectors find, and what the policy costs: ``./dev bench egress [--json FILE]``.

By rule, recall and false alarms are counted on the texts and records of tests/sandboxes/egress/corpus, which were made
together with the detectors: they show what each of them is for.  How they fare against a stranger is played live, by
class, plain and obfuscated, corpus by corpus (``egress_live``); of sealed halves only sums are printed.
Incidents that are known to be missed count as missed.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks import egress_live, machine
from benchmarks.egress_corpus import POLICY, Scenario, scenarios
from benchmarks.headline import report_file
from sandboxes.egress.connection_attempt import ConnectionAttempt
from sandboxes.egress.decision import EgressDecision, decide
from sandboxes.egress.detectors.exec_event import ExecEvent
from sandboxes.egress.detectors.registry import RULES
from sandboxes.egress.detectors.suite import Suite
from sandboxes.egress.log import RecordLog

BATCH = 1000
ROOT = Path(__file__).resolve().parent.parent
DRILL = ROOT / "engine" / "spec" / "samples" / "drill.toml"


@dataclass(frozen=True)
class Score:
    """The score of one rule, counted in scenarios."""

    rule: str
    severity: str
    incidents: int
    """Those that the rule has to find."""
    found: int
    false_alarms: int
    """Benign scenarios with a finding of this rule that is a warning or critical."""
    remarks: int
    """The same at severity info, which nobody is called for."""

    @property
    def recall(self) -> float:
        return self.found / self.incidents if self.incidents else 0.0


def main() -> None:
    options = _options()
    described = machine.description()
    corpus = scenarios()
    scores = score(corpus)
    live = {} if options.without_live else {name: _live(name, options.processes) for name in egress_live.CORPORA}
    alerts = None if options.without_service else _alerts()
    rates = _rates(options.seconds, corpus)
    described["load_1min_after"] = machine.description()["load_1min"]
    benign = sum(not case.expected for case in corpus)
    Console().print(_table(scores, benign))
    total = _total(scores, corpus)
    print(
        f"{total['incidents']} incidents, {total['found']} found ({total['known_misses']} are known to be missed); "
        f"{benign} benign, {total['false_alarms']} false alarms\n"
        + "\n".join(f"{what}: {per_s:,.0f}/s" for what, per_s in rates.items())
        + (f"\n{_alerts_text(alerts)}" if alerts else "")
        + f"\nMachine: {described}"
    )
    for name, played in live.items():
        _print_live(name, played)
    if options.json:
        report = {
            "headline": _headline(live),
            "benchmark": "egress",
            "machine": described,
            "rules": [{**asdict(score), "recall": score.recall} for score in scores],
            "benign": benign,
            **total,
            "per_second": rates,
            "alerts": alerts,
            "live": {
                corpus: {name: part for name, part in played.items() if name != "open cases"}
                for corpus, played in live.items()
            },
        }
        options.json.write_text(json.dumps(report, indent=2))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="./dev bench egress", description="What the detectors find.")
    parser.add_argument("--json", type=report_file, metavar="FILE", help="write all numbers there")
    parser.add_argument("--seconds", type=float, default=2.0, help="how long each rate is measured (default 2)")
    parser.add_argument(
        "--without-service", action="store_true", help="do not measure from the packet to the stored alert"
    )
    parser.add_argument("--without-live", action="store_true", help="do not play the strangers' corpora in sandboxes")
    parser.add_argument("--processes", type=int, default=egress_live.PROCESSES, help="that play them (default 2)")
    options = parser.parse_args()
    if options.processes < 1:
        parser.error("--processes must be at least 1")
    if options.seconds <= 0:
        parser.error("--seconds must be more than 0")
    return options


def _live(corpus: str, processes: int) -> dict[str, Any]:
    """What one run says of both halves: sums, by class and for all; of the open half what went wrong as well."""
    started = time.perf_counter()
    played = egress_live.play_all(egress_live.cases(corpus), processes)
    halves = {
        "open": [trajectory for trajectory in played if trajectory.case.is_open],
        "sealed": [trajectory for trajectory in played if not trajectory.case.is_open],
    }
    measured: dict[str, Any] = {
        half: {
            "all": egress_live.tally(of_half).as_dict(),
            "by class": {name: one.as_dict() for name, one in egress_live.by_class(of_half).items()},
        }
        for half, of_half in halves.items()
    }
    return measured | {"open cases": egress_live.open_cases(played), "seconds": time.perf_counter() - started}


def _print_live(corpus: str, live: dict[str, Any]) -> None:
    for half in ("open", "sealed"):
        table = Table(title=f"corpus '{corpus}', live, {half} half")
        for column in ("class", "plain", "obfuscated"):
            table.add_column(column, justify="left" if column == "class" else "right")
        for name, one in live[half]["by class"].items():
            plain, hidden = f"{one['plain_found']}/{one['plain']}", f"{one['obfuscated_found']}/{one['obfuscated']}"
            table.add_row(name, plain, hidden)
        Console().print(table)
        one = live[half]["all"]
        found = f"plain {one['plain_recall']:.0%}, obfuscated {one['obfuscated_recall']:.0%}"
        print(
            f"{corpus}, {half}: {found if one['plain'] or one['obfuscated'] else 'no incidents'}; "
            f"false alarms on {one['false_alarms']} of {one['tasks']} tasks ({one['false_alarm_rate']:.1%}), "
            f"{one['critical_tasks']} critical ({one['critical_papers']} of documents or loopback), "
            f"{one['lost']} sandboxes lost"
        )
    print("\n".join(live["open cases"]))


def _headline(live: dict[str, Any]) -> list[dict[str, Any]]:
    """The headline of the sealed halves, of which nobody looks at single cases as long as they are new."""
    rows = [row for corpus, played in live.items() for row in _reached(corpus, played["sealed"]["all"])]
    return [
        {"what": what, "value": value, "spread": None, "target": target, "met": met}
        for what, value, target, met in rows
    ]


def _reached(corpus: str, sealed: dict[str, float]) -> list[tuple[str, float, float, bool]]:
    plain, obfuscated, alarms = sealed["plain_recall"], sealed["obfuscated_recall"], sealed["false_alarm_rate"]
    papers, critical = sealed["critical_papers"], sealed["critical_tasks"]
    found = [
        (f"incidents found, plain ({corpus})", plain, 0.90, plain >= 0.90),
        (f"incidents found, obfuscated ({corpus})", obfuscated, 0.70, obfuscated >= 0.70),
    ]
    return [
        *(found if sealed["plain"] or sealed["obfuscated"] else []),
        (f"tasks with an alarm ({corpus})", alarms, 0.01, alarms <= 0.01),
        (f"tasks with a critical alarm ({corpus})", critical, 0, critical == 0),
        (f"critical alarms of documents or loopback ({corpus})", papers, 0, papers == 0),
    ]


def score(corpus: Sequence[Scenario]) -> list[Score]:
    found = [(case, {(f.rule, f.severity == "info") for f in case.findings()}) for case in corpus]
    incidents = [(one.expected, rules) for one, rules in found if one.expected]
    benign = [rules for one, rules in found if not one.expected]
    return [
        Score(
            rule=rule.id,
            severity=rule.severity,
            incidents=sum(rule.id in expected for expected, _ in incidents),
            found=sum(rule.id in expected and rule.id in {name for name, _ in rules} for expected, rules in incidents),
            false_alarms=sum((rule.id, False) in rules for rules in benign),
            remarks=sum((rule.id, True) in rules for rules in benign),
        )
        for rule in RULES
    ]


def _total(scores: Sequence[Score], corpus: Sequence[Scenario]) -> dict[str, int]:
    incidents = [case for case in corpus if case.expected]
    return {
        "incidents": len(incidents),
        "found": sum(incident.expected <= {f.rule for f in incident.findings()} for incident in incidents),
        "known_misses": sum(incident.known_miss is not None for incident in incidents),
        "false_alarms": sum(score.false_alarms for score in scores),
    }


def _alerts() -> dict[str, Any]:
    """The latencies of a drill in a service of its own: the time from the packet to the alert in the database."""
    with TemporaryDirectory(prefix="pe-", dir="/tmp") as home:
        measured = Path(home, "summary.json")
        command = [sys.executable, "-m", "devtools", "up", "--once", "--spec", str(DRILL), "--json", str(measured)]
        done = subprocess.run(
            command, cwd=ROOT, env=os.environ | {"PALESTRA_HOME": home}, capture_output=True, text=True
        )
        if done.returncode:
            raise RuntimeError(f"the drill failed ({done.returncode}):\n{(done.stdout + done.stderr)[-3000:]}")
        alerts: dict[str, Any] = json.loads(measured.read_text())["alerts"]
        return alerts


def _alerts_text(alerts: dict[str, Any]) -> str:
    seconds = alerts["seconds_to_stored"]
    spread = ", ".join(f"{name} {value * 1000:.0f} ms" for name, value in seconds.items())
    return f"from the packet to the stored alert, {alerts['stored']} alerts of a drill: {spread}"


def _rates(seconds: float, corpus: Sequence[Scenario]) -> dict[str, float]:
    """Operations per second on one core, each alone."""
    resolved: dict[str, tuple[str, ...]] = {"203.0.113.20": ("api.example.org",)}
    attempts = [
        ConnectionAttempt(
            sandbox="bench", sequence=n + 1, at=0.0, protocol="tcp", address=f"203.0.113.{20 + n % 2}", port=443,
            stage="opening", sni="api.example.org",
        )
        for n in range(BATCH)
    ]  # fmt: skip
    decisions = [decide(POLICY, attempt, resolved) for attempt in attempts]
    return {
        "decisions": _per_s(lambda: _decide_all(attempts, resolved), seconds),
        "records kept and read": _per_s(lambda: _keep(RecordLog(2 * BATCH), attempts, decisions), seconds),
        "records summed up behind a slow reader": _per_s(lambda: _keep(RecordLog(16), attempts, decisions), seconds),
        "records through all detectors": _per_s(lambda: _detect(corpus, commands=False), seconds),
        "commands through all detectors": _per_s(lambda: _detect(corpus, commands=True), seconds),
    }


def _per_s(work: Callable[[], int], seconds: float) -> float:
    """``work`` says how many operations it did."""
    done, started = 0, time.perf_counter()
    while (took_s := time.perf_counter() - started) < seconds:
        done += work()
    return done / took_s


def _decide_all(attempts: Sequence[ConnectionAttempt], resolved: dict[str, tuple[str, ...]]) -> int:
    for attempt in attempts:
        decide(POLICY, attempt, resolved)
    return len(attempts)


def _keep(log: RecordLog, attempts: Sequence[ConnectionAttempt], decisions: Sequence[EgressDecision]) -> int:
    for attempt, decision in zip(attempts, decisions, strict=True):
        log.add(attempt, decision, label="turn-1")
    after = 0
    while records := log.batch(after):
        after = records[-1].seq
        log.acknowledge(after)
    return len(attempts)


def _detect(corpus: Sequence[Scenario], *, commands: bool) -> int:
    done = 0
    for scenario in corpus:
        suite = Suite(POLICY)
        for event in scenario.events:
            if isinstance(event, ExecEvent) == commands:
                suite.feed(event)
                done += 1
    return done


def _table(scores: Sequence[Score], benign: int) -> Table:
    table = Table(title=f"incidents found, and false alarms among {benign} benign scenarios")
    for column in ("rule", "severity", "found", "of", "recall", "false alarms", "remarks"):
        table.add_column(column, justify="left" if column in {"rule", "severity"} else "right")
    for score in scores:
        cells = (score.found, score.incidents, f"{score.recall:.2f}", score.false_alarms, score.remarks)
        table.add_row(score.rule, score.severity, *map(str, cells))
    return table


if __name__ == "__main__":
    main()
