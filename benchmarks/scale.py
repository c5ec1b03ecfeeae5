"""From this machine to 64 GPUs, simulated: ``./dev bench scale [--json FILE] [--measure] [--record] [--gpus 8 64]``.

Nothing of a cluster is run: constants are measured here, cited or assumed (scale_constants.py), and docs/scale.md says
what that leaves open.  ``--measure`` takes Ray's and the log's anew and records them.  The layouts are also played with
what the rollouts of a real run did (scale_traces.py), whose own steps stand beside; ``--record`` runs it anew.
"""

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks import machine
from benchmarks.headline import Headline, at_most, figure, headline_table, report_file, write_report
from benchmarks.multiplexing_runs import record
from benchmarks.scale_constants import (
    AGENTIC,
    COMPLETIONS,
    RECORDED,
    Constant,
    cluster,
    constants,
    this_machine,
)
from benchmarks.scale_measured import measured
from benchmarks.scale_simulation import Plan, SimulatedRun, Simulation
from benchmarks.scale_traces import Recorded, Trace, machine_of, plans_of, read_trace

BATCH_PER_GPU = 32
"""Trajectories of a step: 2,048 at 64 GPUs, so that ratio 4 has 10,240 places."""
SHARES = (4, 2)
"""A trainer that has GPUs of its own gets a fourth or a half of them, whichever is faster."""
RATIOS = (1, 4)
TRACED_TIMES = (1, 4)
"""The trace is played on so many times the devices of its run, with as many times the trajectories a step."""
TRACED_STEPS = 40


@dataclass(frozen=True)
class Case:
    scale: str
    outcome: SimulatedRun


def main() -> int:
    options = _options()
    if options.measure:
        RECORDED.write_text(json.dumps(measured(), indent=2) + "\n")
    if options.record:
        record()
    known, trace = constants(), read_trace()
    cases = list(simulated(known, options.gpus, steps=options.steps, seed=options.seed))
    cases += traced(trace, seed=options.seed)
    headlines = [*headlines_of(cases), *beside_the_run(trace, cases)]
    console = Console(width=max(150, Console().width), highlight=False)
    for table in (_outcome_table(cases), headline_table(headlines)):
        console.print(table)
    if options.json:
        document = as_json(known, cases) | {"trace": {"setting": asdict(trace.setting), "run": asdict(trace.outcome)}}
        write_report(options.json, headlines, document)
    return 0


def simulated(known: dict[str, Constant], sizes: Sequence[int], *, steps: int, seed: int) -> Iterator[Case]:
    tiny = Simulation(this_machine(known), COMPLETIONS, Plan("colocated", 0, 256), seed=seed)
    yield Case("this machine, completions", tiny.run(steps, warm_up=1))
    for gpus in sizes:
        batch = BATCH_PER_GPU * gpus
        for candidates in _alternatives(gpus, batch):
            yield _fastest(f"{gpus} GPUs", [_run(known, gpus, plan, steps, seed) for plan in candidates])
        slow = Simulation(cluster(known, gpus=gpus, weights="ray"), AGENTIC, _synchronous(batch), seed=seed)
        yield Case(f"{gpus} GPUs, weights through Ray's store", slow.run(steps, warm_up=1))


def traced(trace: Trace, *, seed: int, steps: int = TRACED_STEPS) -> Iterator[Case]:
    """The layouts with the rollouts of a run; the synchronous one first."""
    for times in TRACED_TIMES:
        devices = times * trace.setting.generators
        machine = machine_of(trace, devices=devices)
        for plan in plans_of(trace, times=times):
            outcome = Simulation(machine, Recorded(trace), plan, seed=seed).run(steps, warm_up=plan.async_ratio + 1)
            yield Case(f"trace of a run on {devices} devices", outcome)


def beside_the_run(trace: Trace, cases: Sequence[Case]) -> list[Headline]:
    """What was simulated of the run's own layout over what the run did."""
    scale = f"trace of a run on {trace.setting.generators} devices"
    same = next(case.outcome for case in cases if case.scale == scale and case.outcome.plan.layout == "multiplexed")
    run = trace.outcome
    return [
        figure("recorded run: steps per hour", run.steps_per_hour),
        figure("recorded run: steps per hour, simulated / run", same.steps_per_hour / run.steps_per_hour),
        figure("recorded run: moves a step", run.moves),
        figure("recorded run: moves a step, simulated", same.moves / TRACED_STEPS),
    ]


def _alternatives(gpus: int, batch: int) -> Iterator[list[Plan]]:
    """What is compared; of several plans in a list the fastest stands for all."""
    yield [_synchronous(batch)]
    for ratio in RATIOS:
        yield [Plan("apart", ratio, batch, gpus // share) for share in SHARES]
        yield [Plan("multiplexed", ratio, batch, gpus // share) for share in SHARES]


def _synchronous(batch: int) -> Plan:
    return Plan("colocated", 0, batch)


def _run(known: dict[str, Constant], gpus: int, plan: Plan, steps: int, seed: int) -> SimulatedRun:
    print(f"{gpus} GPUs: {plan.layout}, ratio {plan.async_ratio}, trainer {plan.trainer_gpus}", file=sys.stderr)
    return Simulation(cluster(known, gpus=gpus), AGENTIC, plan, seed=seed).run(steps, warm_up=plan.async_ratio + 1)


def _fastest(scale: str, outcomes: Sequence[SimulatedRun]) -> Case:
    return Case(scale, max(outcomes, key=lambda outcome: outcome.steps_per_hour))


def headlines_of(cases: Sequence[Case]) -> list[Headline]:
    """By scale: what each plan gains over the synchronous one, and what of the GPUs it leaves idle."""
    found = []
    for case in cases:
        synchronous = next(other for other in cases if other.scale.split(",")[0] == case.scale.split(",")[0]).outcome
        plan = case.outcome.plan
        name = f"{case.scale}, {plan.layout}, ratio {plan.async_ratio}"
        found.append(figure(f"{name}: steps per hour", case.outcome.steps_per_hour))
        if case.outcome is not synchronous:
            gain = case.outcome.steps_per_hour / synchronous.steps_per_hour
            found.append(figure(f"{name}: steps over those of ratio 0", gain))
        found.append(figure(f"{name}: GPU idle share", case.outcome.gpu_idle_share))
        found.append(at_most(f"{name}: oldest rollout, versions", case.outcome.staleness_max, plan.async_ratio))
    return found


def as_json(known: dict[str, Constant], cases: Sequence[Case]) -> dict[str, Any]:
    return {
        "benchmark": "scale",
        "simulated": True,
        "machine": machine.description(),
        "constants": {name: asdict(constant) for name, constant in known.items()},
        "workload": asdict(AGENTIC),
        "cases": [
            {"scale": case.scale, "bottleneck": case.outcome.bottleneck, **asdict(case.outcome)} for case in cases
        ],
    }


def _outcome_table(cases: Sequence[Case]) -> Table:
    table = Table(title="simulated: nothing below was run on a GPU")
    columns = ("scale", "plan", "trainer", "steps/h", "idle", "in play: mean, most", "age: mean, most", "bottleneck")
    for name in columns:
        table.add_column(name)
    for case in cases:
        outcome, plan = case.outcome, case.outcome.plan
        table.add_row(
            case.scale,
            f"{plan.layout}, ratio {plan.async_ratio}",
            str(plan.trainer_gpus or "all"),
            f"{outcome.steps_per_hour:,.1f}",
            f"{outcome.gpu_idle_share:.0%}",
            f"{outcome.in_flight_mean:,.0f}, {outcome.in_flight_max:,}",
            f"{outcome.staleness_mean:.2f}, {outcome.staleness_max}",
            f"{outcome.bottleneck} ({max(outcome.use.values()):.0%})",
        )
    return table


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="./dev bench scale", description="A cluster, simulated.")
    parser.add_argument("--json", type=report_file, metavar="FILE", help="write all numbers there")
    parser.add_argument("--measure", action="store_true", help="take and record Ray's and the log's constants anew")
    parser.add_argument("--record", action="store_true", help="run and record the trace anew: some minutes")
    parser.add_argument("--gpus", nargs="+", type=_gpus, default=[8, 64], metavar="N", help="sizes of the cluster")
    parser.add_argument("--steps", type=int, default=4, help="training steps that are counted")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def _gpus(text: str) -> int:
    number = int(text)
    if number < max(SHARES) or number % max(SHARES):
        raise argparse.ArgumentTypeError(
            f"{text}: use a multiple of {max(SHARES)}, for trainers of a fourth and a half"
        )
    return number


if __name__ == "__main__":
    sys.exit(main())
