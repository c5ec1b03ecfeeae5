"""Peers in virtual environments of their own, made on first use and kept.

The versions of each are pinned together: they were run together.
"""

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

LOCK = Path(__file__).resolve().parent.parent / "requirements.lock"
"""What the engine's own modules import, of which TRL's side of a comparison takes environments and episodes."""
TORCH = "torch==2.13.0"


@dataclass(frozen=True)
class Peer:
    folder: str
    size: str
    installs: tuple[tuple[str, ...], ...]
    """The arguments of ``pip install``, one after the other."""

    def wanted(self) -> str:
        """What the environment is made of; when it changes, that is made anew."""
        arguments = [argument for install in self.installs for argument in install]
        return "\n".join(LOCK.read_text() if argument == str(LOCK) else argument for argument in arguments)


TRL = Peer(
    "trl",
    "2 GB",
    # torch comes first and alone, so that the CPU build which it resolves to stays, and TRL's own requirement does not
    # replace it.
    (
        (TORCH,),
        ("trl==1.16.0", "transformers==5.23.0", "datasets==5.2.0", "accelerate==1.15.0", "tokenizers==0.23.3", TORCH),
        ("--no-deps", "--requirement", str(LOCK)),
    ),
)
RLLM_GATEWAY = Peer(
    "rllm-gateway",
    "60 MB",
    # The last two are what uvicorn takes where they are there, and runs faster with.
    (
        (
            "rllm-model-gateway==0.1.0",
            "fastapi==0.165.0",
            "starlette==1.10.0",
            "httpx==0.28.1",
            "pydantic==2.14.4",
            "uvicorn==0.54.0",
            "httptools==0.9.0",
            "uvloop==0.23.0",
        ),
    ),
)


def python_of(peer: Peer, home: Path) -> Path:
    """The interpreter of ``home``/bench/FOLDER.  Raises CalledProcessError when pip fails; trying again goes on."""
    folder = home / "bench" / peer.folder
    python, complete = folder / "bin" / "python", folder / "installed.txt"
    if complete.exists() and complete.read_text() == peer.wanted():
        return python
    print(f"installing {peer.folder} and what it needs in {folder} (once; about {peer.size})", file=sys.stderr)
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    for install in peer.installs:
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", *install], check=True, stdout=sys.stderr)
    complete.write_text(peer.wanted())
    return python
