"""How a run's SGLang servers are started or found, and how they come to new weights (docs/backends.md).

The interpreter that has SGLang is the operator's to choose (``PALESTRA_SGLANG_PYTHON``), never a spec's: whoever names
an interpreter runs code.  For the same reason ``flags`` takes the names of ``FLAGS`` alone.
"""

import re
from collections.abc import Iterator
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, StringConstraints, model_validator
from pydantic_core import PydanticCustomError

from engine.spec.impossible import Combination, impossible
from engine.spec.model import ContextTokens, FolderPath, Precision, PretrainedModel
from engine.spec.model_files import CatalogVersion
from engine.spec.server_url import ServerUrl, server_at
from engine.spec.strict import Strict

FLAGS = frozenset(
    {
        "attention-backend",
        "chunked-prefill-size",
        "cuda-graph-max-bs",
        "disable-cuda-graph",
        "disable-overlap-schedule",
        "disable-radix-cache",
        "enable-deterministic-inference",
        "enable-torch-compile",
        "kv-cache-dtype",
        "lora-backend",
        "max-prefill-tokens",
        "max-running-requests",
        "max-total-tokens",
        "page-size",
        "quantization",
        "sampling-backend",
        "sampling-mask-max-tokens",
        "schedule-conservativeness",
        "schedule-policy",
        "watchdog-timeout",
    }
)
"""What a spec may say to ``sglang.launch_server``, without the dashes; none of them names a file or code."""
_STARTED_ALONE = ("servers", "tensor_parallel", "flags", "memory_fraction", "restarts")
"""The fields that concern only servers that the engine starts."""


def _is_known(flag: str) -> str:
    if not re.fullmatch(r"[a-z][a-z-]*(=[\w.,:+-]+)?", flag):
        remedy = "write it without the dashes, as name=value; a switch by its name alone"
        raise impossible("", flag, "is not written as flags are here", remedy)
    if flag.partition("=")[0] not in FLAGS:
        raise impossible("", flag, "is not a flag that a run may set", f"use some of: {', '.join(sorted(FLAGS))}")
    return flag


Flag = Annotated[str, StringConstraints(max_length=200), AfterValidator(_is_known)]


class SglangServers(Strict):
    """SGLang servers of one model that the engine starts, watches and restarts."""

    servers: int = Field(default=1, ge=1, le=64)
    """How many are started.  Of the policy's, episodes are spread over them, and all turns of one go to the same."""
    tensor_parallel: int = Field(default=1, ge=1, le=64)
    """GPUs over which each server splits the model; must divide its attention heads."""
    flags: list[Flag] = Field(default=[], max_length=len(FLAGS))
    """Further arguments of ``sglang.launch_server``, e.g. ``max-running-requests=256``; a switch by its name alone."""
    memory_fraction: float = Field(default=0.85, gt=0, le=0.98)
    """Share of a GPU's memory (on the CPU: of the machine's) that a server may take for weights and KV cache."""
    start_timeout_s: float = Field(default=600.0, gt=0, le=7200)
    """A server that does not answer by then has failed.  While turns or verdicts wait for servers that are on their
    way, ``schedule.stall_timeout_s`` does not run."""
    health_every_s: float = Field(default=5.0, gt=0, le=600)
    """Between two looks at each server."""
    health_misses: int = Field(default=3, ge=1, le=100)
    """So many looks without an answer in a row, and a server counts as dead."""
    restarts: int = Field(default=5, ge=0, le=1000)
    """How often each server is started again in one attempt, after 1, 2, 4 .. 60 s."""

    @property
    def launch_flags(self) -> dict[str, str]:
        """``flags`` by their names; a switch has the value "".  Of two of one name the later counts."""
        return {name: value for name, _, value in (flag.partition("=") for flag in self.flags)}


class Sglang(SglangServers, Combination):
    """The servers of ``resources.generator = "sglang"``: started by the engine, or given by ``urls``."""

    urls: list[ServerUrl] = Field(default=[], max_length=64)
    """Servers that run already, e.g. ``http://127.0.0.1:30000``; then none is started, stopped or restarted, and what
    only started servers have (``servers``, ``tensor_parallel``, ``flags``, ``memory_fraction``, ``restarts``) is
    refused."""
    weights: Literal["disk", "tensor", "broadcast"] = "disk"
    """How new weights travel: by safetensors in a folder that engine and servers both see, within the requests, or
    over a process group (gloo) of the engine and each server's ranks."""
    lora: Literal["adapter", "merged"] = "adapter"
    """What servers get of a run with ``model.lora``, in the way of ``weights``.  ``adapter``: A and B alone, which each
    exchange loads as a new adapter; the model's own weights stay as the servers began with them.  ``merged``: the whole
    model with the adapter added in, as many bytes as without LoRA."""
    exchange_folder: str | None = Field(default=None, min_length=1, max_length=1000)
    """Where these safetensors stand for as long as they are needed; absent: a folder of the temporary ones.  Servers
    given by ``urls`` have to see it under the same path."""
    logprobs_at: Literal["one", "sampling"] = "one"
    """The distribution whose log-probs the servers report: the model's own, or at each request's temperature.  Set it
    to ``sampling`` with ``schedule.logprobs_at = "sampling"`` at a temperature other than 1.  Started servers are
    started so; those given by ``urls`` are asked to prove it."""

    def refusals(self) -> Iterator[PydanticCustomError]:
        """Yield what servers given by ``urls`` cannot have, beside a server that is named twice."""
        if not self.urls:
            return
        if len(set(map(server_at, self.urls))) < len(self.urls):
            yield impossible("urls", self.urls, "a server is named twice", "name each once")
        started = [name for name in _STARTED_ALONE if getattr(self, name) != type(self).model_fields[name].default]
        for field in started:
            problem = "servers given by urls are not started by the engine"
            yield impossible(field, getattr(self, field), problem, f"remove {field}, or urls")
        if started:  # whether urls stay is open, and with it whether a folder has to be named
            return
        if self.weights == "disk" and self.exchange_folder is None:
            yield impossible(
                "exchange_folder",
                None,
                "servers given by urls read new weights from a shared folder",
                'give a folder that they see under the same path, or use weights = "tensor"',
            )


class JudgeServers(SglangServers):
    """Servers of another model, which judges for this run alone and is never given weights (docs/backends.md).

    Whoever judges names ``resources.judge`` as its endpoint.
    """

    path: FolderPath | None = None
    """The model's folder, as ``model.path``; with a tokenizer and a chat template."""
    catalog: CatalogVersion | None = None
    """A version of the team's catalog, as ``name@version``, in place of a path."""
    dtype: Precision = "bfloat16"
    """In what it computes."""
    context_tokens: ContextTokens | None = None
    """Question and answer must fit in here; absent: what the model was made for."""

    @model_validator(mode="after")
    def _comes_from_one_place(self) -> Self:
        given = sum(place is not None for place in (self.path, self.catalog))
        if given != 1:
            raise impossible(
                "path",
                self.path,
                f"a judge's model comes from exactly one of path and catalog, not {given}",
                "remove one of them" if given else 'set path = "a-folder-with-a-model", or catalog = "name@version"',
            )
        return self

    @property
    def model(self) -> PretrainedModel:
        """The model as a spec names the policy's, to be found in the same way."""
        return PretrainedModel(path=self.path, catalog=self.catalog)
