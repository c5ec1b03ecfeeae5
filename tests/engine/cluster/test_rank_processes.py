"""How many ranks a machine can have, and that a run may go on with another number of them."""

from typing import Any

import pytest
import torch
from pydantic import ValidationError

from engine.cluster.rank_processes import rank_processes_for
from engine.failures import RunFailed
from engine.launch.preflight import differing_fields
from engine.loop.state import RunState
from engine.spec.backends import SHARDED_TRAINERS
from engine.spec.run import RunSpec


def spec_on(ranks: Any, **resources: Any) -> RunSpec:
    return RunSpec.model_validate({"name": "t", "resources": {"trainer_ranks": ranks} | resources})


@pytest.mark.parametrize("ranks", [0, -1, 257, 1.5, "many"])
def test_a_number_of_ranks_that_is_none_is_refused_by_its_field(ranks: Any) -> None:
    with pytest.raises(ValidationError, match=r"trainer_ranks"):
        spec_on(ranks)


def test_a_trainer_that_is_one_process_is_refused_several(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(SHARDED_TRAINERS, "torch")
    with pytest.raises(ValidationError, match="the trainer torch is one process"):
        spec_on(2)
    assert spec_on(1).resources.trainer_ranks == 1


def test_one_rank_needs_no_other_process() -> None:
    assert rank_processes_for(spec_on(1)) is None


def test_more_ranks_than_gpus_are_refused_before_any_process_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(RunFailed, match=r"resources\.trainer_ranks = 3: .* 2 GPUs at most; use at most 2"):
        rank_processes_for(spec_on(3, device="cuda"))


def test_without_any_gpu_it_says_so_and_not_how_many_it_would_need(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(RunFailed, match="there is no GPU"):
        rank_processes_for(spec_on(3, device="cuda"))


def test_a_run_goes_on_with_another_number_of_ranks_and_with_nothing_else_changed() -> None:
    assert differing_fields(spec_on(1), spec_on(2)) == []
    [problem] = differing_fields(spec_on(1), spec_on(2, threads=7))
    assert problem.field == "resources.threads"
    state = RunState(spec=spec_on(2))
    state.go_on_from(RunState(spec=spec_on(1), finished_steps=3))
    assert (state.finished_steps, state.spec.resources.trainer_ranks) == (3, 2)
