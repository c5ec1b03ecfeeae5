"""The trainer backend of docs/guide/backends.md, as it stands on the page, behind the whole learner."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from engine.cluster.members import learner_for
from engine.spec.backends import TRAINERS
from engine.spec.run import RunSpec
from engine.training.learner import Learner
from tests.engine.groups import grouped
from tests.engine.training.cast import learned, rollouts, run_spec

PAGE = Path(__file__).parents[3] / "docs" / "guide" / "backends.md"


@pytest.fixture
def counting_spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RunSpec]:
    _, _, module, entry = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (tmp_path / "counting.py").write_text(module)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "counting", raising=False)
    exec(entry, {"TRAINERS": TRAINERS})
    spec = run_spec({"kl": {}})
    resources = spec.resources.model_copy(update={"trainer": "counting"})
    yield spec.model_copy(update={"resources": resources})
    del TRAINERS["counting"]


def counts(learner: Learner) -> dict[str, int]:
    return dict(learner._trainer.backend.counts)


def test_a_learner_asks_its_backend_for_these_things_and_no_others(counting_spec: RunSpec, tmp_path: Path) -> None:
    """Four supervised steps with an optimiser of their own; 16 rollouts, scored once, learned in two minibatches."""
    learner = learner_for(counting_spec)
    before = learner.weights()
    learner.supervised(0, 1, 4)
    assert counts(learner) == {"optimisers": 1, "batches": 4, "entries": 16, "steps": 4}
    report = learned(learner, grouped(rollouts()))
    assert report["updates"] == 2
    assert counts(learner) == {
        "batches": 6, "entries": 32, "steps": 6, "scored samples": 16, "optimisers": 2, "references": 1,
    }  # fmt: skip
    assert all(torch.equal(before[name], tensor) for name, tensor in learner.weights().items())


def test_what_it_counted_survives_a_checkpoint(counting_spec: RunSpec, tmp_path: Path) -> None:
    learner, resumed = learner_for(counting_spec), learner_for(counting_spec)
    learned(learner, grouped(rollouts()))
    learner.save(tmp_path / "checkpoint")
    resumed.load(tmp_path / "checkpoint")
    assert counts(resumed) == counts(learner)
    assert resumed._trainer.updates == 2
