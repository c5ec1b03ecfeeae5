"""AdamW (arXiv:1711.05101) by torch's own kernels, without torch's class.

``torch.optim.Optimizer`` imports torch's compiler and with it sympy at its first step: 70 MiB and more than a second of
each training process, for nothing that is compiled here.  The arithmetic is the function that torch's class calls, so
that every bit is the same, and so is the form of the state; a checkpoint that torch's class wrote is read.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.adamw import adamw as moved_by_adamw

BETAS = (0.9, 0.95)
EPSILON = 1e-8
_SETTINGS = ("lr", "betas", "eps", "weight_decay")
"""What a group of parameters has beside them; torch's class saves more, which is always the same here."""


class AdamW:
    """One group of parameters; ``param_groups[0]`` holds its settings, which whoever takes the steps may change."""

    def __init__(self, parameters: Iterable[nn.Parameter], *, weight_decay: float = 0.0) -> None:
        settings = {"lr": 0.0, "betas": BETAS, "eps": EPSILON, "weight_decay": weight_decay}
        self.param_groups: list[dict[str, Any]] = [{"params": list(parameters), **settings}]
        self.state: dict[nn.Parameter, dict[str, Tensor]] = {}
        """The moments of each parameter that has had a gradient, and the number of its steps."""

    @torch.no_grad()
    def step(self) -> None:
        """Move each parameter by its gradient; one without a gradient stays where it is, and so do its moments."""
        group = self.param_groups[0]
        moving = [parameter for parameter in group["params"] if parameter.grad is not None]
        states = [self._state_of(parameter) for parameter in moving]
        beta1, beta2 = group["betas"]
        moved_by_adamw(
            moving,
            [parameter.grad for parameter in moving],
            [state["exp_avg"] for state in states],
            [state["exp_avg_sq"] for state in states],
            [],
            [state["step"] for state in states],
            foreach=True,
            amsgrad=False,
            beta1=beta1,
            beta2=beta2,
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            maximize=False,
        )

    def zero_grad(self) -> None:
        for parameter in self.param_groups[0]["params"]:
            parameter.grad = None

    def state_dict(self) -> dict[str, Any]:
        """The moments by the parameter's number, in the order in which the parameters were given."""
        group = self.param_groups[0]
        numbered = {parameter: number for number, parameter in enumerate(group["params"])}
        described = {name: group[name] for name in _SETTINGS} | {"params": list(numbered.values())}
        state = {numbered[parameter]: held for parameter, held in self.state.items()}
        return {"state": state, "param_groups": [described]}

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Take over what ``state_dict`` gave.  Raises ValueError where it is that of other parameters."""
        group, (described,) = self.param_groups[0], saved["param_groups"]
        if len(described["params"]) != len(group["params"]):
            raise ValueError(
                f"moments of {len(described['params'])} parameters, and {len(group['params'])} are trained"
            )
        group.update({name: described[name] for name in _SETTINGS})
        self.state = {
            group["params"][number]: _laid_beside(group["params"][number], held)
            for number, held in saved["state"].items()
        }

    def _state_of(self, parameter: nn.Parameter) -> dict[str, Tensor]:
        if parameter not in self.state:
            moments = {name: torch.zeros_like(parameter) for name in ("exp_avg", "exp_avg_sq")}
            # The number of steps stays on the host, whatever the device: torch reads it there.
            self.state[parameter] = {"step": torch.tensor(0.0), **moments}
        return self.state[parameter]


def _laid_beside(parameter: nn.Parameter, held: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {
        name: tensor if name == "step" else tensor.to(device=parameter.device, dtype=parameter.dtype)
        for name, tensor in held.items()
    }
