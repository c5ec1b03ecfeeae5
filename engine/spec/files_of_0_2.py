"""Documents as version 0.2 wrote them, in today's form: checkpoints, spools, recordings and stored events are read so.

There a rollout was named by its training step, the number of its prompt in that step and its own number in the group.
It keeps that name.  A sandbox was a ``box``, an origin a ``place``, and what the gateway decided its ``verdict``.  All
functions return what they do not recognise as it is.
"""

from collections.abc import Iterable
from typing import Any

PROMPTS_PER_STEP = 1_000_000
"""Prompt ``group`` of ``step`` is numbered ``step * PROMPTS_PER_STEP + group``: no step of a run of 0.2 had as many."""


def trajectory(document: Any) -> Any:
    """A ``Trajectory``.  It counts as trained on at its step unless it was masked or an evaluation.

    All its turns are one segment, and a turn made one call at most, whose arguments are known as text.
    """
    if not isinstance(document, dict):
        return document
    return _in_segments(_named_by_prompt(document))


def _named_by_prompt(document: dict[str, Any]) -> dict[str, Any]:
    if "prompt" in document or not all(isinstance(document.get(name), int) for name in ("step", "group", "index")):
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


def _in_segments(document: dict[str, Any]) -> dict[str, Any]:
    turns = document.get("turns")
    if "segments" in document or not isinstance(turns, list):
        return document
    kept = {name: value for name, value in document.items() if name != "turns"}
    answered, last = document.get("stop_reason") == "answered", len(turns) - 1
    moved = [turn(held, answered=answered and number == last) for number, held in enumerate(turns)]
    return kept | {"segments": [{"turns": moved}] if moved else []}


def turn(document: Any, *, answered: bool = False) -> Any:
    """A ``Turn``; ``answered`` where it is the last of an episode that an answer ended."""
    if not isinstance(document, dict) or "tool_calls" in document:
        return document
    kept = {name: value for name, value in document.items() if name != "tool_call"}
    call = document.get("tool_call")
    return kept | {"tool_calls": [] if call is None else [_call(call)]} | ({"answered": True} if answered else {})


def _call(document: Any) -> Any:
    if not isinstance(document, dict) or not isinstance(document.get("arguments"), str):
        return document
    kept = {name: value for name, value in document.items() if name != "arguments"}
    return kept | {"written": document["arguments"]}


def held_group(document: Any) -> Any:
    """A ``HeldGroup``.  It named its step alone; nobody asks a held group for the rest of its plan."""
    if not isinstance(document, dict) or "plan" in document or not isinstance(document.get("step"), int):
        return document
    kept = {name: value for name, value in document.items() if name != "step"}
    step = document["step"]
    prompt = step * PROMPTS_PER_STEP
    return kept | {"plan": {"prompt": prompt, "version": step - 1, "number": 0, "tasks_before": 0, "task": 0}}


def run_spec(document: Any) -> Any:
    """A ``RunSpec``.  Its recipe had one supervised stage, the cold start, or none."""
    recipe = document.get("recipe") if isinstance(document, dict) else None
    if not isinstance(recipe, dict) or "cold_start" not in recipe or "stages" in recipe:
        return document
    kept = {name: value for name, value in recipe.items() if name != "cold_start"}
    return document | {"recipe": kept | {"stages": _stages(recipe["cold_start"])}}


def _stages(cold_start: Any) -> Any:
    """A cold start of 0 steps was none."""
    if cold_start is None or cold_start is False:
        return []
    if not isinstance(cold_start, dict):
        return cold_start
    if cold_start.get("steps") == 0:
        return []
    rest = dict(cold_start)
    names = ("demonstrations", "wrong_fraction", "tool_error_fraction")
    made = {name: rest.pop(name) for name in names if name in rest}
    recorded = rest.pop("recorded", None)
    if recorded is not None:
        return [{"data": {"kind": "recordings", "file": recorded}, **rest}]
    return [{"data": {"kind": "demonstrations", **_renamed(made, {"demonstrations": "count"})}, **rest}]


def training_stage(name: Any) -> Any:
    """What a trainer was doing when its checkpoint was written."""
    return "supervised" if name == "cold-start" else name


def run_state(document: Any, purposes: Iterable[str]) -> Any:
    """A ``RunState``.  Its new prompts, of whichever purpose, are numbered from behind those of its finished steps."""
    if isinstance(document, dict) and "spec" in document:
        document = document | {"spec": run_spec(document["spec"])}
    if not isinstance(document, dict) or "prompts" in document or not isinstance(document.get("finished_steps"), int):
        return document
    first = (document["finished_steps"] + 1) * PROMPTS_PER_STEP
    return document | {"prompts": dict.fromkeys(purposes, first)}


def quarantine_state(document: Any) -> Any:
    """A ``QuarantineState``, whose review decisions were ``ruled``, and lay under ``verdicts``."""
    return _renamed(document, {"ruled_through": "decided_through", "verdicts": "review_decisions"})


def security_event(document: Any) -> Any:
    """An event about a sandbox, or an entry of a worker's security log."""
    if not isinstance(document, dict):
        return document
    event: dict[str, Any] = _renamed(document, {"box": "sandbox", "place": "origin"})
    if "finding" in event:
        event["finding"] = _renamed(event["finding"], {"box": "sandbox"})
    if "record" in event:
        event["record"] = _egress_record(event["record"])
    if isinstance(event.get("records"), list):
        event["records"] = [_egress_record(record) for record in event["records"]]
    return event


def _egress_record(document: Any) -> Any:
    if not isinstance(document, dict) or "verdict" not in document:
        return document
    record = _renamed(document, {"verdict": "decision"})
    return record | {"attempt": _renamed(record.get("attempt"), {"box": "sandbox"})}


def _renamed(document: Any, names: dict[str, str]) -> Any:
    """A copy; a document that has a name of both forms keeps both, and is refused by whoever validates it."""
    if not isinstance(document, dict):
        return document
    today = {old: new for old, new in names.items() if new not in document}
    return {today.get(name, name): value for name, value in document.items()}
