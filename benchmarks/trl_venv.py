"""TRL in a virtual environment of its own, made on first use and kept.

The versions are pinned together: they were run together.  torch comes first and alone, so that the
CPU build which it resolves to stays, and TRL's own requirement does not replace it.
"""

import subprocess
import sys
from pathlib import Path

LOCK = Path(__file__).resolve().parent.parent / "requirements.lock"
"""What the engine's own modules import, of which TRL's side of a comparison takes environments and episodes."""
TORCH = "torch==2.13.0"
PINNED = ("trl==1.16.0", "transformers==5.23.0", "datasets==5.2.0", "accelerate==1.15.0", "tokenizers==0.23.3")


def python_of(home: Path) -> Path:
    """The interpreter of ``home``/bench/trl.  Raises CalledProcessError when pip fails; trying again goes on."""
    folder = home / "bench" / "trl"
    python, complete = folder / "bin" / "python", folder / "installed.txt"
    wanted = "\n".join((TORCH, *PINNED, LOCK.read_text()))
    if complete.exists() and complete.read_text() == wanted:
        return python
    print(f"installing TRL and what it needs in {folder} (once; about 2 GB)", file=sys.stderr)
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    constraints = folder / "constraints.txt"
    constraints.write_text(f"{TORCH}\n")
    for requirements in ((TORCH,), PINNED, ("--no-deps", "--requirement", str(LOCK))):
        install = [str(python), "-m", "pip", "install", "--quiet", "--constraint", str(constraints), *requirements]
        subprocess.run(install, check=True, stdout=sys.stderr)
    complete.write_text(wanted)
    return python
