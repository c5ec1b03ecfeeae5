"""One ``sglang.launch_server`` as a process: its command, its port, its log, its end."""

import os
import secrets
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.spec.sglang import Sglang

KEEPER = Path(__file__).with_name("keeper.py")
WITHOUT_PINNED_MEMORY = Path(__file__).with_name("unpinned_server.py")
LOG_TAIL_BYTES = 1500
STOP_S = 10.0
LOOPBACK = "lo"
"""The network interface on which the ranks of a group meet that never leaves this machine."""
CPU_FLAGS = {
    "device": "cpu",
    "attention-backend": "torch_native",
    "sampling-backend": "pytorch",
    "disable-cuda-graph": "",
}
"""Where there are no CUDA kernels."""
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
    """``command`` is told the port and the key; ``log`` is written anew with each start."""

    command: Callable[[int, str], Sequence[str]]
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
        with self.log.open("wb") as log:
            self._keeper = subprocess.Popen(
                [sys.executable, str(KEEPER), *self.command(self.port, self.api_key)],
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
    api_key: str,
    adapter: ServedAdapter | None = None,
) -> list[str]:
    """What starts one server of the model in ``folder``, whose weights are policy version 0."""
    flags: dict[str, Any] = {
        "model-path": folder,
        "host": "127.0.0.1",
        "port": port,
        "api-key": api_key,
        "dtype": dtype,
        "tp-size": settings.tensor_parallel,
        "mem-fraction-static": settings.memory_fraction,
        "weight-version": 0,
        "log-level": "warning",
        "grammar-backend": "none",
        "skip-tokenizer-init": "",
        "skip-server-warmup": "",
        "incremental-streaming-output": "",
    }
    if device == "cpu":
        flags |= CPU_FLAGS
    if adapter is not None:
        flags |= lora_flags(adapter, device=device)
    flags |= settings.launch_flags
    started_by_path = adapter is not None and device == "cpu"
    return [
        python,
        *([str(WITHOUT_PINNED_MEMORY)] if started_by_path else ["-m", "sglang.launch_server"]),
        *launch_words(flags),
    ]


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
    environment = {
        name: value
        for name, value in os.environ.items()
        if any(name == passed or (passed.endswith("_") and name.startswith(passed)) for passed in PASSED_ON)
    }
    environment |= {
        "SGLANG_RETURN_ORIGINAL_LOGPROB": "1" if settings.logprobs_at == "one" else "0",
        "HF_HUB_OFFLINE": "1",
        "PYTHONUNBUFFERED": "1",
    }
    if settings.weights == "broadcast":
        environment["GLOO_SOCKET_IFNAME"] = LOOPBACK
    if device == "cpu":
        return environment | {"OMP_NUM_THREADS": str(threads)}
    return environment | {"CUDA_VISIBLE_DEVICES": devices_of(number, settings, os.environ.get("CUDA_VISIBLE_DEVICES"))}


def devices_of(number: int, settings: Sglang, visible: str | None) -> str:
    """The GPUs of server ``number``: as many as it splits the model over, none shared with another server.

    Raises ServerFailed where this process sees too few.
    """
    needed = settings.servers * settings.tensor_parallel
    devices = [str(device) for device in range(needed)] if visible is None else visible.split(",")
    if len(devices) < needed:
        raise ServerFailed(
            f"resources.sglang.servers = {settings.servers}: each takes {settings.tensor_parallel} GPUs "
            f"(tensor_parallel), and this process sees {len(devices)}; use fewer, or give it more"
        )
    first = number * settings.tensor_parallel
    return ",".join(devices[first : first + settings.tensor_parallel])


def new_key() -> str:
    """A key has letters and digits alone: on a command line, a key that begins with a dash would be an option."""
    return secrets.token_hex(24)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
