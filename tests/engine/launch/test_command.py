"""``python -m engine`` for a person at a terminal."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from engine.launch.preflight import spec_from_file

ROOT = Path(__file__).parents[3]


def engine(*arguments: str | Path, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "engine", *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=300)


BAD = [
    ('name = "x"\nseed = \n', "not TOML: Invalid value (at line 2, column 8)"),
    ('name = "x"\n[schedule]\ngroup_size = 1\nminibatch_trajectories = 32\n', "schedule.group_size = 1: grpo compares"),
    ('name = "x"\n[schedule]\nminibatch_trajectories = 100\n', "schedule.minibatch_trajectories = 100: 256"),
    ('name = "x"\n[model]\ncontext_tokens = 16\n', "model.context_tokens = 16: the longest prompt"),
    (
        'name = "x"\n[environment]\nid = "chess"\n',
        "environment.id = 'chess': Input tag 'chess' found using 'id' does not match any",
    ),
    ('name = "x"\nlearning_rate = 1\n', "learning_rate = 1: Extra inputs are not permitted"),
    ('name = "x"\nseed = "one"\n', "seed = 'one': Input should be a valid integer"),
    ('name = "x"\nseed = ' + "9" * 5000, "not TOML: Exceeds the limit (4300 digits)"),
    ('name = "x"\nseed = ' + "[" * 5000 + "]" * 5000, "nested too deeply"),
    ('name = "x"\n[' + ".".join("a" * 5000) + "]\n", "a = (a dict nested too deeply): Extra inputs are not permitted"),
]


def test_a_file_with_a_mark_of_its_byte_order_is_read_as_one_without(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text('\ufeffname = "größer"\n', "utf-8")
    assert spec_from_file(file).name == "größer"


@pytest.mark.parametrize(("text", "words"), BAD)
@pytest.mark.parametrize("verb", ["check", "train"])
def test_a_bad_spec_is_refused_with_its_problem_and_nothing_is_made(
    tmp_path: Path, verb: str, text: str, words: str
) -> None:
    (tmp_path / "run.toml").write_text(text)
    done = engine(verb, "run.toml", cwd=tmp_path)
    assert done.returncode == 2
    assert f"run.toml: {words}" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert list(tmp_path.iterdir()) == [tmp_path / "run.toml"]


def test_a_judge_without_its_key_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    judge = 'kind = "llm"\nendpoint = "http://127.0.0.1:1/v1"\nmodel = "m"\napi_key_variable = "PALESTRA_JUDGE_NONE"\n'
    text = f'name = "x"\n[recipe.credit]\nkind = "attribution"\n[recipe.credit.judge]\n{judge}'
    (tmp_path / "run.toml").write_text(text)
    done = engine("train", "run.toml", cwd=tmp_path)
    assert done.returncode == 2
    assert "run.toml: recipe.credit.judge.api_key_variable = 'PALESTRA_JUDGE_NONE': the engine's" in done.stderr
    assert list(tmp_path.iterdir()) == [tmp_path / "run.toml"]


def test_a_missing_file_is_one_clear_line() -> None:
    done = engine("train", "/nowhere/run.toml")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "/nowhere/run.toml: there is no such file; give the path of a run's TOML file\n"


def test_a_summary_that_could_not_be_written_is_refused_before_the_run(run_toml: Path, tmp_path: Path) -> None:
    for json_file in (tmp_path, tmp_path / "missing" / "out.json"):
        done = engine("train", run_toml, "--run-dir", tmp_path / "run", "--json", json_file)
        assert done.returncode == 2
        assert done.stderr.startswith(f"--json {json_file} cannot be written")
        assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("how", [["--in-process"], pytest.param([], marks=pytest.mark.soak)], ids=["in-process", "ray"])
def test_a_missing_gpu_fails_the_run_at_once_and_is_named(
    run_toml: Path, tmp_path: Path, how: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    (tmp_path / "run.toml").write_text(run_toml.read_text().replace("[resources]", '[resources]\ndevice = "cuda"'))
    done = engine("train", tmp_path / "run.toml", "--run-dir", tmp_path / "run", *how)
    assert done.returncode == 1
    assert "error: resources.device = 'cuda': there is no GPU" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.soak  # test_checkpoint.py reads the same without a run
def test_a_checkpoint_without_a_manifest_is_read_with_a_warning_and_set_aside_if_that_fails(
    undisturbed: Any, run_toml: Path, tmp_path: Path
) -> None:
    shutil.copytree(undisturbed.folder, tmp_path / "run")
    newest = tmp_path / "run" / "checkpoints" / "step-000005"
    for manifest in newest.parent.glob("*/manifest.json"):
        manifest.unlink()
    os.truncate(newest / "trainer.pt", 1000)
    resume = ["train", run_toml, "--run-dir", tmp_path / "run", "--resume", "--in-process"]
    done = engine(*resume)
    assert done.returncode == 1
    assert "the checkpoint after step 5 has no manifest" in done.stdout
    assert f"error: the checkpoint after step 5 is damaged: {newest / 'trainer.pt'} cannot be read (" in done.stderr
    assert "Traceback" not in done.stderr
    again = engine(*resume)
    assert again.returncode == 0
    assert "the checkpoint after step 4 has no manifest" in again.stdout
    assert (newest / "model" / "model.safetensors").read_bytes() == undisturbed.weights(5)


def test_a_good_spec_is_reported_in_a_line(run_toml: Path) -> None:
    done = engine("check", run_toml)
    assert done.returncode == 0
    assert "small: 200 supervised steps, then 5 steps of 6 x 4 rollouts" in done.stdout


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (None, "recipe.stages.0.data.file = 'chat.jsonl': there is no such file in"),
        ('{"messages": [{"role": "robot", "content": "x"}]}\n', "chat.jsonl: line 1"),
    ],
)
@pytest.mark.parametrize("verb", ["check", "train"])
def test_the_files_of_stages_are_read_through_before_a_start(
    tmp_path: Path, verb: str, lines: str | None, words: str
) -> None:
    (tmp_path / "run.toml").write_text('name = "x"\n[recipe]\npreset = "sft-chat"\n')
    if lines is not None:
        (tmp_path / "chat.jsonl").write_text(lines)
    done = engine(verb, "run.toml", cwd=tmp_path)
    assert done.returncode == 2
    assert words in done.stderr


def test_a_run_without_rl_is_reported_by_its_supervised_steps_alone(tmp_path: Path) -> None:
    messages = [{"role": "user", "content": "1"}, {"role": "assistant", "content": "2"}]
    (tmp_path / "chat.jsonl").write_text(json.dumps({"messages": messages}))
    (tmp_path / "run.toml").write_text('name = "x"\n[recipe]\npreset = "sft-chat"\n')
    assert engine("check", "run.toml", cwd=tmp_path).stdout == "run.toml: fine. x: 600 supervised steps\n"


def test_the_schema_describes_every_field() -> None:
    schema = json.loads(engine("schema").stdout)
    assert schema["$defs"]["Schedule"]["properties"]["group_size"]["description"] == "Rollouts per prompt."


def test_two_runs_never_share_a_folder_and_a_resumed_run_stays_the_same(
    undisturbed: Any, run_toml: Path, tmp_path: Path
) -> None:
    again = engine("train", run_toml, "--run-dir", undisturbed.folder)
    assert again.returncode == 2
    assert "holds a run already: give --resume" in again.stderr
    nothing = engine("train", run_toml, "--run-dir", tmp_path / "empty", "--resume")
    assert nothing.returncode == 2
    assert "holds no run to resume" in nothing.stderr
    (tmp_path / "other.toml").write_text(run_toml.read_text().replace("group_size = 4", "group_size = 8"))
    other = engine("train", tmp_path / "other.toml", "--run-dir", undisturbed.folder, "--resume")
    assert other.returncode == 2
    assert "schedule.group_size = 8: the checkpoint was made with 4; give the old value" in other.stderr


def test_ctrl_c_cancels_keeps_the_checkpoint_and_says_how_to_go_on(training: Any) -> None:
    options = ["--in-process", "--json", str(training.folder) + ".json"]
    cancelled = training.signalled(signal.SIGINT, "sync-weights", 3, *options)
    assert cancelled.returncode == 130
    assert f"--run-dir {training.folder} --resume" in cancelled.stdout
    assert training.of_kind("finished")[0]["outcome"] == "cancelled"
    assert (training.folder / "checkpoints" / "step-000002" / "state.json").exists()
    summary = json.loads(Path(f"{training.folder}.json").read_text())
    assert summary["steps"] >= 2
    assert "before_rl" in summary["success_greedy"]
    assert "after" not in summary["success_greedy"]


def test_lines_are_printed_where_there_is_no_terminal(undisturbed: Any, run_toml: Path, tmp_path: Path) -> None:
    shutil.copytree(undisturbed.folder, tmp_path / "run")
    full = engine(
        "train", run_toml, "--run-dir", tmp_path / "run", "--resume", "--in-process", "--json", tmp_path / "out.json"
    )
    assert full.returncode == 0, full.stderr
    assert "succeeded\n" in full.stdout
    assert "\x1b" not in full.stdout
    assert json.loads((tmp_path / "out.json").read_text())["steps"] == 5


REFUSED = [
    (["chat", "--model", "nowhere"], "there is no such folder"),
    (["chat", "--model", "."], "config.json"),
    (["chat", "--run", "nowhere"], "there is no such run"),
    (["chat", "--run", "empty"], "holds no checkpoint"),
    (["serve-models", "run.toml"], "run.toml: models: Field required"),
    (["serve-models", "--model", "nowhere"], "there is no such folder"),
]


@pytest.mark.parametrize(("arguments", "words"), REFUSED, ids=[" ".join(arguments) for arguments, _ in REFUSED])
def test_a_command_that_refuses_its_input_does_not_load_torch(tmp_path: Path, arguments: list[str], words: str) -> None:
    (tmp_path / "empty" / "checkpoints").mkdir(parents=True)
    assert words in refused_without_loading(*arguments, cwd=tmp_path)


def test_a_chat_that_refuses_its_step_or_its_environment_does_not_load_torch(undisturbed: Any, tmp_path: Path) -> None:
    chat = ["chat", "--run", str(undisturbed.folder)]
    assert "the run has no checkpoint of this step" in refused_without_loading(*chat, "--step", "99", cwd=tmp_path)
    assert "learning_rate = 1: Extra" in refused_without_loading(*chat, "--environment", "run.toml", cwd=tmp_path)


@pytest.mark.parametrize("verb", ["check", "train"])
def test_a_bad_spec_is_refused_and_does_not_load_what_a_good_one_is_checked_with(tmp_path: Path, verb: str) -> None:
    libraries = ("numpy", "jsonschema", "psutil", "rich")
    assert "run.toml: learning_rate = 1" in refused_without_loading(verb, "run.toml", cwd=tmp_path, libraries=libraries)


def refused_without_loading(*arguments: str, cwd: Path, libraries: Sequence[str] = ("torch", "ray")) -> str:
    """What the command writes to stderr; ``run.toml`` is no run."""
    (cwd / "run.toml").write_text('name = "x"\nlearning_rate = 1\n')
    code = (
        "import sys; from engine.__main__ import main; print(main(sys.argv[1:]))\n"
        f"print([name for name in {libraries} if name in sys.modules])"
    )
    command, environment = [sys.executable, "-c", code, *arguments], {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-2:] == ["2", "[]"], done.stderr
    return done.stderr


def test_importing_the_loop_and_the_rollouts_does_not_load_torch_or_ray() -> None:
    code = (
        "import sys, engine.loop.loop, engine.rollout.worker\n"
        "import engine.cluster.sandboxes, engine.cluster.generator_client\n"
        "print([name for name in ('torch', 'ray', 'django') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
    code = code.replace("engine.loop.loop,", "engine.launch.job, engine.cluster.ray_workers,")
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "['ray']\n"
