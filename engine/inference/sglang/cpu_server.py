"""Starts ``sglang.launch_server`` on a machine without an accelerator, its processes as forks of one.

    python cpu_server.py [ARGUMENT ..]

SGLang spawns its scheduler and its detokenizer, because CUDA does not survive a fork, and each of them imports SGLang
anew.  Without CUDA they are forked from the process that has imported it, before it begins a thread or a pass of torch
(docs/decisions/0060).

Pinned memory makes copies to a GPU faster and means nothing else; torch refuses it where there is none, and SGLang asks
for it without looking, for adapters.

Run by its path, so that nothing of the engine is imported.
"""

import multiprocessing
import os
import runpy
from collections.abc import Callable
from typing import Any

import torch

ASKED_WITH_IT = ("tensor", "zeros", "empty")
"""What SGLang's torch backend of adapters calls with ``pin_memory=True``."""


def fork_processes() -> None:
    """SGLang's own choice, which would be to spawn them, is not taken."""
    multiprocessing.set_start_method("fork")
    setattr(multiprocessing, "set_start_method", lambda *_, **__: None)  # noqa: B010 - mypy knows it as a method
    # It would spawn a scheduler through another program, to place it beside a GPU.
    os.environ["SGLANG_NUMA_BIND_V2"] = "0"


def unpinned(make: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def made(*arguments: Any, pin_memory: bool = False, **named: Any) -> torch.Tensor:
        return make(*arguments, **named)

    return made


def pin_nothing() -> None:
    for name in ASKED_WITH_IT:
        setattr(torch, name, unpinned(getattr(torch, name)))
    setattr(torch.Tensor, "pin_memory", lambda tensor, *_: tensor)  # noqa: B010 - mypy knows it as a method


if __name__ == "__main__":
    fork_processes()
    pin_nothing()
    runpy.run_module("sglang.launch_server", run_name="__main__")
