"""A checkpoint is what was written, or it is none."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from pydantic import ValidationError

from engine.loop import manifest
from engine.loop.checkpoint import CheckpointError, Checkpoints, Damaged
from engine.loop.state import RunState
from engine.spec.run import RunSpec
from tests.stored_runs import state_of


@pytest.fixture
def checkpoints(tmp_path: Path, small_spec: RunSpec) -> Checkpoints:
    """After the steps 1 and 2; the second was evaluated later."""
    made = Checkpoints(tmp_path, keep=2)
    for step in (0, 1, 2):
        partial = made.begin()
        (partial / "model").mkdir()
        (partial / "model" / "weights").write_bytes(bytes(range(200)))
        made.complete(partial, RunState(spec=small_spec, cold_started=True, finished_steps=step))
    made.amend(RunState(spec=small_spec, cold_started=True, finished_steps=2, evaluations={2: {"eval/x": 1.0}}))
    return made


def step_of(checkpoints: Checkpoints) -> int | None:
    state = checkpoints.newest().state
    return None if state is None else state.finished_steps


def flipped(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 0x10
    file.write_bytes(content)


def cut(file: Path) -> None:
    os.truncate(file, 100)


def emptied(file: Path) -> None:
    os.truncate(file, 0)


def lengthened(file: Path) -> None:
    with file.open("ab") as end:
        end.write(b"}")


def test_a_whole_one_is_verified_and_has_its_amended_state(checkpoints: Checkpoints) -> None:
    found = checkpoints.newest()
    assert (found.verified, found.damaged) == (True, [])
    assert found.state is not None
    assert found.state.evaluations == {2: {"eval/x": 1.0}}
    assert checkpoints.steps() == [1, 2]


@pytest.mark.parametrize("file", ["model/weights", "state.json", "manifest.json"])
@pytest.mark.parametrize("harm", [flipped, cut, emptied, lengthened])
def test_any_harm_to_any_file_is_noticed_and_the_one_before_is_found(
    checkpoints: Checkpoints, file: str, harm: Callable[[Path], None]
) -> None:
    harm(checkpoints.path(2) / file)
    found = checkpoints.newest()
    assert [checkpoint.after for checkpoint in found.damaged] == ["step 2"]
    assert step_of(checkpoints) == 1


def test_the_file_is_named_with_what_is_the_matter(checkpoints: Checkpoints) -> None:
    (checkpoints.path(2) / "model" / "weights").unlink()
    os.truncate(checkpoints.path(1) / "model" / "weights", 7)
    assert [checkpoint.how for checkpoint in checkpoints.newest().damaged] == [
        "model/weights is missing",
        "model/weights has 7 bytes, of 200 that were written",
    ]


def test_a_bit_of_the_weights_is_enough(checkpoints: Checkpoints) -> None:
    flipped(checkpoints.path(2) / "model" / "weights")
    [damaged] = checkpoints.newest().damaged
    assert damaged.how.startswith("model/weights has other bytes than were written (SHA-256 ")


def test_killed_while_the_state_is_amended_the_checkpoint_is_whole_before_and_after(
    checkpoints: Checkpoints, small_spec: RunSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        pass

    write, written = manifest.write_durably, []

    def killed_after_the_first(path: Path, content: bytes) -> None:
        if written:
            raise Killed
        written.append(path.name)
        write(path, content)

    monkeypatch.setattr(manifest, "write_durably", killed_after_the_first)
    with pytest.raises(Killed):
        checkpoints.amend(RunState(spec=small_spec, cold_started=True, finished_steps=2, tasks_taken=7))
    assert written == ["manifest.json"]
    assert step_of(checkpoints) == 2
    monkeypatch.undo()
    checkpoints.amend(RunState(spec=small_spec, cold_started=True, finished_steps=2, tasks_taken=7))
    assert step_of(checkpoints) == 2


def test_what_is_set_aside_stays_on_disk_and_its_step_has_no_checkpoint(checkpoints: Checkpoints) -> None:
    for _ in range(2):
        aside = checkpoints.set_aside(Damaged(checkpoints.path(checkpoints.steps()[-1]), "spoilt"))
    assert (aside / "model" / "weights").stat().st_size == 200
    assert checkpoints.steps() == []
    assert step_of(checkpoints) is None


def test_a_state_of_another_version_is_no_damage(checkpoints: Checkpoints) -> None:
    manifest.replace(checkpoints.path(2), "state.json", b'{"finished_steps": 2}')
    with pytest.raises(CheckpointError, match="another version"):
        checkpoints.newest()


def test_without_a_manifest_what_can_be_read_is_whole_and_what_cannot_is_damaged(checkpoints: Checkpoints) -> None:
    for step in (1, 2):
        (checkpoints.path(step) / "manifest.json").unlink()
    os.truncate(checkpoints.path(2) / "state.json", 100)
    found = checkpoints.newest()
    assert not found.verified
    assert [checkpoint.after for checkpoint in found.damaged] == ["step 2"]
    assert step_of(checkpoints) == 1


def test_a_checkpoint_of_0_2_is_gone_on_from_with_prompts_numbered_behind_its_own(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=2)
    checkpoints.begin().rename(checkpoints.path(1))
    (checkpoints.path(1) / "state.json").write_bytes(state_of("0.2"))
    state = checkpoints.newest().state
    assert state is not None
    assert (state.finished_steps, state.tasks_taken, sorted(state.evaluations)) == (1, 2, [0, 1])
    assert set(state.prompts.values()) == {2_000_000}
    assert {"train", "eval-greedy", "eval-sampled", "eval-purified"} <= state.prompts.keys()
    assert RunState.model_validate_json(state.model_dump_json()) == state  # and is written as one of today


def test_one_whose_spec_a_younger_rule_would_refuse_is_read_as_it_was_taken(
    checkpoints: Checkpoints, small_spec: RunSpec
) -> None:
    schedule = small_spec.schedule.model_copy(update={"minibatch_trajectories": 7})
    taken_once = small_spec.model_copy(update={"schedule": schedule})
    with pytest.raises(ValidationError, match="do not divide into minibatches of 7"):
        RunSpec.model_validate(taken_once.model_dump())
    made = RunState(spec=small_spec, cold_started=True, finished_steps=2)
    checkpoints.amend(made.model_copy(update={"spec": taken_once}))
    state = checkpoints.newest().state
    assert state is not None
    assert state.spec == taken_once
