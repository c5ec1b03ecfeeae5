"""Virtual environments beside Palestra's own, made on first use and kept.

Each sees the packages of Palestra's own environment, torch among them, and has what it adds without the dependencies of
that: they would bring another torch.
"""

import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from devtools.errors import Unfit
from devtools.home import ROOT


@dataclass(frozen=True)
class Backend:
    """A backend whose tests carry the marks ``backends`` and ``marker``; ``requirements-<marker>.lock`` pins it."""

    marker: str
    interpreter_variable: str | None = None
    """The tests run in Palestra's own environment and find this one's interpreter here; None: they run in it."""
    stubs: Path | None = None
    """Stands in the place of packages that it names and never uses."""

    def pinned(self) -> list[str]:
        lock = ROOT / f"requirements-{self.marker}.lock"
        lines = [line.strip() for line in lock.read_text().splitlines()]
        return [line for line in lines if line and not line.startswith("#")]

    def python(self, home: Path) -> Path:
        """Raises Unfit when it cannot be made."""
        stubs = [] if self.stubs is None else [self.stubs]
        return python_beside_ours(home / "backends" / self.marker, self.pinned(), paths=stubs)


BACKENDS = (
    Backend("sglang", interpreter_variable="PALESTRA_SGLANG_PYTHON", stubs=ROOT / "devtools" / "sglang_stubs"),
    Backend("megatron"),
)


def python_beside_ours(folder: Path, pinned: Sequence[str], *, paths: Sequence[Path] = ()) -> Path:
    """The interpreter of the environment in ``folder``, in which ``paths`` are searched too.

    Raises Unfit when pip fails.
    """
    complete = folder / "installed.txt"
    wanted = "\n".join((sys.prefix, *map(str, paths), *pinned))
    if not complete.exists() or complete.read_text() != wanted:
        shutil.rmtree(folder, ignore_errors=True)
        folder.parent.mkdir(parents=True, exist_ok=True)
        _run([sys.executable, "-m", "venv", str(folder)])
        own = Path(sysconfig.get_path("purelib", vars={"base": str(folder), "platbase": str(folder)}))
        seen = (sysconfig.get_path("purelib"), *map(str, paths))
        (own / "palestra.pth").write_text("\n".join(seen) + "\n")
        _run([str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--no-compile", "--no-deps", *pinned])
        complete.write_text(wanted)
    return folder / "bin" / "python"


def _run(command: list[str]) -> None:
    done = subprocess.run(command, stdout=sys.stderr)
    if done.returncode:
        raise Unfit(f"{' '.join(command[:4])} .. ended with code {done.returncode}; its last lines stand above")
