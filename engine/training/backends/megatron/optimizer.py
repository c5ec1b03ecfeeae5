"""AdamW over float32 master weights, which each rank holds, or which are divided over the data-parallel ranks (ZeRO 1).

A network in bfloat16 is moved through master weights in float32, and its gradients are summed in float32 (Megatron's
buffers); a float32 network is its own master.  Divided, every parameter has one owner among the ranks that hold copies
of it: the owner alone keeps master and moments, takes the step, and hands the moved weights to the others.

The gradient's norm is that of the whole network: every part of it is counted once, by whichever rank the layout says.
"""

from collections.abc import Mapping

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.tensor_parallel.layers import param_is_not_tensor_parallel_duplicate
from torch import Tensor, nn

from engine.failures import NonFiniteGradient
from engine.training.adamw import AdamW

__all__ = ["MOMENTS", "MasterWeights"]

MOMENTS = ("exp_avg", "exp_avg_sq")
"""What AdamW keeps of a parameter, beside the number of its steps, which is one for all."""


class MasterWeights:
    """The weights that move.  ``network`` are this rank's parameters by Megatron's names."""

    def __init__(self, network: Mapping[str, nn.Parameter], *, divided: bool, weight_decay: float = 0.0) -> None:
        self._network, self._divided = network, divided
        self._owners = _owners(network)
        self.masters = {
            name: parameter if parameter.dtype is torch.float32 else nn.Parameter(parameter.detach().float())
            for name, parameter in network.items()
            if self.owns(name)
        }
        self._adamw = AdamW(self.masters.values(), weight_decay=weight_decay) if self.masters else None

    def owns(self, name: str) -> bool:
        return not self._divided or self._owners[name] == _copies(self._network[name]).rank()

    def renew(self, *, weight_decay: float) -> None:
        """Begin with moments that have no past."""
        self._adamw = AdamW(self.masters.values(), weight_decay=weight_decay) if self.masters else None

    def set_weight_decay(self, weight_decay: float) -> None:
        for group in [] if self._adamw is None else self._adamw.param_groups:
            group["weight_decay"] = weight_decay

    @torch.no_grad()
    def step(self, *, learning_rate: float, grad_clip: float) -> float:
        """Move by the gradient in Megatron's buffers, which is left as it is; the answer is its norm before clipping.

        Raises NonFiniteGradient on every rank, with the weights as they were.
        """
        norm = self._norm()
        if not torch.isfinite(norm):
            raise NonFiniteGradient(f"the gradient of the policy has the norm {norm.item()}")
        scale = torch.clamp(grad_clip / (norm + 1e-6), max=1.0)
        for name, master in self.masters.items():
            master.grad = _gradient(self._network[name]) * scale.to(master.device)
        self._descend(learning_rate)
        self._hand_out()
        return norm.item()

    def _descend(self, learning_rate: float) -> None:
        if self._adamw is None:
            return
        for group in self._adamw.param_groups:
            group["lr"] = learning_rate
        self._adamw.step()
        self._adamw.zero_grad()

    def _norm(self) -> Tensor:
        """The norm of the whole network's gradient, the same number on every rank."""
        squares = [_gradient(parameter).norm() ** 2 for parameter in self._network.values() if _counts(parameter)]
        device = next(iter(self._network.values())).device
        total = sum((square.double() for square in squares), torch.zeros((), dtype=torch.float64, device=device))
        dist.all_reduce(total)
        return total.sqrt().float()

    @torch.no_grad()
    def take_over(self, masters: Mapping[str, Tensor]) -> None:
        """From now on the weights are these, on every rank; ``masters`` are those that this one owns."""
        for name, master in self.masters.items():
            master.copy_(masters[name])
        self._hand_out()

    @torch.no_grad()
    def _hand_out(self) -> None:
        """Give the network what its masters have become."""
        for name, parameter in self._network.items():
            if self.owns(name) and self.masters[name] is not parameter:
                parameter.copy_(self.masters[name])
            if self._divided and (copies := _copies(parameter)).size() > 1:
                dist.broadcast(parameter.data, group=copies, group_src=self._owners[name])

    # ---- state ----

    def moments(self) -> dict[str, dict[str, Tensor]]:
        """By the kind of moment and the parameter's name; before the first step, empty."""
        if self._adamw is None:
            return {}
        state = self._adamw.state
        return {
            moment: {name: state[master][moment] for name, master in self.masters.items() if master in state}
            for moment in MOMENTS
        }

    def described(self) -> dict[str, float]:
        """What is equal on all ranks."""
        group = self._adamw.param_groups[0] if self._adamw is not None else {"weight_decay": 0.0}
        return {"steps": self._steps(), "weight_decay": float(group["weight_decay"])}

    def _steps(self) -> float:
        states = list(self._adamw.state.values()) if self._adamw is not None else []
        return float(states[0]["step"]) if states else 0.0

    def load(self, described: Mapping[str, float], moments: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Take over what ``described`` and ``moments`` gave; without moments there were no steps."""
        self.renew(weight_decay=described["weight_decay"])
        if self._adamw is None or not described["steps"]:
            return
        for name, master in self.masters.items():
            held = {moment: moments[moment][name] for moment in MOMENTS}
            self._adamw.state[master] = {"step": torch.tensor(described["steps"]), **held}

    def blank_moments(self) -> dict[str, dict[str, Tensor]]:
        """As ``moments``, to read into."""
        return {
            moment: {name: torch.zeros_like(master.data) for name, master in self.masters.items()} for moment in MOMENTS
        }


def _gradient(parameter: nn.Parameter) -> Tensor:
    gradient: Tensor = parameter.main_grad  # type: ignore[attr-defined]
    return gradient


def _is_expert(parameter: nn.Parameter) -> bool:
    return not getattr(parameter, "allreduce", True)


def _copies(parameter: nn.Parameter) -> dist.ProcessGroup:
    """The ranks that hold the same part of it."""
    group: dist.ProcessGroup = (
        parallel_state.get_expert_data_parallel_group()
        if _is_expert(parameter)
        else parallel_state.get_data_parallel_group(with_context_parallel=True)
    )
    return group


def _counts(parameter: nn.Parameter) -> bool:
    """Whether the norm counts it here: once of all its copies, the embedding that is the head too among them."""
    is_first = _copies(parameter).rank() == 0
    if _is_expert(parameter):
        return is_first
    return is_first and not getattr(parameter, "shared", False) and param_is_not_tensor_parallel_duplicate(parameter)


def _owners(network: Mapping[str, nn.Parameter]) -> dict[str, int]:
    """Which rank of its copies owns each parameter: the largest first, each to whoever has least."""
    held: dict[tuple[bool, int], int] = {}
    owners = {}
    for name, parameter in sorted(network.items(), key=lambda named: -named[1].numel()):
        kind, ranks = _is_expert(parameter), _copies(parameter).size()
        owner = min(range(ranks), key=lambda rank: held.get((kind, rank), 0))
        held[kind, owner] = held.get((kind, owner), 0) + parameter.numel()
        owners[name] = owner
    return owners
