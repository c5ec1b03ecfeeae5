"""Whether a server serves what the run means to sample from, asked before it gets a request or weights.

Weights of another shape would end a server, and so would a token outside its vocabulary.  The last check is of numbers:
a sampled token's log-prob tells at which temperature the server takes them.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.inference.sglang.client import SglangClient
from engine.inference.sglang.process import ServedAdapter, launch_words, lora_flags

SHAPE = ("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "vocab_size")
HOT = 4.0
"""A temperature at which log-probs are far from those at 1."""
SAME_NATS = 0.02
"""Between the decoding and the reading of one token, in bfloat16 too."""


class WrongServer(RuntimeError):
    """A server serves something else than the run's model, or tells less than the run needs."""


@dataclass(frozen=True)
class Expected:
    """``config`` is the model folder's config.json."""

    config: Mapping[str, Any]
    vocab_size: int
    context_tokens: int
    logprobs_at: str
    adapter: ServedAdapter | None = None
    """Which adapters it has to take; None: it is given whole weights."""

    async def check(self, client: SglangClient) -> None:
        """Raises WrongServer with the field, the value and the remedy; ServerGone, ServerRefused."""
        await self.identify(client)
        await self._check_vocabulary(client)
        await self._check_logprobs(client)

    async def identify(self, client: SglangClient) -> None:
        """What it says of itself, of which it samples nothing.  Raises as ``check`` does."""
        info, server = await client.model_info(), await client.server_info()
        self._check_architecture(client.url, info)
        # What it was started with: the path in ``info`` is that of its newest weights.
        self._check_shape(client.url, Path(str(server["model_path"])) / "config.json")
        longest = server.get("max_req_input_len")
        if isinstance(longest, int) and longest + CONTEXT_MARGIN < self.context_tokens:
            raise _wrong(
                client.url,
                f"takes {longest} tokens",
                f"the run's context has {self.context_tokens}",
                "lower model.context_tokens, or start it with a longer --context-length",
            )
        if self.adapter is not None:
            self._check_adapter(client.url, self.adapter, server, info)

    def _check_adapter(
        self, url: str, adapter: ServedAdapter, server: Mapping[str, Any], info: Mapping[str, Any]
    ) -> None:
        """It takes such adapters, and has the very weights that they are made for."""
        taken, rank = set(server.get("lora_target_modules") or ()), server.get("max_lora_rank") or 0
        lacks = sorted(set(adapter.modules) - taken) if "all" not in taken else []
        if not server.get("enable_lora") or rank < adapter.rank or lacks:
            takes = f"adapters of rank {rank} on {', '.join(sorted(taken))}" if server.get("enable_lora") else "none"
            flags = " ".join(launch_words(lora_flags(adapter, device="")))
            needs = f"rank {adapter.rank} on {', '.join(adapter.modules)}"
            raise _wrong(
                url, f"takes {takes}", f"the run sends adapters of {needs}", f"start it with {flags}{OR_MERGED}"
            )
        if info.get("weight_version") not in UNCHANGED:
            found = f"has weights of version {info.get('weight_version')}, not those that it was started with"
            raise _wrong(url, found, "the run's adapters are made for these", f"start it again{OR_MERGED}")

    def _check_architecture(self, url: str, info: Mapping[str, Any]) -> None:
        served, wanted = info.get("architectures"), self.config.get("architectures")
        if served != wanted:
            raise _wrong(url, f"serves {info['model_path']} ({served})", f"the run's model is a {wanted}", SERVE_IT)

    def _check_shape(self, url: str, config: Path) -> None:
        """Where this machine sees the folder that the server serves."""
        if not config.is_file():
            return
        served = json.loads(config.read_text())
        for field in SHAPE:
            if field in served and served[field] != self.config.get(field):
                raise _wrong(
                    url,
                    f"serves {config.parent} with {field} = {served[field]}",
                    f"the run's model has {self.config.get(field)}",
                    SERVE_IT,
                )

    async def _check_vocabulary(self, client: SglangClient) -> None:
        last_known = await client.knows_token(self.vocab_size - 1)
        if not last_known or await client.knows_token(self.vocab_size):
            more_or_less = "more" if last_known else "less"
            raise _wrong(
                client.url, f"has {more_or_less} tokens", f"the run's vocabulary has {self.vocab_size}", SERVE_IT
            )

    async def _check_logprobs(self, client: SglangClient) -> None:
        hot = await client.generate(
            "probe-hot", (0,), {"temperature": HOT, "max_new_tokens": 1, "ignore_eos": True}, behaviour_logprobs=False
        )
        read = await client.score("probe-read", (0, *hot.token_ids), 1)
        found = "one" if abs(hot.logprobs[0] - read.logprobs[0]) < SAME_NATS else "sampling"
        if found != self.logprobs_at:
            raise _wrong(
                client.url,
                f'takes log-probs at "{found}"',
                f'the run needs "{self.logprobs_at}"',
                'start it with SGLANG_RETURN_ORIGINAL_LOGPROB=1 in its environment for "one" and without '
                'for "sampling", or set resources.sglang.logprobs_at',
            )


CONTEXT_MARGIN = 8
"""SGLang keeps a few tokens of a context for itself; a turn that meets them ends by its context."""
UNCHANGED = ("0", "default")
"""The version of a server's weights before any were exchanged: by our command for one, and by itself."""
OR_MERGED = ', or set resources.sglang.lora = "merged"'
SERVE_IT = "serve the run's model there, or name other servers"


def _wrong(url: str, found: str, wanted: str, remedy: str) -> WrongServer:
    return WrongServer(f"resources.sglang.urls = {url!r}: the server {found}, and {wanted}; {remedy}")
