"""The runs of a plan: one process each, resumable, the cold start shared by all arms of a seed."""

import json
import os
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.learning_material import Material, material_of
from benchmarks.learning_plan import Arm, Plan
from engine.loop.checkpoint import Checkpoints
from engine.loop.state import RunState
from engine.reporting.spool import Spool
from engine.spec.run import RunSpec
from engine.spec.toml import toml_of

Curves = dict[str, dict[int, float]]
"""Metric key -> step -> value."""


class RunFailed(Exception):
    """A run of the plan ended without success; the message says which and why."""


@dataclass(frozen=True)
class RunResult:
    arm: str
    seed: int
    curves: Curves


def run_plan(plan: Plan, folder: Path, *, processes: int, log: Callable[[str], None]) -> list[RunResult]:
    """All outcomes, those that stand in ``folder`` from an earlier call among them; ``processes`` runs at once."""
    _write_plan(plan, folder)
    material = material_of(plan, folder / "material")
    with ThreadPoolExecutor(processes) as pool:
        starts = sorted({plan.start_of(seed) for seed in plan.seeds})
        list(pool.map(lambda seed: _cold_start(plan, folder, seed, material, log), starts))
        pairs = [(arm, seed) for seed in plan.seeds for arm in plan.arms]
        return list(pool.map(lambda pair: _run(plan, folder, pair[0], pair[1], material, log), pairs))


def _write_plan(plan: Plan, folder: Path) -> None:
    """Before anything is run.  Refuses a folder that holds the results of another plan."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "plan.json"
    if file.exists() and json.loads(file.read_text())["digest"] != plan.digest:
        raise RunFailed(f"{folder} holds results of another plan; give another --out, or remove it")
    arms = {arm.name: arm.recipe for arm in plan.arms}
    document = {"claim": plan.claim, "metric": plan.metric, "seeds": plan.seeds, "run": plan.shared, "arms": arms}
    file.write_text(json.dumps({"digest": plan.digest, **document}, indent=1))


def _cold_start(plan: Plan, folder: Path, seed: int, material: Material, log: Callable[[str], None]) -> Path:
    """The folder of the shared start; made once."""
    place = folder / "cold-start" / str(seed)
    if not (place / "done").exists():
        shutil.rmtree(place, ignore_errors=True)
        log(f"cold start, seed {seed}")
        _train(material.placed(plan.cold_start_spec(seed)), place, material, resume=False)
        (place / "done").touch()
    return place


def _run(plan: Plan, folder: Path, arm: Arm, seed: int, material: Material, log: Callable[[str], None]) -> RunResult:
    place = folder / arm.name / str(seed)
    result = place / "curves.json"
    if not result.exists():
        spec = material.placed(_without_preset(plan.spec(arm, seed)))
        shutil.rmtree(place, ignore_errors=True)
        _start_from(folder / "cold-start" / str(plan.start_of(seed)), place, spec)
        _train(spec, place, material, resume=True)
        partial = result.with_suffix(".partial")
        partial.write_text(json.dumps(_curves(place / "spool")))
        partial.rename(result)
        shutil.rmtree(place / "spool")
    curves = {
        key: {int(step): value for step, value in of.items()} for key, of in json.loads(result.read_text()).items()
    }
    final = curves[plan.metric][max(curves[plan.metric])]
    log(f"{arm.name}, seed {seed}: {plan.metric} {final:.3f}")
    return RunResult(arm.name, seed, curves)


def _start_from(cold: Path, place: Path, spec: RunSpec) -> None:
    """The checkpoint of the shared cold start, as if this run had made it; its evaluation is made anew."""
    shutil.copytree(cold / "checkpoints", place / "checkpoints")
    (place / "spool").mkdir()
    checkpoints = Checkpoints(place / "checkpoints", keep=1)
    state = checkpoints.newest().state
    if state is None:
        raise RunFailed(f"{cold} has no whole checkpoint; remove {cold} to make it anew")
    checkpoints.amend(RunState(spec=spec, cold_started=True, cold_start_steps=state.cold_start_steps))


def _train(spec: RunSpec, place: Path, material: Material, *, resume: bool) -> None:
    place.mkdir(parents=True, exist_ok=True)
    material.bring(place)
    file = place / "run.toml"
    file.write_text(_as_toml(spec))
    command = [sys.executable, "-m", "engine", "train", str(file), "--run-dir", str(place), "--in-process"]
    with open(place / "log", "wb") as log:
        code = subprocess.run(
            [*command, *(["--resume"] if resume else [])],
            stdout=log, stderr=subprocess.STDOUT, env=os.environ | {"OMP_NUM_THREADS": str(spec.resources.threads)},
        ).returncode  # fmt: skip
    if code:
        tail = (place / "log").read_text(errors="replace").splitlines()[-3:]
        raise RunFailed(f"{spec.name} ended with {code}: {' / '.join(tail)}")


def _without_preset(spec: RunSpec) -> RunSpec:
    """The same run, every knob of its recipe written out."""
    return spec.model_copy(update={"recipe": spec.recipe.model_copy(update={"preset": None})})


def _as_toml(spec: RunSpec) -> str:
    """A recipe says false for what it does without; elsewhere absent is None."""
    document = spec.model_dump(mode="json", exclude={"recipe": {"preset"}})
    return toml_of(document | {"recipe": _with_false(document["recipe"])})


def _with_false(value: Any) -> Any:
    match value:
        case None:
            return False
        case dict():
            return {key: _with_false(inner) for key, inner in value.items()}
        case list():
            return [_with_false(inner) for inner in value]
        case _:
            return value


def _curves(spool: Path) -> Curves:
    """The metrics in the events of a run; a later value of a step stands for an earlier one."""
    curves: Curves = defaultdict(dict)
    reader = Spool(spool)
    try:
        first = reader.oldest_seq
        while lines := reader.read(first, max_events=1000, max_bytes=2**26):
            for line in lines:
                event = json.loads(line)
                if event["kind"] == "metric":
                    for key, value in event["values"].items():
                        curves[key][event["step"]] = value
            first += len(lines)
    finally:
        reader.close()
    return curves
