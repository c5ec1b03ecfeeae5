"""Tasks that are measured before training: by a command, by a run itself, and named by another run."""

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from engine.launch.difficulty import with_difficulty
from engine.launch.job import launch_from_file
from engine.launch.preflight import BadSpec
from engine.launch.run_files import FileFolder, with_pinned_files
from engine.spec.launch import Launch
from engine.spec.run import RunSpec
from engine.spec.selection import Difficulty
from tests.engine.dying import dying
from tests.engine.trainings import PARTS, ROOT, Training

PLAIN = (
    PARTS.split("[recipe.credit]")[0]
    + '[recipe]\npreset = "grpo"\n[[recipe.stages]]'
    + (PARTS.split("[[recipe.stages]]")[1])
)
"""A policy that half knows its 24 tasks, by GRPO."""
BATCH = 6
"""Tasks that are measured at once: a step's 6 x 4 rollouts, 4 for each task."""


@pytest.fixture(scope="module")
def plain_toml(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("spec") / "run.toml"
    file.write_text(PLAIN)
    return file


def measure(toml: Path, out: Path, run_dir: Path, *options: str, program: Any = ("engine",)) -> Any:
    arguments = ["difficulty", toml, "--rollouts", "4", "--out", out, "--run-dir", run_dir, "--in-process", *options]
    command = [sys.executable, "-m", *program, *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


@pytest.fixture(scope="module")
def table(plain_toml: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Measured without a disturbance; its run stands beside it."""
    folder = tmp_path_factory.mktemp("measured")
    done = measure(plain_toml, folder / "table.jsonl", folder / "run")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "24 of 24 tasks are measured" in done.stdout
    return folder / "table.jsonl"


def rows_of(table: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in table.read_text().splitlines()[1:]]


def kept_in(table: Path) -> set[int]:
    return {row["number"] for row in rows_of(table) if 0 < row["successes"] < row["rollouts"]}


def test_the_table_holds_every_task_once_with_its_successes_and_what_it_was_measured_with(table: Path) -> None:
    rows = rows_of(table)
    assert [row["number"] for row in rows] == list(range(24))
    assert [row["task"] for row in rows] == [f"train-{number}" for number in range(24)]
    assert {row["rollouts"] for row in rows} == {4}
    assert 0 < len(kept_in(table)) < 24, "a policy that half knows its tasks finds some too easy or too hard"
    first = json.loads(table.read_text().splitlines()[0])
    assert (first["tasks"], first["rollouts"], first["spec"]["name"]) == (24, 4, "parts")


@pytest.mark.parametrize("number", [signal.SIGKILL, pytest.param(signal.SIGINT, marks=pytest.mark.soak)])
def test_a_measurement_that_was_stopped_in_its_third_batch_ends_with_the_same_table(
    plain_toml: Path, table: Path, tmp_path: Path, number: signal.Signals
) -> None:
    out, run_dir = tmp_path / "table.jsonl", tmp_path / "run"
    stopped = measure(plain_toml, out, run_dir, program=dying(number, "difficulty", 0, time=3))
    assert stopped.returncode == (130 if number == signal.SIGINT else -signal.SIGKILL)
    assert not out.exists()
    assert len((run_dir / "difficulty.jsonl").read_text().splitlines()) == 1 + 2 * BATCH
    if number == signal.SIGINT:
        assert f"to go on: python -m engine difficulty {plain_toml}" in stopped.stderr
    again = measure(plain_toml, out, run_dir)
    assert again.returncode == 0, again.stderr
    assert f"{3 * BATCH} of 24 tasks are measured" in again.stdout
    assert f"{2 * BATCH} of 24 tasks are measured" not in again.stdout
    assert out.read_bytes() == table.read_bytes()


def test_a_measurement_that_is_over_only_writes_its_table_again(plain_toml: Path, table: Path, tmp_path: Path) -> None:
    shutil.copytree(table.parent / "run", tmp_path / "run")
    again = measure(plain_toml, tmp_path / "again.jsonl", tmp_path / "run")
    assert again.returncode == 0, again.stderr
    assert "tasks are measured" not in again.stdout
    assert (tmp_path / "again.jsonl").read_bytes() == table.read_bytes()


def test_what_cannot_be_written_or_measured_is_refused_before_anything_is_made(
    plain_toml: Path, table: Path, tmp_path: Path
) -> None:
    refusals = [
        (measure(plain_toml, table, tmp_path / "run"), f"--out {table} exists already"),
        (measure(plain_toml, tmp_path / "no" / "t", tmp_path / "run"), "cannot be written; name a file in a folder"),
        (measure(plain_toml, tmp_path / "t", tmp_path / "run", "--rollouts", "1"), "--rollouts = 1: "),
        (measure(plain_toml, tmp_path / "t", tmp_path / "run", "--rollouts", "-3"), "--rollouts = -3: "),
    ]
    for refused, words in refusals:
        assert refused.returncode == 2
        assert words in refused.stderr
        assert "Traceback" not in refused.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "tables",
    [
        {"recipe": {"preset": "evaluate"}},
        {"recipe": {"preset": "evaluate"}, "evaluation": {"players": ["oracle"]}},
        {"recipe": {"preset": "evaluate", "purification": {"in_evaluation": True}}},
        {"recipe": {"preset": "sft"}},
        {"recipe": {"preset": "sft", "credit": {"kind": "gae"}}},
        {"recipe": {"preset": "cpt"}},
        {"recipe": {"preset": "sft"}, "schedule": {"group_size": 1, "minibatch_trajectories": 1}},
    ],
)
def test_a_recipe_without_rl_is_measured_as_a_run_that_can_be_read_and_gone_on_with(tables: dict[str, Any]) -> None:
    spec = RunSpec.model_validate({"name": "x", **tables})
    measured = with_difficulty(spec, 4)
    assert measured.recipe.selection.difficulty == Difficulty(rollouts=4)
    assert RunSpec.model_validate_json(measured.model_dump_json()) == measured
    assert measured.recipe.trains, "so that there is a checkpoint of step 0, where the tasks that are kept are written"
    assert measured.recipe.stages == spec.recipe.stages


def test_what_cannot_be_measured_is_refused_by_its_field() -> None:
    critic = {"path": "critic"}
    rated = {"preset": "sft", "credit": {"kind": "attribution", "judge": {
        "kind": "llm", "endpoint": "resources.judge", "model": "m",
    }}}  # fmt: skip
    spec = RunSpec.model_validate({"name": "x", "recipe": rated, "resources": {"judge": critic}})
    with pytest.raises(BadSpec, match=r"resources\.judge = 'set': nobody would ask these servers"):
        with_difficulty(spec, 4)


def test_another_measurement_does_not_go_on_in_the_folder_of_one(plain_toml: Path, table: Path, tmp_path: Path) -> None:
    refused = measure(plain_toml, tmp_path / "t", table.parent / "run", "--rollouts", "5")
    assert refused.returncode == 2
    assert "recipe.selection.difficulty.rollouts = 5: the checkpoint was made with 4" in refused.stderr


def filtering(lines: str) -> str:
    return PLAIN.replace("[[recipe.stages]]", f"[recipe.selection.difficulty]\n{lines}\n[[recipe.stages]]")


@pytest.mark.soak  # a table that leaves nothing is refused below
def test_a_measurement_that_leaves_nothing_ends_well_and_no_run_goes_on_from_it(tmp_path: Path) -> None:
    file, run_dir = tmp_path / "run.toml", tmp_path / "run"
    file.write_text(filtering("rollouts = 4\nabove = 0.99"))
    done = measure(file, tmp_path / "table.jsonl", run_dir)
    assert done.returncode == 0, done.stderr
    assert "0 of 24 tasks are trained on" in done.stdout
    assert len(rows_of(tmp_path / "table.jsonl")) == 24
    with Training(file, run_dir) as training:
        output, _ = training.start("--in-process", "--resume").communicate()
    assert "recipe.selection.difficulty.above = 0.99: of 24 tasks none has a success rate above it" in output
    assert "Traceback" not in output


def run_naming(table: Path, folder: Path, **more: Any) -> Path:
    named = {"measured": table.name} | more
    shutil.copy(table, folder / table.name)
    lines = "\n".join(f"{name} = {json.dumps(value)}" for name, value in named.items())
    file = folder / "run.toml"
    file.write_text(filtering(lines))
    return file


def tasks_trained(training: Training) -> set[int]:
    stored = [event["trajectory"] for event in training.of_kind("trajectory")]
    return {int(rollout["task"]["id"].removeprefix("train-")) for rollout in stored if rollout["purpose"] == "train"}


def test_a_run_that_names_the_table_trains_on_the_tasks_that_are_kept_and_on_all_of_them(
    table: Path, tmp_path: Path
) -> None:
    with Training(run_naming(table, tmp_path), tmp_path / "run") as training:
        training.finish("--in-process")
        assert tasks_trained(training) == kept_in(table), "5 steps of 6 prompts come round"
        assert training.state(5)["tasks"] == sorted(kept_in(table))
        [values] = [event["values"] for event in training.of_kind("metric") if "difficulty/kept" in event["values"]]
        assert values["difficulty/kept"] == len(kept_in(table))
        assert not [log for log in training.of_kind("log") if "another" in log["message"]]


@pytest.mark.soak  # above a measurement is killed, and a run trains on what is kept
def test_a_run_that_measures_first_keeps_what_the_command_would_keep_also_when_killed_meanwhile(
    plain_toml: Path, table: Path, tmp_path: Path
) -> None:
    file = tmp_path / "run.toml"
    file.write_text(filtering("rollouts = 4"))
    with Training(file, tmp_path / "run") as training:
        training.die("difficulty", 0, "--in-process")
        training.die("collect", 2, "--in-process", "--resume")
        training.finish("--in-process", "--resume")
        assert (tmp_path / "run" / "difficulty.jsonl").read_text().splitlines()[1:] == table.read_text().splitlines()[
            1:
        ]
        assert training.state(5)["tasks"] == sorted(kept_in(table))
        assert tasks_trained(training) == kept_in(table)
        assert {event["trajectory"]["purpose"] for event in training.of_kind("trajectory")} == {
            "train", "eval-greedy", "eval-sampled",
        }  # fmt: skip


@pytest.mark.soak  # test_teacher.py refuses a file that is another one by now in the same way
def test_a_resumed_run_refuses_a_table_that_is_another_one_by_now(table: Path, tmp_path: Path) -> None:
    with Training(run_naming(table, tmp_path), tmp_path / "run") as training:
        training.die("collect", 2, "--in-process")
        copied = tmp_path / table.name
        copied.write_bytes(copied.read_bytes() + b"\n")
        process = training.start("--in-process", "--resume")
        output, _ = process.communicate()
        assert process.returncode == 2
        assert "is not what this run began with" in output
        shutil.copy(table, copied)
        training.finish("--in-process", "--resume")
        assert tasks_trained(training) == kept_in(table)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"sha256": "0" * 64}, "is not what the spec names (000000000000...)"),
        ({"above": 0.9}, "none has a success rate above it and below 1"),
        ({"file": "none.jsonl"}, "there is no such file in"),
        ({"file": "."}, "there is no such file in"),
        ({"file": "x" * 600}, "File name too long"),
    ],
)
def test_a_table_that_cannot_be_used_is_refused_by_check_and_by_train(
    table: Path, tmp_path: Path, more: dict[str, Any], words: str
) -> None:
    above = more.pop("above", 0.0)
    file = run_naming(table, tmp_path, above=above, measured={"file": table.name} | more)
    toml = file.read_text().replace('measured = {"file": ', "measured = {file = ").replace('"sha256": ', "sha256 = ")
    file.write_text(toml)
    for verb in ("check", "train"):
        done = subprocess.run([sys.executable, "-m", "engine", verb, file], cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 2, done.stdout
        assert "recipe.selection.difficulty" in done.stderr
        assert words in done.stderr
        assert "Traceback" not in done.stderr


def job_naming(file: str, tmp_path: Path) -> Path:
    document = RunSpec(name="x").model_dump()
    document["recipe"]["selection"]["difficulty"] = {"measured": file}
    launch = Launch(
        run_id="r", attempt=1, spec=RunSpec.model_validate(document), ingest_url="http://127.0.0.1:1/", token="t",
        run_dir=str(tmp_path / "run"),
    )  # fmt: skip
    (tmp_path / "attempt-1.json").write_text(launch.model_dump_json())
    return tmp_path / "attempt-1.json"


def test_a_run_of_the_service_reads_below_the_folder_of_recordings_alone(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "trajectories"
    folder.mkdir()
    shutil.copy(table, folder / "table.jsonl")
    (folder / "link.jsonl").symlink_to(table)
    monkeypatch.setenv("PALESTRA_TRAJECTORIES", str(folder))
    pinned = launch_from_file(job_naming("table.jsonl", tmp_path)).spec.recipe.selection.difficulty
    assert pinned is not None
    assert pinned.measured is not None
    assert pinned.measured.file == str(folder / "table.jsonl")
    assert pinned.measured.sha256 is not None
    for outside in (str(table), "../table.jsonl", "link.jsonl"):
        with pytest.raises(BadSpec, match="leads out of"):
            launch_from_file(job_naming(outside, tmp_path))


def test_pinning_again_changes_nothing_and_a_spec_without_files_is_left_alone(table: Path, tmp_path: Path) -> None:
    files = FileFolder(table.parent, anywhere=True)
    document = RunSpec(name="x").model_dump()
    assert with_pinned_files(RunSpec.model_validate(document), None, files) == RunSpec.model_validate(document)
    document["recipe"]["selection"]["difficulty"] = {"measured": table.name}
    once = with_pinned_files(RunSpec.model_validate(document), None, files)
    assert with_pinned_files(once, None, files) == once
    assert RunSpec.model_validate_json(once.model_dump_json()) == once
