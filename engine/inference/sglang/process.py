"""One ``sglang.launch_server`` as a process: its command, its port, its log, its end."""

import json
import os
import secrets
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.spec.sglang import JudgeServers, Sglang, SglangServers

KEEPER = Path(__file__).with_name("keeper.py")
CPU_SERVER = Path(__file__).with_name("cpu_server.py")
LOG_TAIL_BYTES = 1500
STOP_S = 10.0
LOOPBACK = "lo"
"""The network interface on which the ranks of a group meet that never leaves this machine."""
CPU_FLAGS = {
    "device": "cpu",
    "attention-backend": "torch_native",
    "sampling-backend": "pytorch",
    "disable-cuda-graph": "",
    "sleep-on-idle": "",
}
"""Where there are no CUDA kernels; and where a server that waits would take a core from those that work."""
ADAPTER_SLOTS = 2
"""A batch has the policy's newest adapter, or none."""
PASSED_ON = ("PATH", "HOME", "LANG", "TMPDIR", "LD_LIBRARY_PATH", "CUDA_HOME", "NCCL_", "CUDA_", "SGLANG_")
"""What of the environment a server gets, by name or by how it begins; secrets of the engine are not among it."""


@dataclass(frozen=True)
class ServedAdapter:
    """What adapters a server has to take: their rank, and the last names of the modules that have one."""

    rank: int
    modules: tuple[str, ...]


class ServerFailed(Exception):
    """The process ended, or never answered."""


@dataclass
class ServerProcess:
    """``command`` is given the port, and the file that holds the key; ``log`` is written anew with each start."""

    command: Callable[[int, Path], Sequence[str]]
    environment: Mapping[str, str]
    log: Path
    api_key: str = ""
    port: int = 0
    _keeper: "subprocess.Popen[bytes] | None" = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int | None:
        """The id of the process that keeps the server; its child leads the server's process group."""
        return None if self._keeper is None else self._keeper.pid

    def start(self) -> None:
        """On a free port of loopback, with a new key: others on this machine may neither sample nor load weights."""
        self.stop()
        self.port, self.api_key = _free_port(), new_key()
        key_file = self.log.with_suffix(".yaml")
        key_file.touch(mode=0o600)
        key_file.write_text(json.dumps({"api-key": self.api_key}))
        with self.log.open("wb") as log:
            self._keeper = subprocess.Popen(
                [sys.executable, str(KEEPER), *self.command(self.port, key_file)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=dict(self.environment),
                start_new_session=True,
            )

    def has_ended(self) -> bool:
        return self._keeper is None or self._keeper.poll() is not None

    def check(self) -> None:
        """Raises ServerFailed with the end of the log where the process has ended."""
        if self._keeper is not None and (code := self._keeper.poll()) is not None:
            tail = self.log.read_bytes()[-LOG_TAIL_BYTES:].decode(errors="replace")
            raise ServerFailed(f"its process ended with code {code}; {self.log} ends with:\n{tail}")

    def stop(self) -> None:
        """End the server and its children.  Twice is fine."""
        if self._keeper is None:
            return
        assert self._keeper.stdin is not None
        self._keeper.stdin.close()
        try:
            self._keeper.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._keeper.kill()  # the kernel then ends the server, which asked for that
            self._keeper.wait()
        self._keeper = None


def launch_command(
    python: str,
    folder: Path,
    settings: Sglang,
    *,
    device: str,
    dtype: str,
    port: int,
    key_file: Path,
    adapter: ServedAdapter | None = None,
) -> list[str]:
    """What starts one server of the model in ``folder``, whose weights are policy version 0.

    ``key_file`` is YAML with the ``api-key``: all users of a machine can read a command line.
    """
    flags = _common_flags(folder, settings, device=device, dtype=dtype, port=port, key_file=key_file)
    flags |= {"weight-version": 0, "skip-tokenizer-init": "", "incremental-streaming-output": ""}
    if adapter is not None:
        flags |= lora_flags(adapter, device=device)
    flags |= settings.launch_flags
    return [python, *_program(device), *launch_words(flags)]


def judge_command(
    python: str, folder: Path, settings: JudgeServers, *, device: str, port: int, key_file: Path
) -> list[str]:
    """What starts one server of the judge in ``folder``, which is asked in messages."""
    flags = _common_flags(folder, settings, device=device, dtype=settings.dtype, port=port, key_file=key_file)
    flags["enable-cache-report"] = ""
    if settings.context_tokens is not None:
        flags["context-length"] = settings.context_tokens
    return [python, *_program(device), *launch_words(flags | settings.launch_flags)]


def _program(device: str) -> list[str]:
    return [str(CPU_SERVER)] if device == "cpu" else ["-m", "sglang.launch_server"]


def _common_flags(
    folder: Path, settings: SglangServers, *, device: str, dtype: str, port: int, key_file: Path
) -> dict[str, Any]:
    return {
        "model-path": folder,
        "host": "127.0.0.1",
        "port": port,
        "config": key_file,
        "dtype": dtype,
        "tp-size": settings.tensor_parallel,
        "mem-fraction-static": settings.memory_fraction,
        "log-level": "warning",
        "grammar-backend": "none",
        "skip-server-warmup": "",
    } | (CPU_FLAGS if device == "cpu" else {})


def launch_words(flags: Mapping[str, Any]) -> list[str]:
    """Flags by their names and values, of which some have several; a switch has the value ""."""
    values = {flag: value if isinstance(value, tuple) else (value,) for flag, value in flags.items()}
    return [word for flag, given in values.items() for word in (f"--{flag}", *(str(value) for value in given)) if word]


def lora_flags(adapter: ServedAdapter, *, device: str) -> dict[str, Any]:
    """By which a server takes adapters of that kind.  On the CPU torch computes them; else SGLang's own choice does."""
    flags: dict[str, Any] = {
        "enable-lora": "",
        "max-lora-rank": adapter.rank,
        "max-loras-per-batch": ADAPTER_SLOTS,
        "lora-target-modules": adapter.modules,
    }
    return flags | ({"lora-backend": "torch_native"} if device == "cpu" else {})


def launch_environment(settings: Sglang, number: int, *, threads: int, device: str) -> dict[str, str]:
    """The server's own GPUs, of those that this process sees, and where log-probs are taken."""
    environment = common_environment(settings, number, threads=threads, device=device)
    environment["SGLANG_RETURN_ORIGINAL_LOGPROB"] = "1" if settings.logprobs_at == "one" else "0"
    if settings.weights == "broadcast":
        environment["GLOO_SOCKET_IFNAME"] = LOOPBACK
    return environment


def common_environment(
    settings: SglangServers, number: int, *, threads: int, device: str, first_gpu: int = 0
) -> dict[str, str]:
    """The server's own GPUs, of those that this process sees behind the first ``first_gpu``."""
    environment = {
        name: value
        for name, value in os.environ.items()
        if any(name == passed or (passed.endswith("_") and name.startswith(passed)) for passed in PASSED_ON)
    }
    environment |= {"HF_HUB_OFFLINE": "1", "PYTHONUNBUFFERED": "1"}
    if device == "cpu":
        return environment | {"OMP_NUM_THREADS": str(threads)}
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return environment | {"CUDA_VISIBLE_DEVICES": devices_of(number, settings, visible, first_gpu=first_gpu)}


def devices_of(number: int, settings: SglangServers, visible: str | None, *, first_gpu: int = 0) -> str:
    """The GPUs of server ``number``: as many as it splits the model over, none shared with another server.

    Raises ServerFailed where this process sees too few.
    """
    needed = first_gpu + settings.servers * settings.tensor_parallel
    devices = [str(device) for device in range(needed)] if visible is None else visible.split(",")
    if len(devices) < needed:
        field = "resources.judge" if isinstance(settings, JudgeServers) else "resources.sglang"
        others = f" behind {first_gpu} of others" if first_gpu else ""
        raise ServerFailed(
            f"{field}.servers = {settings.servers}: each takes {settings.tensor_parallel} GPUs "
            f"(tensor_parallel){others}, and this process sees {len(devices)}; use fewer, or give it more"
        )
    first = first_gpu + number * settings.tensor_parallel
    return ",".join(devices[first : first + settings.tensor_parallel])


def new_key() -> str:
    """A key has letters and digits alone: among arguments, a key that begins with a dash would be an option."""
    return secrets.token_hex(24)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
