"""The workload as a whole run of Palestra's, in one process: ``python -m benchmarks.loop_run WORKLOAD.json RUN.json``.

Unlike ``engine_run`` it overlaps generation with training as the spec's ``schedule.async_ratio`` says, and does all
that a run does: events, an evaluation before and behind the steps, checkpoints.  Steps are what the run's log says.
"""

import json
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from benchmarks.measurement import Run, Step
from benchmarks.processor import processor_seconds
from benchmarks.workload import Workload
from engine.cluster import in_process
from engine.cluster.members import learner_for
from engine.launch.train import carry_out
from engine.reporting.spool import Spool
from engine.training.learner import Learner

STEP = "perf/step_seconds"
"""A metric that each step that trains has once."""


class Log:
    """The events of the run that this process is, and the processor time that had passed when each step ended."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.taken_s: dict[int, float] = {}
        """The processor time that had passed when a step ended."""

    def listen(self) -> None:
        append = Spool.append

        def appended(spool: Spool, lines: Sequence[bytes], *, first_seq: int) -> int:
            written = [json.loads(line) for line in lines]
            self.events += written
            for event in written:
                if STEP in event.get("values", {}):  # then alone
                    self.taken_s[event["step"]] = processor_seconds()
            return append(spool, lines, first_seq=first_seq)

        Spool.append = appended  # type: ignore[assignment,method-assign]

    def steps(self, warmup_steps: int, last: int) -> list[Step]:
        """From the end of one step to the end of the next, up to step ``last``; the first is left out at least.

        ``rollout`` is what the trainer waited for groups.
        """
        ends = {event["step"]: event for event in self.events if STEP in event.get("values", {})}
        return [self._step(number, ends) for number in range(max(warmup_steps, 1) + 1, last + 1)]

    def _step(self, number: int, ends: dict[int, dict[str, Any]]) -> Step:
        before, end = ends[number - 1], ends[number]
        trained = [
            event["trajectory"]
            for event in self.events
            if event["kind"] == "trajectory" and event["trajectory"].get("trained_at_step") == number
        ]
        turns = [turn for rollout in trained for segment in rollout["segments"] for turn in segment["turns"]]
        seconds, values = end["at"] - before["at"], end["values"]
        waited_s, update_s = values["buffer/trainer_waited_seconds"], values["perf/update_seconds"]
        return Step(
            seconds=seconds,
            rollout=waited_s,
            score=seconds - waited_s - update_s,
            update=update_s,
            cpu=self.taken_s[number] - self.taken_s[number - 1],
            trajectories=len(trained),
            turns=len(turns),
            sampled_tokens=sum(len(turn["token_ids"]) for turn in turns),
        )


def main(workload_file: str, run_file: str) -> None:
    workload = Workload.read(Path(workload_file))
    spec = workload.run_spec()
    # Beside the last steps less is generated, for nothing follows: they are played, and not timed.
    timed, ahead = spec.schedule.steps, spec.schedule.async_ratio
    spec = spec.model_copy(update={"schedule": spec.schedule.model_copy(update={"steps": timed + ahead})})

    def taught(*arguments: Any) -> Learner:
        learner = learner_for(*arguments)
        learner.load(Path(workload.policy_folder))
        return learner

    vars(in_process)["learner_for"] = taught
    log = Log()
    log.listen()
    with TemporaryDirectory(prefix="palestra-bench-") as folder:
        code = carry_out(
            spec,
            file=Path(workload_file),
            folder=Path(folder, "run"),
            resume=False,
            in_process=True,
            json_file=None,
            again="",
        )
    if code:
        sys.exit(code)
    versions = {name: version(name) for name in ("torch", "numpy")}
    Run("palestra", log.steps(workload.warmup_steps, timed), versions, torch.get_num_threads()).write(Path(run_file))


if __name__ == "__main__":
    main(*sys.argv[1:])
