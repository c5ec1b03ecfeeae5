"""What a report begins with, and what all reports together say."""

import json
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from benchmarks import all as every
from benchmarks import overhead
from benchmarks.distribution import Distribution
from benchmarks.headline import Headline, at_least, at_most, figure, headline_table, write_report
from benchmarks.learning_statistics import headlines as of_learning
from benchmarks.overhead import headlines as of_overhead
from devtools.benching import benchmarks


def test_medians_are_judged_and_their_spread_is_reported() -> None:
    measured = Distribution.of([3.0, 1.0, 2.0])
    assert at_most("x", measured, 2) == Headline("x", 2.0, (1.0, 3.0), "<= 2", True)
    assert at_most("x", measured, 1.9).met is False
    assert at_least("x", measured, 2.1) == Headline("x", 2.0, (1.0, 3.0), ">= 2.1", False)


def test_what_was_not_measured_is_neither_met_nor_missed() -> None:
    assert at_least("x", None, 1) == Headline("x", None, None, ">= 1", None)
    assert figure("x", 5.0) == Headline("x", 5.0, None, None, None)


def test_nearly_is_not_met() -> None:
    assert at_least("share", 0.9996, 1).met is False
    assert "0.999" in str(headline_table([at_least("share", 0.9996, 1)]).columns[1]._cells)


def test_a_report_begins_with_its_headline(tmp_path: Path) -> None:
    write_report(tmp_path / "r.json", [figure("x", 1.0)], {"benchmark": "b", "spread": Distribution.of([1.0])})
    report = json.loads((tmp_path / "r.json").read_text())
    assert list(report) == ["headline", "benchmark", "spread"]
    assert report["headline"] == [{"what": "x", "value": 1.0, "spread": None, "target": None, "met": None}]
    assert report["spread"]["n"] == 1


def test_all_of_them_are_joined_and_a_failed_one_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    reports = {"sandbox": (0, {"headline": [vars(figure("cold", 20.0))], "rest": 1}), "egress": (3, None)}
    monkeypatch.setattr(every, "run", lambda name: reports[name])
    file = tmp_path / "all.json"
    monkeypatch.setattr("sys.argv", ["all", "--only", "sandbox", "egress", "--json", str(file)])
    assert every.main() == 1
    report = json.loads(file.read_text())
    assert [row["what"] for row in report["headline"]] == ["sandbox: cold"]
    assert report["failed"] == {"egress": 3}
    assert report["benchmarks"]["sandbox"]["rest"] == 1
    assert "egress failed with exit code 3" in capsys.readouterr().err


def test_without_a_choice_all_of_them_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["all"])
    assert set(every._options().only) == set(benchmarks()) - {"all"}


def test_a_part_that_costs_more_than_published_is_missed() -> None:
    costs = {"saar": {"pairs": [{"seconds": 1.05}, {"seconds": 1.2}, {"seconds": 1.1}]}}
    assert [(row.value, row.met) for row in of_overhead(costs)] == [(1.1, False)]


def test_an_arm_that_ends_below_the_baseline_is_missed() -> None:
    final = {"values": [0.5, 0.4]}
    summarised = {
        "metric": "m",
        "baseline": "a",
        "arms": {"a": {"final": final}, "b": {"final": final}},
        "differences": {"b": {"final": {"values": [-0.1, -0.2]}}},
    }
    rows = of_learning(summarised)
    assert [row.met for row in rows] == [None, None, False]
    assert rows[2].what == "b over a: m at the end"


@pytest.mark.parametrize("name", sorted(benchmarks()))
@pytest.mark.parametrize("file", ["missing/report.json", "."])
def test_a_report_that_cannot_be_written_is_refused_before_anything_is_measured(
    name: str, file: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    needed = {"step": ["--against", "HEAD"], "learning": ["--plan", "cleaner"]}
    monkeypatch.setattr("sys.argv", [name, *needed.get(name, []), "--json", file])
    benchmark = import_module({"async": "benchmarks.async_ratio"}.get(name, f"benchmarks.{name}"))
    with pytest.raises(SystemExit):
        benchmark._options()
    assert f"{file} cannot be written" in capsys.readouterr().err


def test_what_was_measured_is_shown_also_where_its_report_cannot_be_written_any_more(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "reports"
    folder.mkdir()

    def measured(*_: object) -> dict[str, Any]:
        folder.rmdir()
        return {"pairs": [{"seconds": 1.05}]}

    monkeypatch.setattr(overhead, "_measured", measured)
    monkeypatch.setattr(overhead, "_table", lambda report: f"measured: {list(report)}")
    monkeypatch.setattr(overhead.os, "sched_setaffinity", lambda *_: None)
    monkeypatch.setattr("sys.argv", ["overhead", "--parts", "saar", "--json", str(folder / "report.json")])
    with pytest.raises(FileNotFoundError):
        overhead.main()
    assert "measured: ['saar']" in capsys.readouterr().out
