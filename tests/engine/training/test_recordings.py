import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pytest

from engine.cluster.members import learner_for
from engine.launch.preflight import BadSpec, spec_from_file
from engine.launch.train import train
from engine.spec.run import RunSpec
from engine.spec.trajectory import MADE_BY_TRAINING, Trajectory
from engine.training.recordings import BadRecording, recorded_trajectories, recordings_folder
from tests.engine.training.cast import rollouts, run_spec, same_bits

GOOD = [json.loads(rollout.model_dump_json()) for rollout in rollouts()]


def spec_for(name: str, **more: Any) -> RunSpec:
    data = {"kind": "recordings", "file": name} | more
    return run_spec({"stages": [{"data": data, "steps": 4, "batch_size": 4}]})


def recorded(spec: RunSpec, folder: Path) -> list[Trajectory]:
    return recorded_trajectories(spec.recipe.stages[0].data, spec.model, folder)


def written(folder: Path, documents: list[Any]) -> Path:
    file = folder / "some" / "recorded.jsonl"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(
        "\n".join(document if isinstance(document, str) else json.dumps(document) for document in documents) + "\n"
    )
    return file


def changed(path: str, value: Any) -> dict[str, Any]:
    document = json.loads(json.dumps(GOOD[0]))
    *parents, last = path.split(".")
    place = document
    for part in parents:
        place = place[int(part)] if part.isdigit() else place[part]
    place[int(last) if last.isdigit() else last] = value
    return document


def test_what_was_recorded_is_learned_instead_of_scripted_demonstrations(tmp_path: Path) -> None:
    written(tmp_path, GOOD)
    learner, scripted = learner_for(spec_for("some/recorded.jsonl"), tmp_path), learner_for(run_spec({}))
    assert [demonstration.id for demonstration in learner.stages.trajectories(0)] == [item["id"] for item in GOOD]
    before = learner.weights()
    assert learner.supervised(0, 1, 4)["loss"] > 0
    scripted_before = scripted.weights()
    assert same_bits(before, scripted_before)
    assert not same_bits(learner.weights(), before)


@pytest.mark.parametrize(
    ("document", "reported"),
    [
        ("{", r"recorded.jsonl, line 3: .*JSON"),
        (changed("reward", "much"), r"line 3: reward = 'much'"),
        ({k: v for k, v in GOOD[0].items() if k != "segments"}, r"line 3: segments = '\(missing\)'"),
        (changed("segments", []), r"line 3: segments: there is no turn"),
        (changed("left_out", "all turns"), r"line 3: left_out: .* too long for an event, .* lacks all turns"),
        (
            changed("segments.0.turns.0.token_ids", [9999]),
            r"line 3: segments.0.turns.0.token_ids: a token is not in 0 .. 107",
        ),
        (changed("segments.0.turns.0.logprobs", []), r"line 3: segments.0.turns.0.logprobs: 0 for "),
        (changed("segments.0.turns.0.context_ids", []), r"line 3: segments.0.turns.0.context_ids: is empty"),
        (
            changed("segments.0.turns.0.context_ids", [3] * 200),
            r"line 3: segments.0: \d+ tokens do not fit into model.context_tokens = 160",
        ),
        (
            changed("changes", [{"kind": "stripped", "turn": 0, "start": 5, "stop": 999, "reason": "x"}]),
            r"line 3: changes: span \(5, 999\)",
        ),
    ],
)
def test_a_bad_line_ends_the_run_before_it_starts_with_file_line_and_field(
    tmp_path: Path, document: Any, reported: str
) -> None:
    written(tmp_path, [GOOD[0], "", document])
    with pytest.raises(BadRecording, match=reported):
        learner_for(spec_for("some/recorded.jsonl"), tmp_path)


def test_what_lacks_only_what_training_made_of_it_is_learned(tmp_path: Path) -> None:
    written(tmp_path, [changed("left_out", MADE_BY_TRAINING)])
    [stored] = recorded(spec_for("some/recorded.jsonl"), tmp_path)
    assert stored.left_out == MADE_BY_TRAINING


def test_a_file_that_is_empty_or_missing_or_masked_as_a_whole_is_refused(tmp_path: Path) -> None:
    written(tmp_path, [""])
    with pytest.raises(BadRecording, match="holds no trajectory"):
        learner_for(spec_for("some/recorded.jsonl"), tmp_path)
    with pytest.raises(BadRecording, match="'some/other.jsonl': there is no such file"):
        learner_for(spec_for("some/other.jsonl"), tmp_path)
    failed = [
        rollout.model_copy(update={"masked_because": "overlong"}).model_dump(mode="json") for rollout in rollouts()
    ]
    written(tmp_path, failed)
    with pytest.raises(BadRecording, match="16 recorded trajectories, all of whose turns are masked"):
        learner_for(spec_for("some/recorded.jsonl"), tmp_path)


def test_nothing_outside_the_folder_is_read_not_even_through_a_link(tmp_path: Path) -> None:
    outside, inside = tmp_path / "outside", tmp_path / "inside"
    written(outside, GOOD)
    inside.mkdir()
    os.symlink(outside / "some", inside / "link")
    os.symlink(outside / "some" / "recorded.jsonl", inside / "file.jsonl")
    for name in ("link/recorded.jsonl", "file.jsonl"):
        with pytest.raises(BadRecording, match="leads out of"):
            recorded(spec_for(name), inside)


def test_a_link_that_stays_inside_may_be_followed(tmp_path: Path) -> None:
    written(tmp_path, GOOD)
    os.symlink(tmp_path / "some", tmp_path / "link")
    assert len(recorded(spec_for("link/recorded.jsonl"), tmp_path)) == len(GOOD)


def test_the_folder_is_that_of_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PALESTRA_HOME", str(tmp_path))
    monkeypatch.delenv("PALESTRA_TRAJECTORIES", raising=False)
    assert recordings_folder() == tmp_path / "trajectories"
    monkeypatch.setenv("PALESTRA_TRAJECTORIES", str(tmp_path / "elsewhere"))
    assert recordings_folder() == tmp_path / "elsewhere"


def test_the_command_line_looks_beside_the_run_file_and_writes_nothing_first(tmp_path: Path) -> None:
    run_file, folder = tmp_path / "run.toml", tmp_path / "run"
    stage = 'steps = 1\ndata = {kind = "recordings", file = "some/recorded.jsonl"}'
    run_file.write_text(f'name = "t"\n[[recipe.stages]]\n{stage}\n')
    written(tmp_path, [GOOD[0], changed("reward", "much")])
    with pytest.raises(BadSpec, match="some/recorded.jsonl, line 2: reward"):
        train(spec_from_file(run_file), file=run_file, run_dir=folder, resume=False, in_process=True, json_file=None)
    assert not folder.exists()


def test_a_file_that_is_not_the_one_that_was_named_is_refused(tmp_path: Path) -> None:
    file = written(tmp_path, GOOD)
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    assert len(recorded(spec_for("some/recorded.jsonl", sha256=digest), tmp_path)) == len(GOOD)
    with pytest.raises(BadRecording, match=f"its SHA-256 is {digest}, and the spec names 0000"):
        recorded(spec_for("some/recorded.jsonl", sha256="0" * 64), tmp_path)
