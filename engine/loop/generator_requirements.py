"""Whether the run's generator can work on this machine, asked before anything is started.

Memory is asked for on the CPU alone: what a GPU has room for is found out by the process that gets one.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil

from engine.inference.torch.memory import lacking_memory
from engine.models.architecture import Architecture
from engine.models.folder import opened_folder
from engine.models.memory import adapted_modules, is_mixture
from engine.models.origin import folder_of, model_origin
from engine.models.refusal import ModelFolderRefused
from engine.models.tokenizer import tokenizer_for
from engine.spec.judge import OF_THE_RUN
from engine.spec.model import BuiltinModel, PretrainedModel
from engine.spec.problems import Problem
from engine.spec.run import RunSpec
from sandboxes.cgroups.memory import CGROUP_V1, CGROUP_V2, MemoryCgroup

ATTENTION_ADAPTED = frozenset({"q_proj", "k_proj", "v_proj", "qkv_proj", "o_proj"})
MLP_ADAPTED = frozenset({"gate_proj", "up_proj", "gate_up_proj", "down_proj"})
"""On which SGLang computes adapters.  In a mixture it would compute those of a shared expert for all experts."""
SGLANG_PYTHON = "PALESTRA_SGLANG_PYTHON"
"""The variable that names the interpreter of an environment with SGLang."""


def lacking_in_generator(spec: RunSpec, free_bytes: int | None = None) -> list[Problem]:
    """Empty where it fits into ``free_bytes``, which are this machine's by default.

    What a pretrained model's takes is counted beside its trainer's (``model_requirements.py``).
    """
    resources = spec.resources
    if resources.generator == "sglang":
        return [*lacking_for_sglang(spec)]
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
        decoders=resources.decoders,
        free_bytes=free_memory() if free_bytes is None else free_bytes,
        generators=resources.generators,
    )
    return [] if problem is None else [problem]


def lacking_for_judge(spec: RunSpec) -> Iterator[Problem]:
    """What the servers lack that are started for the run's judge."""
    judge = spec.resources.judge
    if judge is None:
        return
    yield from _no_interpreter(OF_THE_RUN)
    try:
        folder = opened_folder(folder_of(judge.model), field=f"{OF_THE_RUN}.path")
    except ModelFolderRefused as unusable:
        yield unusable.problem.renamed("model", OF_THE_RUN)
        return
    longest = folder.longest_context
    if judge.context_tokens is not None and longest is not None and judge.context_tokens > longest:
        problem = f"the model was made for {longest} tokens (max_position_embeddings)"
        yield Problem(f"{OF_THE_RUN}.context_tokens", judge.context_tokens, problem, f"use at most {longest}")
    heads = folder.text_config.get("num_attention_heads")
    yield from _undivided(f"{OF_THE_RUN}.tensor_parallel", heads, judge.tensor_parallel)


def lacking_for_sglang(spec: RunSpec) -> Iterator[Problem]:
    """What servers lack that this machine is to start; those given by URL are asked when the run begins."""
    settings = spec.resources.sglang
    if settings.exchange_folder is not None:
        yield from _no_folder(settings.exchange_folder)
    if not settings.urls:
        yield from _no_interpreter(
            "resources.generator", "sglang", ", or name running servers in resources.sglang.urls"
        )
    try:
        yield from _adapters_served(spec)
        yield from _heads_divide(spec)
    except ModelFolderRefused:  # the model's own requirements name it
        return


def _no_folder(given: str) -> Iterator[Problem]:
    """Whether ``resources.sglang.exchange_folder`` can be one: it may be made yet."""
    path, problem = Path(given), None
    if not path.is_absolute():
        problem = "is a relative path, and servers stand elsewhere"
    elif not given.isprintable():
        problem = "holds characters that no path of a folder should have"
    elif not os.path.isdir(next(place for place in (path, *path.parents) if os.path.lexists(place))):
        problem = "is, or lies below, what is no folder"
    if problem is not None:
        remedy = "give the absolute path of a folder that engine and servers see"
        yield Problem("resources.sglang.exchange_folder", given, problem, remedy)


def _no_interpreter(field: str, value: str = "set", otherwise: str = "") -> Iterator[Problem]:
    interpreter = os.environ.get(SGLANG_PYTHON) or sys.executable
    found = shutil.which(interpreter)
    if found is None or not _has_sglang(found):
        problem = f"{interpreter} {'does not exist' if found is None else 'has no SGLang'}"
        remedy = f"set {SGLANG_PYTHON} to the interpreter of an environment with SGLang{otherwise}"
        yield Problem(field, value, problem, remedy)


def _adapters_served(spec: RunSpec) -> Iterator[Problem]:
    """Whether servers know adapters on the modules that get one, and have the weights that they are made for."""
    if not spec.resources.sends_adapter_of(spec.model):
        return
    origin = model_origin(spec.model)
    assert origin.weights is not None  # what has an adapter has a folder
    assert isinstance(origin.model, PretrainedModel)
    assert origin.model.lora is not None
    folder = opened_folder(origin.weights)
    named = {name.rpartition(".")[2] for name in adapted_modules(folder, origin.model.lora)}
    known = ATTENTION_ADAPTED if is_mixture(folder) else ATTENTION_ADAPTED | MLP_ADAPTED
    problem = None
    if origin.adapter is not None:
        problem = (
            f"the run begins with an adapter of its own, {origin.adapter}, and servers have {origin.weights} alone"
        )
    elif unknown := sorted(named - known):
        problem = f"model.lora adapts {', '.join(unknown)}, and servers of this model adapt {', '.join(sorted(known))}"
    if problem is not None:
        yield Problem("resources.sglang.lora", "adapter", problem, 'use "merged", or adapt what servers do')


def _has_sglang(interpreter: str) -> bool:
    code = "import importlib.util, sys; sys.exit(importlib.util.find_spec('sglang') is None)"
    return subprocess.run([interpreter, "-c", code], capture_output=True).returncode == 0


def _heads_divide(spec: RunSpec) -> Iterator[Problem]:
    origin, ranks = model_origin(spec.model), spec.resources.sglang.tensor_parallel
    if origin.weights is None or ranks == 1:
        return
    heads = opened_folder(origin.weights).text_config.get("num_attention_heads")
    yield from _undivided("resources.sglang.tensor_parallel", heads, ranks)


def _undivided(field: str, heads: object, ranks: int) -> Iterator[Problem]:
    if isinstance(heads, int) and heads % ranks:
        divisors = ", ".join(str(number) for number in range(1, heads + 1) if heads % number == 0)
        yield Problem(
            field,
            ranks,
            f"the model's {heads} attention heads cannot be dealt out to {ranks} GPUs evenly",
            f"use one of: {divisors}",
        )


def free_memory(cgroups: Sequence[MemoryCgroup] = (CGROUP_V2, CGROUP_V1)) -> int:
    """Bytes that this process may yet take: of the machine, and of its cgroup where that has a limit."""
    left = [
        max(limit - used, 0)
        for cgroup in cgroups
        if (limit := cgroup.limit_bytes) is not None and (used := cgroup.used_bytes) is not None
    ]
    return min([int(psutil.virtual_memory().available), *left])
