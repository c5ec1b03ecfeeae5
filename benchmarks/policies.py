"""The start weights that both sides load, as checkpoints of Palestra's trainer.

``<folder>/model`` is what Hugging Face reads.  For ``tool-use`` the policy is taught to call its tool in
nearly every episode, by a cold start without guesses unless some are asked for; made once per recipe and kept.
"""

import hashlib
import sys
from pathlib import Path

from benchmarks.workload import Setting, has_slow_tools, spec_for
from engine.cluster.members import learner_for, trainer_for
from engine.spec.run import RunSpec
from engine.spec.supervised import Demonstrations, Stage

TAUGHT = Demonstrations(count=4096, wrong_fraction=0.0, tool_error_fraction=0.2)
COLD_START = Stage(data=TAUGHT, steps=600, batch_size=64, learning_rate=1e-3)
"""Written out, so that tuning the defaults does not change what is measured."""


def start_policy(setting: Setting, spec: RunSpec, *, home: Path, guesses: float = 0.0) -> Path:
    """The checkpoint folder.  ``guesses``: the share of demonstrations that ``tool-use`` is taught by and that fail.

    Where tools are slow it is the policy of ``tool-use``.
    """
    if has_slow_tools(setting):
        spec = spec_for("tool-use", steps=spec.schedule.steps, threads=spec.resources.threads)
        return start_policy("tool-use", spec, home=home, guesses=guesses)
    if setting == "tool-use":
        spec = _taught(spec, guesses)
    wanted = spec.model_dump_json(include={"model", "dataset", "environment", "recipe", "seed"})
    folder = home / "bench" / f"policy-{setting}-{hashlib.sha256(wanted.encode()).hexdigest()[:12]}"
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        _make(setting, spec, folder)
    return folder


def _taught(spec: RunSpec, guesses: float) -> RunSpec:
    cold_start = COLD_START.model_copy(update={"data": TAUGHT.model_copy(update={"wrong_fraction": guesses})})
    return spec.model_copy(update={"recipe": spec.recipe.model_copy(update={"stages": (cold_start,)})})


def _make(setting: Setting, spec: RunSpec, folder: Path) -> None:
    if setting == "completions":
        trainer_for(spec).save(folder)
        return
    learner = learner_for(spec)
    print(f"teaching the policy of '{setting}' to use its tool (once) ...", file=sys.stderr)
    loss = learner.supervised(0, 1, COLD_START.steps)["loss"]
    print(f"  mean loss {loss:.3f}", file=sys.stderr)
    learner.save(folder)
