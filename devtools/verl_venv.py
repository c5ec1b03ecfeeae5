"""verl in a virtual environment of its own, made on first use and kept: the peer of ``-m verl`` tests.

It sees the packages of Palestra's own environment, torch among them, and has verl and the little that its
``core_algos`` imports, without their dependencies: those would bring another torch.
"""

import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

PINNED = (
    "verl==0.9.1",
    "tensordict==0.15.3",
    "pyvers==0.2.3",
    "orjson==3.13.0",
    "cloudpickle==3.1.2",
    "omegaconf==2.4.0",
    "antlr4-python3-runtime==4.9.3",
    "hydra-core==1.3.8",
    "codetiming==1.4.0",
)


def python_of(home: Path) -> Path:
    """The interpreter of ``home``/verl.  Raises CalledProcessError when pip fails."""
    folder = home / "verl"
    complete = folder / "installed.txt"
    wanted = "\n".join((sys.prefix, *PINNED))
    if not complete.exists() or complete.read_text() != wanted:
        shutil.rmtree(folder, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        own = Path(sysconfig.get_path("purelib", vars={"base": str(folder), "platbase": str(folder)}))
        (own / "palestra.pth").write_text(sysconfig.get_path("purelib") + "\n")
        install = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--no-deps", *PINNED]
        subprocess.run(install, check=True, stdout=sys.stderr)
        complete.write_text(wanted)
    return folder / "bin" / "python"
