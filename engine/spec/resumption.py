"""In which fields a run that goes on may differ from what it began with: on what it runs, not what it does.

Results differ at most as rounding does (docs/backends.md).
"""

from collections.abc import Iterator
from typing import Any

from engine.spec.run import RunSpec

_OF_SERVERS = ("urls", "servers", "memory_fraction", "start_timeout_s", "health_every_s", "health_misses", "restarts")
MAY_CHANGE = frozenset(
    {
        "model.gradient_checkpointing",
        "model.microbatch_tokens",
        "resources.batch_delay_ms",
        "resources.decoders",
        "resources.generators",
        "resources.kv_slots",
        "resources.rollout_workers",
        "resources.sandboxes",
        "resources.sglang.exchange_folder",
        "resources.trainer_ranks",
        "schedule.max_attempts",
        "schedule.stall_timeout_s",
        *(f"resources.sglang.{field}" for field in _OF_SERVERS),
    }
)
TABLES_MAY_CHANGE = ("resources.megatron.", "resources.placement.")


def forbidden_changes(old: RunSpec, new: RunSpec) -> list[tuple[str, Any, Any]]:
    """The fields in which ``new`` is another run than ``old``, each with its old and its new value."""
    return [
        (field, before, after)
        for field, before, after in _differences(old.model_dump(), new.model_dump(), "")
        if field not in MAY_CHANGE and not field.startswith(TABLES_MAY_CHANGE)
    ]


def _differences(old: dict[str, Any], new: dict[str, Any], path: str) -> Iterator[tuple[str, Any, Any]]:
    for key in sorted(old.keys() | new.keys()):
        before, after = old.get(key), new.get(key)
        if isinstance(before, dict) and isinstance(after, dict):
            yield from _differences(before, after, f"{path}{key}.")
        elif before != after:
            yield f"{path}{key}", before, after
