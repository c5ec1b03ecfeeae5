"""Supervised stages as part of a run: in their order, killed in their middle, cancelled, on a file that changes."""

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from engine.launch import exit_codes
from engine.spec.run import RunSpec
from tests.engine.rigs import Rig
from tests.engine.trainings import ROOT, Training

pytestmark = pytest.mark.timeout(900)
"""Whole runs: seconds on a quiet machine, ten times as long on a busy one."""

RUN = """
name = "stages"
seed = 3
[environment]
id = "household"
levels = [1]
max_turns = 2
max_turn_tokens = 8
[dataset]
train_tasks = 8
[model]
vocabulary = "characters"
layers = 1
hidden_size = 16
heads = 2
kv_heads = 1
head_dim = 8
intermediate_size = 24
context_tokens = 400
[resources]
threads = 1
kv_slots = 4
[schedule]
steps = 1
prompts_per_step = 2
group_size = 2
minibatch_trajectories = 4
[evaluation]
tasks = 2
interim_tasks = 2
every = 0
[recipe]
preset = "grpo"
[[recipe.stages]]
data = {kind = "text", file = "text.jsonl"}
steps = 20
batch_tokens = 200
packing = true
learning_rate = 1e-2
checkpoint_every = 10
validation_share = 0.1
validation_every = 5
[[recipe.stages]]
data = {kind = "chat", file = "chat.jsonl"}
epochs = 5
batch_size = 6
learning_rate = 1e-2
checkpoint_every = 10
revisiting = {stage = 1, share = 0.34}
"""
"""CPT, then SFT with revisiting, then RL.  24 conversations in batches of 4 beside 2 texts: 6 steps an epoch."""
TEXTS = [{"text": f"{first} plus {second} is {first + second}."} for first in range(1, 7) for second in range(1, 6)]
CHATS = [
    {"messages": [{"role": "user", "content": f"{n} + 1 = ?"}, {"role": "assistant", "content": str(n + 1)}]}
    for n in range(24)
]
DYING = """
import json, runpy, signal, sys
from tests.engine.dying import send_when_written
send_when_written(json.loads(sys.argv.pop(1)), signal.SIGKILL)
sys.argv[0] = "engine"
runpy.run_module("engine", run_name="__main__", alter_sys=True)
"""


def written(folder: Path, run: str = RUN) -> Path:
    for name, documents in (("text", TEXTS), ("chat", CHATS)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(document) + "\n" for document in documents))
    file = folder / "run.toml"
    file.write_text(run)
    return file


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Training:
    folder = tmp_path_factory.mktemp("undisturbed")
    training = Training(written(folder), folder / "run")
    training.finish("--in-process")
    return training


def begun(stage: int, done: int) -> dict[str, Any]:
    before, steps = ((0, 20), (20, 30))[stage - 1]
    progress = {"stage": stage, "of": 2, "before": before, "steps": steps, "done": done}
    return {"kind": "phase", "phase": "cold-start", "seconds": None, "stage": progress}


def die_at(training: Training, file: Path, event: dict[str, Any], *options: str) -> None:
    """Be killed the moment that the event is on the disk."""
    arguments = [json.dumps(event), "train", str(file), "--run-dir", str(training.folder), "--in-process", *options]
    died = subprocess.run(
        [sys.executable, "-c", DYING, *arguments], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert died.returncode == -signal.SIGKILL, died.stdout


def curve(training: Training, key: str) -> list[tuple[int, float]]:
    points = {event["step"]: event["values"][key] for event in training.of_kind("metric") if key in event["values"]}
    return sorted(points.items())


def test_a_run_goes_through_its_stages_and_then_to_rl(undisturbed: Training) -> None:
    progress = [event["stage"] for event in undisturbed.of_kind("phase") if event["stage"] and event["seconds"] is None]
    assert [(stage["stage"], stage["before"], stage["done"], stage["steps"]) for stage in progress] == [
        (1, 0, 0, 20), (1, 0, 10, 20), (2, 20, 0, 30), (2, 20, 10, 30), (2, 20, 20, 30),
    ]  # fmt: skip
    steps = [step for step, _ in curve(undisturbed, "sft/loss")]
    assert steps == [5, 10, 15, 20, 30, 40, 50]
    assert [step for step, _ in curve(undisturbed, "sft/validation_loss")] == [5, 10, 15, 20]
    for key, first in (("sft/loss", 5), ("sft/validation_loss", 5)):
        values = dict(curve(undisturbed, key))
        assert values[20] < values[first], key
    assert dict(curve(undisturbed, "sft/loss"))[50] < dict(curve(undisturbed, "sft/loss"))[30]
    assert [step for step, _ in curve(undisturbed, "train/reward")] == [1]
    counted = [event["message"] for event in undisturbed.of_kind("log") if "supervised stage" in event["message"]]
    assert counted == [
        "supervised stage 1: 20 steps on text (30 documents, 30 examples)",
        "supervised stage 2: 30 steps on chat (24 documents, 24 examples)",
    ]


def test_of_checkpoints_within_stages_none_is_left_and_none_was_announced(undisturbed: Training) -> None:
    assert sorted(path.name for path in (undisturbed.folder / "checkpoints").iterdir()) == [
        "step-000000",
        "step-000001",
    ]
    assert [event["step"] for event in undisturbed.of_kind("checkpoint")] == [0, 1]


@pytest.mark.parametrize(
    ("deaths", "resumed_from"),
    [
        pytest.param([begun(1, 10)], [10], marks=pytest.mark.soak),
        pytest.param([begun(2, 0)], [10], marks=pytest.mark.soak),
        ([begun(1, 10), begun(2, 20)], [10, 40]),
    ],
    ids=["first stage", "between the stages", "twice"],
)
def test_killed_in_the_middle_of_a_stage_it_goes_on_from_there_to_the_same_bits(
    tmp_path: Path, undisturbed: Training, deaths: list[dict[str, Any]], resumed_from: list[int]
) -> None:
    file = written(tmp_path)
    training = Training(file, tmp_path / "run")
    for number, death in enumerate(deaths):
        die_at(training, file, death, *(["--resume"] if number else []))
    training.finish("--in-process", "--resume")
    assert [event["from_cold_start_step"] for event in training.of_kind("started")][1:] == resumed_from
    for step in (0, 1):
        assert training.weights(step) == undisturbed.weights(step)
    for key in ("sft/loss", "sft/validation_loss"):
        assert curve(training, key) == curve(undisturbed, key)


def test_a_damaged_checkpoint_of_a_stage_is_set_aside_and_the_one_before_is_gone_on_from(
    tmp_path: Path, undisturbed: Training
) -> None:
    file = written(tmp_path)
    training = Training(file, tmp_path / "run")
    die_at(training, file, begun(2, 20))
    found = sorted(path.name for path in (training.folder / "checkpoints").glob("supervised-*"))
    assert found == ["supervised-000010", "supervised-000030", "supervised-000040"]
    (training.folder / "checkpoints" / found[-1] / "trainer.pt").write_bytes(b"")
    training.finish("--in-process", "--resume")
    assert (training.folder / "checkpoints" / "damaged-supervised-000040").is_dir()
    assert [event["from_cold_start_step"] for event in training.of_kind("started")][1:] == [30]
    assert training.weights(1) == undisturbed.weights(1)


def test_a_file_that_changes_between_two_attempts_ends_the_run(tmp_path: Path) -> None:
    file = written(tmp_path)
    training = Training(file, tmp_path / "run")
    die_at(training, file, begun(1, 10))
    chats = tmp_path / "chat.jsonl"
    chats.write_text(chats.read_text().replace("23 + 1", "24 + 1"))
    process = training.start("--in-process", "--resume")
    output, _ = process.communicate()
    assert process.returncode != 0
    assert "chat.jsonl has changed since the run began" in output


@pytest.mark.parametrize(
    ("line", "reported"),
    [
        ('{"messages": []}', "line 25: messages = 0: the policy has nothing to read first"),
        ("{", "line 25 = '{': the line is no JSON"),
        ('{"conversations": [{"from": "human", "value": "x"}]}', "this is the form of ShareGPT; write it as"),
        ('{"messages": [{"role": "user", "content": 3}]}', r"line 25: messages[0].content = 3"),
    ],
)
def test_a_bad_line_is_refused_before_anything_is_started_or_written(tmp_path: Path, line: str, reported: str) -> None:
    file = written(tmp_path)
    with (tmp_path / "chat.jsonl").open("a") as lines:
        lines.write(line + "\n")
    process = Training(file, tmp_path / "run").start("--in-process")
    output, _ = process.communicate()
    assert process.returncode == 2, output
    assert reported in output
    assert not (tmp_path / "run").exists()


def test_sft_alone_ends_after_its_stages_and_one_evaluation(tmp_path: Path) -> None:
    run = RUN.replace('preset = "grpo"', 'objective = {kind = "none"}')
    training = Training(written(tmp_path, run), tmp_path / "run")
    training.finish("--in-process")
    assert [event["step"] for event in training.of_kind("checkpoint")] == [0]
    assert {event["step"] for event in training.of_kind("metric") if "eval/success_greedy" in event["values"]} == {0}
    assert not any("train/reward" in event["values"] for event in training.of_kind("metric"))


def stages_spec(folder: Path, monkeypatch: pytest.MonkeyPatch) -> RunSpec:
    import tomllib

    monkeypatch.setenv("PALESTRA_TRAJECTORIES", str(folder))
    document = tomllib.loads(written(folder).read_text())
    document["recipe"]["stages"][0] |= {"steps": 100000, "checkpoint_every": 100000}
    return RunSpec.model_validate(document)


def reached(service: Any, steps: int) -> bool:
    return any(event["kind"] == "metric" and event["step"] >= steps for event in service.events)


def test_a_stage_that_is_cancelled_ends_there(tmp_path: Path, service: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    running = Rig(stages_spec(tmp_path, monkeypatch), tmp_path / "run", service).start()
    service.wait_for(lambda service: reached(service, 10))
    service.desired = "cancel"
    assert running.ended() == exit_codes.ENDED
    assert service.events[-1]["outcome"] == "cancelled"


def test_a_pause_saves_the_stage_where_it_is(tmp_path: Path, service: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    running = Rig(stages_spec(tmp_path, monkeypatch), tmp_path / "run", service).start()
    service.wait_for(lambda service: reached(service, 10))
    service.desired = "pause"
    service.wait_for(lambda service: any(e["kind"] == "phase" and e["phase"] == "paused" for e in service.events))
    [saved] = (tmp_path / "run" / "checkpoints").glob("supervised-*")
    assert int(saved.name.removeprefix("supervised-")) >= 10
    service.desired = "cancel"
    assert running.ended() == exit_codes.ENDED
