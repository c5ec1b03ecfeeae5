"""What a run's page shows above the curves, for snapshots and for the frames of live viewers."""

from typing import Any

from webapp.runs.models import LIVE
from webapp.runs.now import ColdStart, Facts, now_of


def header_of(
    state: str, state_since: Any, desired: str, attempt: int, phase: str, step: int, total_steps: int,
    heartbeat: dict[str, Any] | None, heartbeat_at: Any, started_at: Any, ended_at: Any, failure_reason: str,
    *, cold_start: ColdStart | None,
) -> dict[str, Any]:  # fmt: skip
    """The ``run`` object of frames and snapshots; times are ISO 8601 text or null."""
    heartbeat = (heartbeat or {}) if state in LIVE else {}
    facts = Facts(state, desired, attempt, phase, step, total_steps, heartbeat.get("eta_s"), cold_start)
    return {
        "state": state,
        "state_since": _iso(state_since),
        "desired": desired,
        "attempt": attempt,
        "phase": phase,
        "phase_since": heartbeat.get("phase_since"),
        "waiting_for": heartbeat.get("waiting_for"),
        "eta_s": heartbeat.get("eta_s"),
        "step": step,
        "total_steps": total_steps,
        "heartbeat_at": _iso(heartbeat_at),
        "started_at": _iso(started_at),
        "ended_at": _iso(ended_at),
        "failure_reason": failure_reason,
        "now": now_of(facts).as_data(),
    }


def _iso(moment: Any) -> str | None:
    return moment.isoformat(timespec="milliseconds") if moment else None
