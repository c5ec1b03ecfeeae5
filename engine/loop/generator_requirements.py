"""Whether the run's generator fits into the memory of this machine, asked before anything is started.

On the CPU alone: what a GPU has room for is found out by the process that gets one.
"""

from collections.abc import Iterator
from pathlib import Path

import psutil

from engine.inference.torch.memory import lacking_memory
from engine.models.architecture import Architecture
from engine.models.origin import model_origin
from engine.models.tokenizer import tokenizer_for
from engine.spec.model import BuiltinModel
from engine.spec.problems import Problem
from engine.spec.run import RunSpec

_CGROUPS = (
    (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")),
    (Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"), Path("/sys/fs/cgroup/memory/memory.usage_in_bytes")),
)
"""Limit and use, of version 2 and of version 1."""


def lacking_in_generator(spec: RunSpec, free_bytes: int | None = None) -> list[Problem]:
    """Empty where it fits into ``free_bytes``, which are this machine's unless told.

    What a pretrained model's takes is counted beside its trainer's (``model_requirements.py``).
    """
    resources = spec.resources
    if resources.generator != "torch" or resources.device != "cpu":
        return []
    model = model_origin(spec.model).model
    if not isinstance(model, BuiltinModel):
        return []
    problem = lacking_memory(
        Architecture.of_builtin(model, len(tokenizer_for(model.vocabulary))),
        context_tokens=model.context_tokens,
        slots=resources.kv_slots,
        dtype="float32",
        free_bytes=free_memory() if free_bytes is None else free_bytes,
    )
    return [] if problem is None else [problem]


def free_memory(cgroups: tuple[tuple[Path, Path], ...] = _CGROUPS) -> int:
    """Bytes that this process may yet take: of the machine, and of its cgroup where that has a limit."""
    return min([int(psutil.virtual_memory().available), *_left_in(cgroups)])


def _left_in(cgroups: tuple[tuple[Path, Path], ...]) -> Iterator[int]:
    for limit, use in cgroups:
        if limit.is_file() and use.is_file() and (text := limit.read_text().strip()).isdigit():
            yield max(int(text) - int(use.read_text()), 0)
