"""Every benchmark, one after the other, their headlines joined: ``./dev bench all [--json [FILE]]``.

A benchmark that fails is named, and the others still run; the exit code is then 1.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rich.console import Console

from benchmarks import machine
from benchmarks.headline import Headline, headline_table, report_file
from devtools.benching import benchmarks

ARGUMENTS = {"learning": ["--plan", "cleaner"]}
"""What a benchmark must be told."""
PRINTED = Path("-")


def main() -> int:
    options = _options()
    documents: dict[str, dict[str, Any]] = {}
    failed: dict[str, int] = {}
    for name in options.only:
        print(f"== {name}", file=sys.stderr, flush=True)
        code, document = run(name)
        if code or document is None:
            failed[name] = code
        else:
            documents[name] = document
    report = joined(documents, failed)
    if options.json == PRINTED:
        print(json.dumps(report, indent=2))
    else:
        rows = [Headline(**{key: row[key] for key in Headline.__dataclass_fields__}) for row in report["headline"]]
        Console(width=max(110, Console().width), highlight=False).print(headline_table(rows))
        if options.json:
            options.json.write_text(json.dumps(report, indent=2))
    for name, code in failed.items():
        print(f"{name} failed with exit code {code}", file=sys.stderr)
    return 1 if failed else 0


def run(name: str) -> tuple[int, dict[str, Any] | None]:
    """Exit code, and what was written if anything was.  What the benchmark prints goes to standard error."""
    with TemporaryDirectory(prefix="palestra-bench-") as folder:
        file = Path(folder, "report.json")
        command = [sys.executable, "-m", f"benchmarks.{name}", *ARGUMENTS.get(name, []), "--json", str(file)]
        code = subprocess.run(command, stdout=sys.stderr).returncode
        return code, json.loads(file.read_text()) if file.exists() else None


def joined(documents: dict[str, dict[str, Any]], failed: dict[str, int]) -> dict[str, Any]:
    """``what`` is told with the benchmark's name before it."""
    headline = [
        row | {"what": f"{name}: {row['what']}"} for name, document in documents.items() for row in document["headline"]
    ]
    return {"headline": headline, "failed": failed, "machine": machine.description(), "benchmarks": documents}


def _options() -> argparse.Namespace:
    known = [name for name in benchmarks() if name != "all"]
    parser = argparse.ArgumentParser(prog="./dev bench all", description="Every benchmark, one after the other.")
    parser.add_argument(
        "--json",
        type=report_file,
        nargs="?",
        const=PRINTED,
        metavar="FILE",
        help="where all numbers go; without: printed",
    )
    parser.add_argument("--only", nargs="+", choices=known, default=known, metavar="NAME", help="these and no others")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
