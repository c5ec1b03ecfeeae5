"""``python -m engine.datasets VERB``: a worker's own process for files that nobody has looked at yet.

Each verb prints one JSON document.  What is wrong stands on stderr as well, a line each with field, value and remedy:
the process ends with 1 where files are refused, and with 2 where nothing could be read.  The worker bounds its memory
and its time, and it may die of what it reads.
"""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

from engine.datasets.request import FolderRefused
from engine.environments.dataset_reader import DamagedDataset
from engine.spec.dataset_report import LengthsReport, PreparationReport, RowFault
from engine.spec.problems import Problem
from engine.spec.strict import Strict

REFUSED, UNREADABLE = 1, 2
SHOWN_FAULTS = 20
"""Faults on stderr; the report has more of them."""


def main() -> int:
    try:
        report = _report(_options())
    except (FolderRefused, DamagedDataset) as error:
        print(error, file=sys.stderr)
        return UNREADABLE
    print(report.model_dump_json())
    refusals = list(_refusals(report))
    if refusals:
        print("\n".join(refusals), file=sys.stderr)
    return REFUSED if refusals else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m engine.datasets")
    verbs = parser.add_subparsers(dest="verb", required=True)
    for name in ("inspect", "prepare", "difference", "lengths"):
        verb = verbs.add_parser(name)
        verb.add_argument("folder", type=Path)
        if name == "difference":
            verb.add_argument("after", type=Path)
        if name == "lengths":
            verb.add_argument("model", type=Path)
            verb.add_argument("progress", type=Path)
        if name in ("prepare", "lengths"):
            verb.add_argument("--seconds", type=float, default=1e9)
    return parser.parse_args()


def _report(options: argparse.Namespace) -> Strict:
    """Each verb imports what it needs: a tokenizer takes memory that a reader of files does not have."""
    match options.verb:
        case "inspect":
            from engine.datasets.inspection import inspect

            return inspect(options.folder)
        case "prepare":
            from engine.datasets.preparation import prepare

            return prepare(options.folder, seconds=options.seconds)
        case "difference":
            from engine.datasets.difference import difference

            return difference(options.folder, options.after)
        case _:
            from engine.datasets.lengths import measure

            return measure(options.folder, options.model, options.progress, seconds=options.seconds)


def _refusals(report: Strict) -> Iterator[str]:
    """The lines of a report that is refused."""
    if isinstance(report, LengthsReport) and report.state == "refused":
        yield report.problem
    if isinstance(report, PreparationReport) and report.state == "refused":
        yield from map(_line, report.shown_faults[:SHOWN_FAULTS])
        if (more := report.faults - SHOWN_FAULTS) > 0:
            yield f"and {more} more: the report on stdout has the first {len(report.shown_faults)}"


def _line(fault: RowFault) -> str:
    line = f"line {fault.line}" if fault.line is not None else ""
    place = ", ".join(part for part in (fault.file, line, fault.column) if part)
    return str(Problem(place, fault.value, fault.message, fault.remedy))


if __name__ == "__main__":
    sys.exit(main())
