"""What is in the process of a run: what its own spec asks for, and nothing that only other runs need."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
RUN = """\
name = "loaded"
seed = 0
[environment]
id = "python-math"
[dataset]
train_tasks = 100
heldout_tasks = 20
[model]
layers = 1
hidden_size = 24
heads = 2
kv_heads = 1
head_dim = 12
intermediate_size = 48
[recipe]
preset = "grpo"
[[recipe.stages]]
steps = 2
batch_size = 8
[recipe.stages.data]
kind = "demonstrations"
count = 16
[resources]
threads = 1
rollout_workers = 1
sandboxes = 2
[schedule]
steps = 2
prompts_per_step = 2
group_size = 2
minibatch_trajectories = 4
[evaluation]
tasks = 2
interim_tasks = 2
"""
PROGRAM = """\
import json, sys
from engine.__main__ import main
code = main(["train", sys.argv[1], "--in-process", "--run-dir", sys.argv[2]])
open(sys.argv[3], "w").write(json.dumps(sorted(sys.modules)))
sys.exit(code)
"""


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """The modules of a process that has trained a built-in model in the sample's environment, checkpoints included."""
    folder = tmp_path_factory.mktemp("loaded")
    spec, modules = folder / "run.toml", folder / "modules.json"
    spec.write_text(RUN)
    command = [sys.executable, "-c", PROGRAM, str(spec), str(folder / "run"), str(modules)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=300)
    return set(json.loads(modules.read_text()))


LIBRARIES = {
    "the compiler of torch": {"torch._dynamo", "sympy"},
    "networks and tokenizers of model folders": {"transformers", "peft", "tokenizers", "jinja2"},
    "a cluster": {"ray"},
    "judges and servers": {"httpx", "h11", "websockets", "fastapi", "uvicorn"},
    "datasets of a team": {"pyarrow", "datasets", "sqlite3"},
}


@pytest.mark.parametrize("libraries", LIBRARIES.values(), ids=LIBRARIES)
def test_a_run_of_a_builtin_model_loads_no_library_that_only_other_runs_need(
    loaded: set[str], libraries: set[str]
) -> None:
    assert "torch" in loaded, "it trained"
    assert loaded & libraries == set()


def test_a_run_loads_its_own_environment_and_no_other(loaded: set[str]) -> None:
    environments = {"household", "sokoban", "webshop", "search_qa", "apps", "terminal", "qa", "openenv", "process"}
    assert "engine.environments.python_math" in loaded
    assert loaded & {f"engine.environments.{name}" for name in environments} == set()
