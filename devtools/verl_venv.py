"""verl in a virtual environment of its own, made on first use and kept: the peer of ``-m verl`` tests.

It has verl and the little that its ``core_algos`` imports.
"""

from pathlib import Path

from devtools.venvs import python_beside_ours

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
    """The interpreter of ``home``/verl.  Raises Unfit when pip fails."""
    return python_beside_ours(home / "verl", PINNED)
