"""Documents as version 0.2 wrote them, in today's form: checkpoints, spools, recordings and stored events are read so.

There a rollout was named by its training step, the number of its prompt in that step and its own number in the group.
It keeps that name.  All functions return what they do not recognise as it is.
"""

from collections.abc import Iterable
from typing import Any

PROMPTS_PER_STEP = 1_000_000
"""Prompt ``group`` of ``step`` is numbered ``step * PROMPTS_PER_STEP + group``: no step of a run of 0.2 had as many."""


def trajectory(document: Any) -> Any:
    """A ``Trajectory``.  It counts as trained on at its step unless it was masked or an evaluation."""
    if not isinstance(document, dict) or "prompt" in document:
        return document
    if not all(isinstance(document.get(name), int) for name in ("step", "group", "index")):
        return document
    kept = {name: value for name, value in document.items() if name not in ("step", "group", "index")}
    step, purpose = document["step"], document.get("purpose")
    is_training, was_masked = purpose == "train", document.get("masked_because") is not None
    return kept | {
        "prompt": step * PROMPTS_PER_STEP + document["group"],
        "member": document["index"],
        "sampled_at_version": -1 if purpose == "demonstration" else step - 1 if is_training else step,
        "trained_at_step": step if is_training and not was_masked else None,
    }


def held_group(document: Any) -> Any:
    """A ``HeldGroup``.  It named its step alone; nobody asks a held group for the rest of its plan."""
    if not isinstance(document, dict) or "plan" in document or not isinstance(document.get("step"), int):
        return document
    kept = {name: value for name, value in document.items() if name != "step"}
    step = document["step"]
    return kept | {"plan": {"prompt": step * PROMPTS_PER_STEP, "version": step - 1, "number": 0, "place": 0, "task": 0}}


def run_state(document: Any, purposes: Iterable[str]) -> Any:
    """A ``RunState``.  Its new prompts, of whichever purpose, are numbered from behind those of its finished steps."""
    if not isinstance(document, dict) or "prompts" in document or not isinstance(document.get("finished_steps"), int):
        return document
    first = (document["finished_steps"] + 1) * PROMPTS_PER_STEP
    return document | {"prompts": dict.fromkeys(purposes, first)}
