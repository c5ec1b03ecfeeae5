"""What training asks of a policy's network, whatever it is made of; and which one a run gets.

Shapes: B sequences, T tokens, D hidden size, N positions, V vocabulary.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor, nn

from engine.models.origin import model_origin
from engine.models.qwen3 import Qwen3, load_pretrained, save_pretrained
from engine.models.shards import whole
from engine.models.tokenizer import Tokenizer, tokenizer_for
from engine.models.weights import LoraAdapter
from engine.spec.model import BuiltinModel, Model

__all__ = ["BuiltinNetwork", "PolicyNetwork", "even_attention", "network_for"]


class PolicyNetwork(Protocol):
    """A causal language model whose rows are padded on the right.  It is an ``nn.Module`` too, see ``module``."""

    @property
    def module(self) -> nn.Module:
        """The network itself, for its parameters.  Those that are trained require a gradient."""
        ...

    @property
    def layers(self) -> Sequence[nn.Module]:
        """Its largest repeated parts, in the order of the forward pass; sharded, one is whole in memory at a time."""
        ...

    @property
    def hidden_size(self) -> int: ...

    @property
    def vocab_size(self) -> int: ...

    @property
    def scales_losses(self) -> bool:
        """Return whether gradients pass through float16, where small ones vanish unless the loss is scaled."""
        ...

    @property
    def microbatch_tokens(self) -> int | None:
        """Padded tokens of a micro-batch; None leaves it to the trainer."""
        ...

    @property
    def is_saved_exactly(self) -> bool:
        """Return whether ``load_folder`` finds every trained bit in what ``save_folder`` wrote."""
        ...

    @property
    def computed_in(self) -> torch.dtype | None:
        """What matrices are multiplied in; None: what they are held in."""
        ...

    def hidden(
        self, token_ids_BT: Tensor, positions_BT: Tensor | None = None, seen_B1TT: Tensor | None = None
    ) -> Tensor:
        """Final hidden states [B, T, D], from which ``logits`` may be taken at chosen positions only.

        ``positions_BT`` is given for rows of several sequences, each of which begins at 0 and sees no other; or, with
        ``seen_B1TT``, each of whose tokens sees those that this says.
        """
        ...

    def logits(self, hidden_ND: Tensor) -> Tensor:
        """Logits [N, V] at the positions of ``hidden_ND``."""
        ...

    def computing(self) -> AbstractContextManager[object]:
        """Around all that is computed with it: the precision of a run that mixes them."""
        ...

    def exported(self) -> dict[str, Tensor]:
        """Copies of the whole policy's weights on the CPU by their Hugging Face names, as they are sampled.

        Of a sharded network every rank must ask.
        """
        ...

    def exported_adapter(self) -> LoraAdapter:
        """A copy of its adapter alone on the CPU; every rank must ask.  Raises ValueError where it has none."""
        ...

    def save_folder(self, folder: Path | None) -> None:
        """Write a folder that transformers loads.  None: another rank of a sharded network writes it."""
        ...

    def load_folder(self, folder: Path) -> None:
        """Take over the weights of a folder that ``save_folder`` wrote.  Raises DamagedFile."""
        ...


def network_for(model: Model, *, seed: int, device: torch.device) -> PolicyNetwork:
    """The network that ``spec.model`` names, with the weights it begins with.

    ``seed`` draws what is random: all weights of a built-in model, the adapters of LoRA.  transformers is imported for
    a pretrained model alone.  Raises ModelFolderRefused.
    """
    origin = model_origin(model)
    if isinstance(origin.model, BuiltinModel):
        network = BuiltinNetwork(origin.model, tokenizer_for(origin.model.vocabulary), seed=seed)
        if origin.weights is not None:
            network.load_folder(origin.weights)
        return network.to(device)
    from engine.models.pretrained import PretrainedNetwork

    return PretrainedNetwork.loaded(origin, seed=seed, device=device)


def even_attention(network: PolicyNetwork) -> float:
    """How many tokens a row has, about, when attention costs as much as all that the layers compute besides.

    For each token a layer multiplies as many numbers as its matrices hold, and 2 D for each token that is looked at,
    heads being as wide together as a hidden state.  Experts all count, used or not.  A network that names no layers
    counts as one.
    """
    layers = network.layers or [network.module]
    held = sum(parameter.numel() for layer in layers for parameter in layer.parameters())
    return held / (2 * network.hidden_size * len(layers))


class BuiltinNetwork(Qwen3):
    """The built-in model as a ``PolicyNetwork``: everything is float32, and all of it is trained."""

    scales_losses = False
    microbatch_tokens = None
    is_saved_exactly = True
    computed_in = None

    def __init__(self, model: BuiltinModel, tokenizer: Tokenizer, *, seed: int) -> None:
        super().__init__(model, len(tokenizer), seed=seed)
        self._tokenizer = tokenizer

    @property
    def module(self) -> nn.Module:
        return self

    @property
    def layers(self) -> Sequence[nn.Module]:
        return list(self.model.layers)

    @property
    def hidden_size(self) -> int:
        return self.spec.hidden_size

    def computing(self) -> AbstractContextManager[object]:
        return nullcontext()

    def exported(self) -> dict[str, Tensor]:
        return {name: whole(tensor).detach().to("cpu", copy=True) for name, tensor in self.state_dict().items()}

    def exported_adapter(self) -> LoraAdapter:
        raise ValueError("a built-in network has no adapter")

    def save_folder(self, folder: Path | None) -> None:
        save_pretrained(self, folder, self._tokenizer)

    def load_folder(self, folder: Path) -> None:
        load_pretrained(self, folder)
