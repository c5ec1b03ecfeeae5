"""An engine's side of the protocol: numbers events, posts batches, reads answers."""

import json
import time
from typing import Any

from django.test import Client

from webapp.runs.models import Run
from webapp.runs.tokens import attempt_token


def trajectory(step: int = 1, index: int = 0, **changes: Any) -> dict[str, Any]:
    """A small but complete trajectory with one failed and one good tool call; each step has one prompt."""
    turn = {"context_ids": [1], "context_text": "<user>", "token_ids": [2, 3], "pieces": ["a", "b"],
            "logprobs": [-0.1, -0.2], "policy_versions": [0, 0]}  # fmt: skip
    call = {
        "name": "python",
        "arguments": {"code": "1/0"},
        "output": "Error",
        "status": "error",
        "error_class": "zero-division",
        "seconds": 0.1,
    }
    good = call | {"arguments": {"code": "1+1"}, "output": "2", "status": "ok", "error_class": None}
    task = {"id": "t1", "split": "train", "level": 2, "question": "1 + 1", "answer": "2"}
    return {
        "id": f"train-{step}-{index}", "purpose": "train", "prompt": step, "member": index, "task": task,
        "sampled_at_version": step - 1, "trained_at_step": step or None,
        "segments": [
            {"turns": [turn | {"tool_calls": [call]}, turn | {"tool_calls": [good]}, turn | {"answered": True}]}
        ],
        "stop_reason": "answered", "answer": "2",
        "success": True, "reward": 1.0, "rewards": {"correct": 1.0},
    } | changes  # fmt: skip


def egress_record(seq: int = 1, sandbox: str = "sandbox-1", **changes: Any) -> dict[str, Any]:
    """An attempt at a mining pool that was denied; ``attempt`` and ``decision`` in ``changes`` are changes of those."""
    attempt = {"sandbox": sandbox, "sequence": seq, "at": 1_790_000_000.0 + seq, "protocol": "tcp",
               "address": "203.0.113.7", "port": 4444}  # fmt: skip
    decision = {"allowed": False, "policy": "python-work", "reason": "no-rule"}
    return {
        "seq": seq, "last_at": attempt["at"], "label": "python",
        **changes, "attempt": attempt | changes.get("attempt", {}), "decision": decision | changes.get("decision", {}),
    }  # fmt: skip


def finding(sandbox: str = "sandbox-1", **changes: Any) -> dict[str, Any]:
    return {
        "rule": "mining-stratum", "severity": "critical", "category": "Safety & Security", "attack": "T1496",
        "title": "Mining protocol", "sandbox": sandbox, "at": 1_790_000_000.0, "label": "python",
        "subject": "203.0.113.7:4444", "evidence": ["mining.subscribe to 203.0.113.7:4444"], "seq": 1,
    } | changes  # fmt: skip


ORIGIN = {"trajectory": "train-1-0", "turn": 1}


class Engine:
    """One attempt's voice.  Engines of the same run continue each other's numbers through ``seq``."""

    def __init__(self, run: Run, attempt: int | None = None, next_seq: int = 1) -> None:
        self.run_id, self.attempt, self.next_seq = run.id, attempt or run.attempt, next_seq
        self.token = attempt_token(self.run_id, self.attempt)
        self.client = Client()

    def event(self, kind: str, **fields: Any) -> dict[str, Any]:
        event = {"kind": kind, "seq": self.next_seq, "attempt": self.attempt, "at": time.time(), **fields}
        self.next_seq += 1
        return event

    def started(self, from_step: int = 0, **fields: Any) -> dict[str, Any]:
        return self.event("started", from_step=from_step, total_steps=60, **fields)

    def metric(self, step: int, **values: float) -> dict[str, Any]:
        return self.event(
            "metric", step=step, values={name.replace("__", "/"): value for name, value in values.items()}
        )

    def trajectory(self, **changes: Any) -> dict[str, Any]:
        return self.event("trajectory", trajectory=trajectory(**changes))

    def log(self, message: str) -> dict[str, Any]:
        return self.event("log", level="info", source="loop", message=message)

    def egress(self, *records: dict[str, Any], **fields: Any) -> dict[str, Any]:
        return self.event("egress", **{"sandbox": "sandbox-1", "origin": ORIGIN, "records": list(records)} | fields)

    def alert(self, id: str = "sandbox-1/1", **fields: Any) -> dict[str, Any]:
        return self.event("alert", **{"id": id, "origin": ORIGIN, "finding": finding(), "quarantined": True} | fields)

    def finished(self, outcome: str = "succeeded", **fields: Any) -> dict[str, Any]:
        return self.event("finished", outcome=outcome, **fields)

    def heartbeat(self, phase: str = "collect", step: int = 1, **fields: Any) -> dict[str, Any]:
        return {"step": step, "total_steps": 60, "phase": phase, "phase_since": time.time(), **fields}

    def post(
        self,
        *events: dict[str, Any],
        first_seq: int | None = None,
        heartbeat: dict[str, Any] | None = None,
        **over: Any,
    ) -> Any:
        first = first_seq if first_seq is not None else events[0]["seq"] if events else self.next_seq
        return self.post_raw(
            json.dumps(
                {"attempt": self.attempt, "first_seq": first, "heartbeat": heartbeat, "events": list(events)} | over
            )
        )

    def post_raw(self, body: str, token: str | None = None) -> Any:
        headers = {"authorization": f"Bearer {token or self.token}"}
        return self.client.post(
            f"/ingest/v1/runs/{self.run_id}/batches", body, content_type="application/json", headers=headers
        )
