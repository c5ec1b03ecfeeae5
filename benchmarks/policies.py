"""The start weights that both sides load, as checkpoints of Palestra's trainer.

``<folder>/model`` is what Hugging Face reads.  For ``tool-use`` the policy is taught to call its
tool in nearly every episode, by a cold start without guesses; it is made once per recipe and kept.
"""

import hashlib
import sys
from pathlib import Path

from benchmarks.workload import Setting
from engine.control.learner import Learner
from engine.spec.run import RunSpec
from engine.spec.supervised import ColdStart
from engine.training.trainer import Trainer

COLD_START = ColdStart(
    demonstrations=4096, wrong_fraction=0.0, tool_error_fraction=0.2, steps=600, batch_size=64, learning_rate=1e-3
)
"""Written out, so that tuning the defaults does not change what is measured."""


def start_policy(setting: Setting, spec: RunSpec, *, home: Path) -> Path:
    """The checkpoint folder."""
    if setting == "tool-use":
        spec = _taught(spec)
    wanted = spec.model_dump_json(include={"model", "dataset", "environment", "recipe", "seed"})
    folder = home / "bench" / f"policy-{setting}-{hashlib.sha256(wanted.encode()).hexdigest()[:12]}"
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        _make(setting, spec, folder)
    return folder


def _taught(spec: RunSpec) -> RunSpec:
    return spec.model_copy(update={"recipe": spec.recipe.model_copy(update={"cold_start": COLD_START})})


def _make(setting: Setting, spec: RunSpec, folder: Path) -> None:
    if setting == "completions":
        Trainer(spec).save(folder)
        return
    learner = Learner(spec)
    print(f"teaching the policy of '{setting}' to use its tool (once) ...", file=sys.stderr)
    loss = learner.cold_start(1, COLD_START.steps)
    print(f"  mean loss {loss:.3f}", file=sys.stderr)
    learner.save(folder)
