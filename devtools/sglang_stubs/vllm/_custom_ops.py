"""CUDA kernels that are not here."""

from typing import Any


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)

    def absent(*_: Any, **__: Any) -> None:
        raise RuntimeError(f"{name} is a CUDA kernel of vllm, which is not installed here")

    return absent
