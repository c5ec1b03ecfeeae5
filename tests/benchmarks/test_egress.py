"""What the pages say of the detectors is what their last run came to."""

import json
from typing import Any

from devtools.home import ROOT

REPORT: dict[str, Any] = json.loads((ROOT / "benchmarks" / "results" / "egress.json").read_text())


def total(count: str, *halves: str) -> int:
    """Over all corpora."""
    return sum(corpus[half]["all"][count] for corpus in REPORT["live"].values() for half in halves)


def found(kind: str, half: str) -> str:
    return f"{total(f'{kind}_found', half) / total(kind, half):.0%}".replace("%", " %")


def test_the_page_of_security_counts_and_finds_as_the_last_run_did() -> None:
    page = (ROOT / "docs" / "security.md").read_text()
    both = ("open", "sealed")
    tasks, incidents = total("tasks", *both), total("plain", *both) + total("obfuscated", *both)
    assert f"({tasks + incidents:,} cases: {incidents} incidents, {tasks:,} ordinary tasks)" in page
    assert f"{found('plain', 'open')} of the plain and {found('obfuscated', 'open')} of the obfuscated" in page
    assert f"it is {found('plain', 'sealed')} and {found('obfuscated', 'sealed')}" in page
    assert total("false_alarms", *both) == 0
    assert f"None of the {tasks:,} tasks raises one" in page


def test_the_page_of_benchmarks_has_the_times_to_the_alert_of_the_last_run() -> None:
    page = (ROOT / "docs" / "benchmarks.md").read_text()
    alerts = REPORT["alerts"]
    p50, p95, worst = (f"{alerts['seconds_to_stored'][name]:.3f}" for name in ("p50", "p95", "max"))
    assert f"p50 / p95 / worst of {alerts['stored']} | <= 1 s | {p50} / {p95} / {worst} s" in page
