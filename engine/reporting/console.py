"""A run in the terminal: a live bar on a terminal, plain lines elsewhere.  Fed with the run's own events."""

import sys
from typing import Protocol, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from engine.spec import event
from engine.spec.strict import Strict

SHOWN = {
    "train/reward": "reward {:.2f}",
    "train/success": "success {:.2f}",
    "train/tool_error_rate": "tool errors {:.2f}",
    "perf/tokens_per_s": "{:,.0f} tokens/s",
    "eval/success_greedy": "greedy success {:.3f}",
    "eval/success_oracle": "oracle {:.3f}",
    "eval/success_nop": "nothing done {:.3f}",
    "eval/success_script": "script {:.3f}",
    "eval/success_sampled": "sampled success {:.3f}",
    "eval/tool_error_rate": "tool errors {:.3f}",
    "sft/loss": "loss {:.3f}",
}
EVALUATED = {key for key in SHOWN if key.startswith("eval/success_")}
"""What evaluations alone measure."""


class Display(Protocol):
    """Sees every event; used as a context manager around the run."""

    def __call__(self, emitted: Strict) -> None: ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *exception: object) -> None: ...


def display_for(console: Console, total_steps: int) -> Display:
    return LiveDisplay(console, total_steps) if console.is_terminal else PlainDisplay(total_steps)


def line_of(emitted: Strict) -> str | None:
    """One line about an event that a person wants to read; None for the others."""
    match emitted:
        case event.Metric(step=step, values=values):
            shown = [text.format(values[key]) for key, text in SHOWN.items() if key in values]
            head = (
                "cold start"
                if "sft/loss" in values
                else "evaluation after"
                if not EVALUATED.isdisjoint(values)
                else "step"
            )
            return f"{head} {step}: {', '.join(shown)}" if shown else None
        case event.Log(level="warning" | "error" as level, message=message):
            return f"{level}: {message}"
        case event.Log(source="difficulty" | "teacher", message=message):
            return message
        case event.Checkpoint(path=path):
            return f"checkpoint: {path}"
        case event.Finished(outcome=outcome, reason=reason):
            return f"{outcome}{f': {reason}' if reason else ''}"
    return None


class PlainDisplay:
    """Lines, e.g. for a log file; of the cold start only every tenth point."""

    def __init__(self, total_steps: int) -> None:
        self._total = total_steps
        self._cold_points = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        sys.stdout.flush()

    def __call__(self, emitted: Strict) -> None:
        if isinstance(emitted, event.Metric) and "sft/loss" in emitted.values:
            self._cold_points += 1
            if self._cold_points % 10 != 1:
                return
        if (line := line_of(emitted)) is not None:
            print(line, flush=True)


class LiveDisplay:
    """A bar over the steps with phase, newest numbers and the time that is left; evaluations stay above it."""

    def __init__(self, console: Console, total_steps: int) -> None:
        self._progress = Progress(
            TextColumn("[bold]{task.fields[phase]:<12}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[numbers]}"),
            TimeElapsedColumn(),
            TextColumn("{task.fields[left]}"),
            console=console,
        )
        self._total = total_steps
        self._task = self._progress.add_task("", total=total_steps, phase="start", numbers="", left="")
        self._pace_s: float | None = None

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._progress.stop()

    def __call__(self, emitted: Strict) -> None:
        match emitted:
            case event.PhaseChanged(phase=phase, seconds=None):
                self._progress.update(self._task, phase=phase)
            case event.Started(from_step=step):
                self._progress.update(self._task, completed=step)
            case event.Metric(step=step, values=values):
                self._numbers(emitted, step, values)
            case event.Log(level="info", source="difficulty", message=message):
                self._progress.update(self._task, numbers=message)
            case (
                event.Log(level="warning" | "error")
                | event.Log(source="teacher")
                | event.Checkpoint()
                | event.Finished()
            ):
                self._progress.console.print(line_of(emitted), highlight=False)

    def _numbers(self, emitted: event.Metric, step: int, values: dict[str, float]) -> None:
        if not EVALUATED.isdisjoint(values):
            self._progress.console.print(line_of(emitted), highlight=False)
        elif "perf/step_seconds" in values:
            seconds = values["perf/step_seconds"]
            self._pace_s = seconds if self._pace_s is None else 0.7 * self._pace_s + 0.3 * seconds
            left = f"{(self._total - step) * self._pace_s:,.0f} s left"
            self._progress.update(self._task, completed=step, numbers=_numbers_of(values), left=left)
        elif "sft/loss" in values:
            self._progress.update(self._task, numbers=f"{_numbers_of(values)} (cold start step {step})")


def _numbers_of(values: dict[str, float]) -> str:
    return "  ".join(text.format(values[key]) for key, text in SHOWN.items() if key in values)
