"""The SGLang generator of a run: what the spec says becomes servers, an exchange of weights, and a generator."""

import json
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

from engine.durable import read_back
from engine.failures import RunFailed
from engine.inference.sglang.adapters import AdapterFolderExchange, AdapterTensorExchange
from engine.inference.sglang.broadcast import BroadcastExchange
from engine.inference.sglang.client import SglangClient
from engine.inference.sglang.generator import SglangGenerator
from engine.inference.sglang.identity import Expected
from engine.inference.sglang.leftovers import PREFIX, claim
from engine.inference.sglang.process import ServedAdapter, ServerProcess, launch_command, launch_environment
from engine.inference.sglang.servers import Fleet, Server, Timings
from engine.inference.sglang.weights import Exchange, FolderExchange, TensorExchange
from engine.models.folder import opened_folder
from engine.models.memory import adapted_modules
from engine.models.origin import ModelOrigin, model_origin
from engine.spec.model import Model, PretrainedModel
from engine.spec.resources import Resources
from engine.spec.server_url import key_of
from engine.spec.sglang import Sglang

PYTHON = "PALESTRA_SGLANG_PYTHON"
"""The interpreter of an environment that has SGLang; absent: this one."""
KEYS = "PALESTRA_SGLANG_KEYS"
"""Keys of servers given by URL (``key_of``)."""


def sglang_generator(model: Model, resources: Resources, *, seed: int) -> SglangGenerator:
    """Servers are started by the first call.  ``seed`` is a built-in model's, of which no server can be made.

    Raises RunFailed where ``resources.sglang.exchange_folder`` cannot be written in.
    """
    origin, settings = model_origin(model), resources.sglang
    pretrained, folder = origin.model, origin.weights
    assert isinstance(pretrained, PretrainedModel)  # the spec refuses all others
    assert folder is not None
    config = config_of(folder)
    scratch = Path(tempfile.mkdtemp(prefix=PREFIX))
    claim(scratch)
    adapter = served_adapter(folder, pretrained) if resources.sends_adapter_of(model) else None
    try:
        exchange = _exchange(settings, scratch, pretrained, is_adapter=adapter is not None)
    except RunFailed:
        shutil.rmtree(scratch)
        raise
    expected = Expected(config, int(config["vocab_size"]), origin.context_tokens, settings.logprobs_at, adapter)
    timings = Timings(settings.start_timeout_s, settings.health_every_s, settings.health_misses, settings.restarts)

    def fleet() -> Fleet:
        servers = _given(settings) if settings.urls else _own(origin, folder, resources, scratch, adapter)
        return Fleet(servers, exchange, expected, timings)

    return SglangGenerator(
        fleet,
        exchange,
        scratch=scratch,
        vocab_size=expected.vocab_size,
        context_tokens=origin.context_tokens,
        logprobs_at=settings.logprobs_at,
    )


def config_of(folder: Path) -> dict[str, Any]:
    """Raises DamagedFile."""
    path = folder / "config.json"
    with read_back(path):
        config: dict[str, Any] = json.loads(path.read_text())
    return config


def interpreter() -> str:
    return os.environ.get(PYTHON) or sys.executable


def served_adapter(folder: Path, model: PretrainedModel) -> ServedAdapter:
    """What servers of the model in ``folder`` are told of the run's adapters before the first comes."""
    assert model.lora is not None
    modules = adapted_modules(opened_folder(folder), model.lora)
    return ServedAdapter(model.lora.rank, tuple(sorted({name.rpartition(".")[2] for name in modules})))


def _exchange(settings: Sglang, scratch: Path, model: PretrainedModel, *, is_adapter: bool) -> Exchange:
    dtype: torch.dtype = getattr(torch, model.dtype)
    if is_adapter and settings.weights == "tensor":
        return AdapterTensorExchange(dtype, ranks=settings.tensor_parallel)
    if settings.weights == "tensor":
        return TensorExchange(dtype, ranks=settings.tensor_parallel)
    if settings.weights == "broadcast":
        return BroadcastExchange(dtype, ranks=settings.tensor_parallel)
    by_folder = AdapterFolderExchange if is_adapter else FolderExchange
    if settings.exchange_folder is None:
        return by_folder(scratch / "weights", dtype)
    folder = Path(settings.exchange_folder) / scratch.name
    try:
        claim(folder)
    except OSError as error:
        raise RunFailed(
            f"resources.sglang.exchange_folder = {settings.exchange_folder!r}: the generator cannot write there "
            f"({error.strerror}); give a folder that its process may make or write in and that the servers see"
        ) from error
    return by_folder(folder, dtype)


def _given(settings: Sglang) -> list[Server]:
    keys = os.environ.get(KEYS, "")
    clients = [SglangClient(url, api_key=key_of(url, keys), is_known=False) for url in settings.urls]
    return [Server(number, None, client) for number, client in enumerate(clients)]


def _own(
    origin: ModelOrigin, folder: Path, resources: Resources, scratch: Path, adapter: ServedAdapter | None
) -> list[Server]:
    servers = range(resources.sglang.servers)
    processes = [_process(number, origin, folder, resources, scratch, adapter) for number in servers]
    return [Server(number, process, SglangClient(process.url)) for number, process in enumerate(processes)]


def _process(
    number: int,
    origin: ModelOrigin,
    folder: Path,
    resources: Resources,
    scratch: Path,
    adapter: ServedAdapter | None,
) -> ServerProcess:
    settings, model = resources.sglang, origin.model
    assert isinstance(model, PretrainedModel)
    if resources.device == "cpu":
        # The cache is the machine's own memory there: as much as the torch generator would take for its slots.
        room = [
            f"max-total-tokens={resources.kv_slots * origin.context_tokens}",
            f"max-running-requests={resources.kv_slots}",
        ]
        settings = settings.model_copy(update={"flags": [*room, *settings.flags]})
    environment = launch_environment(settings, number, threads=resources.threads, device=resources.device)
    return ServerProcess(
        lambda port, key_file: launch_command(
            interpreter(),
            folder,
            settings,
            device=resources.device,
            dtype=model.dtype,
            port=port,
            key_file=key_file,
            adapter=adapter,
        ),
        environment,
        scratch / f"server-{number}.log",
    )
