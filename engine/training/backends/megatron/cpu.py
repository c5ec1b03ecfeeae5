"""Megatron-core on the CPU: its calls of CUDA answered by the CPU, for as long as a context is open.

Megatron places what it makes on ``torch.cuda.current_device()`` and waits for CUDA streams, also where no parameter is
on a GPU.  Inside of ``on_cpu`` these calls mean the CPU; outside of it, and in other threads' tensors, nothing changes.
Only ranks whose device is the CPU enter it: on a GPU nothing is patched.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

__all__ = ["on_cpu"]

CPU = torch.device("cpu")


class _PlacedOnCpu(TorchFunctionMode):
    """A torch call that asks for CUDA, or for pinned memory, gets plain memory of the host."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        named = dict(kwargs or {})
        if named.get("device") is not None and torch.device(named["device"]).type == "cuda":
            named["device"] = CPU
        if named.get("pin_memory"):
            named["pin_memory"] = False
        if func is Tensor.cuda:
            return args[0]
        return func(*args, **named)


class _Stream:
    """The only stream of the CPU: everything in it is done already."""

    def wait_stream(self, _other: "_Stream") -> None: ...
    def synchronize(self) -> None: ...

    def record_event(self) -> "_Stream":
        return self


def _counts(tensor: Any, as_numpy: bool = False, **_unused: Any) -> Any:
    """How many tokens each expert gets, in the form in which Megatron wants it after it was on a GPU."""
    return tensor.numpy() if as_numpy and isinstance(tensor, Tensor) else tensor


STREAM = _Stream()
ANSWERS: Mapping[str, Callable[..., Any]] = {
    "torch.cuda.current_device": lambda: CPU,
    "torch.cuda.synchronize": lambda *_, **__: None,
    "torch.cuda.empty_cache": lambda *_, **__: None,
    "torch.cuda.current_stream": lambda *_, **__: STREAM,
    "torch.cuda.Stream": lambda *_, **__: STREAM,
    "torch.cuda.stream": lambda _: nullcontext(),
    "torch.cuda.get_rng_state": lambda *_, **__: torch.random.get_rng_state(),
    "torch.cuda.random.get_rng_state": lambda *_, **__: torch.random.get_rng_state(),
    "torch.cuda.manual_seed": lambda *_, **__: None,
    "torch.cuda._lazy_call": lambda *_, **__: None,
    "megatron.core.transformer.moe.token_dispatcher.maybe_move_tensor_to_cpu": _counts,
}
"""A random state is never set, and the CPU's stays as it is: Megatron draws nothing here."""


@contextmanager
def on_cpu() -> Iterator[None]:
    """Around every call into Megatron of a rank on the CPU."""
    with ExitStack() as replaced:
        for name, answer in ANSWERS.items():
            replaced.enter_context(mock.patch(name, answer))
        replaced.enter_context(torch._dynamo.config.patch(disable=True))  # it would compile for CUDA
        replaced.enter_context(_PlacedOnCpu())
        yield
