"""What the loop says of its steps in the run's log, in sentences for whoever reads it."""

from collections import Counter
from collections.abc import Sequence

from engine.loop.checkpoint import Damaged
from engine.loop.group_filters import Selected
from engine.loop.quarantine import Release
from engine.loop.teacher import Teacher
from engine.reporting.event_writer import EventWriter


class RunLog:
    def __init__(self, events: EventWriter, *, release_within_steps: int) -> None:
        self._events = events
        self._release_within_steps = release_within_steps
        self._expiry_logged = False

    def no_manifest(self, step: int) -> None:
        self._events.log(
            "warning",
            "checkpoint",
            f"the checkpoint after step {step} has no manifest, so nobody can tell whether it is what was written",
        )

    def damaged(self, checkpoint: Damaged, onward: str) -> None:
        self._events.log(
            "warning",
            "checkpoint",
            f"the checkpoint after {checkpoint.after} is damaged: {checkpoint.how}; "
            f"it is set aside as {checkpoint.aside}, and {onward}",
        )

    def discarded(self, step: int, counts: Counter[str]) -> None:
        for reason, count in sorted(counts.items()):
            self._events.log("warning", "rollout", f"step {step}: {count} episodes discarded: {reason}")

    def measured(self, done: int, tasks: int) -> None:
        self._events.log("info", "difficulty", f"{done} of {tasks} tasks are measured")

    def filtered(self, kept: int, tasks: int, differing: Sequence[str]) -> None:
        """Warn where the policy that a named table was measured with is not this run's."""
        self._events.log("info", "difficulty", f"{kept} of {tasks} tasks are trained on")
        if differing:
            self._events.log(
                "warning", "difficulty", f"the table was measured with another {', '.join(differing)} than this run has"
            )

    def teacher(self, teacher: Teacher) -> None:
        if teacher.experts:
            left_out = "".join(f"; {count} left out: {reason}" for reason, count in sorted(teacher.left_out.items()))
            tasks = f"{len(teacher.experts)} tasks have an expert of the teacher's"
            self._events.log("info", "teacher", f"{tasks}{left_out}")

    def quarantine(self, step: int, selected: Selected, release: Release) -> None:
        for trajectory in selected.quarantined:
            alerts = ", ".join(trajectory.alerts)
            self._events.log(
                "warning",
                "quarantine",
                f"step {step}: {trajectory.id} is not trained on until a review decision ({alerts})",
            )
        for group in release.groups:
            released = ", ".join(group.out)
            self._events.log("info", "quarantine", f"step {step}: found benign and trained on now: {released}")
        for late in release.late:
            self._events.log(
                "warning",
                "quarantine",
                f"step {step}: {late} was found benign too late to be trained on (environment.response."
                f"release_within_steps = {self._release_within_steps})",
            )

    def nothing_to_learn(self, step: int, rollouts: int) -> None:
        self._events.log(
            "warning", "loop", f"step {step}: no update, since none of its {rollouts} rollouts teaches anything"
        )

    def expired(self, step: int, learned: dict[str, float]) -> None:
        """The first time: a replay buffer that loses trajectories before it is full may never be."""
        if learned.get("sil/expired", 0) > 0 and not self._expiry_logged:
            self._expiry_logged = True
            self._events.log(
                "warning",
                "loop",
                f"step {step}: {learned['sil/expired']:.0f} good trajectories became too old to be replayed, with "
                f"{learned['sil/buffer']:.0f} in the buffer; it is replayed only when it is full, so that a smaller "
                "recipe.self_imitation.replay_buffer would be replayed sooner",
            )
