"""Starts ``sglang.launch_server`` on a machine without an accelerator, where adapters would ask for pinned memory.

    python cpu_server.py [ARGUMENT ..]

Pinned memory makes copies to a GPU faster and means nothing else; torch refuses it where there is none, and SGLang asks
for it without looking.  Run by its path, so that nothing of the engine is imported; the server's own processes run this
file again up to its last lines, as Python's ``spawn`` does.
"""

import runpy
from collections.abc import Callable
from typing import Any

import torch

ASKED_WITH_IT = ("tensor", "zeros", "empty")
"""What SGLang's torch backend of adapters calls with ``pin_memory=True``."""


def unpinned(make: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def made(*arguments: Any, pin_memory: bool = False, **named: Any) -> torch.Tensor:
        return make(*arguments, **named)

    return made


for name in ASKED_WITH_IT:
    setattr(torch, name, unpinned(getattr(torch, name)))
setattr(torch.Tensor, "pin_memory", lambda tensor, *_: tensor)  # noqa: B010 - mypy knows it as a method

if __name__ == "__main__":
    runpy.run_module("sglang.launch_server", run_name="__main__")
