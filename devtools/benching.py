"""``./dev bench NAME``: runs ``benchmarks/NAME.py``.

A benchmark is a module whose docstring says ``./dev bench NAME``; the others are parts of one.
"""

import argparse
import ast
import os
import subprocess
import sys

from devtools.errors import Unfit
from devtools.home import ROOT, Home


def bench(options: argparse.Namespace) -> int:
    known = benchmarks()
    if not options.passed_on:
        for name, summary in known.items():
            print(f"{name}: {summary}")
        return 0
    wanted, *arguments = options.passed_on
    if wanted not in known:
        raise Unfit(f"there is no benchmark '{wanted}'; there are: {', '.join(known)}")
    command = [sys.executable, "-m", f"benchmarks.{wanted}", *arguments]
    # The caller's folder stays the working folder: --json FILE is relative to it.
    environment = os.environ | {"PALESTRA_HOME": str(Home.from_environment().folder)}
    return subprocess.run(command, env=environment).returncode


def benchmarks() -> dict[str, str]:
    """Name -> first line of its docstring."""
    found = {}
    for path in sorted((ROOT / "benchmarks").glob("*.py")):
        docstring = ast.get_docstring(ast.parse(path.read_text())) or ""
        if f"./dev bench {path.stem}" in docstring:
            found[path.stem] = docstring.splitlines()[0]
    return found
