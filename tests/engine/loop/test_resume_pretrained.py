"""A run of a pretrained model that is killed, or a rank of it, ends as one that is not."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM

from engine.launch.exit_codes import ATTEMPT_FAILED
from tests.engine.dying import losing_a_rank
from tests.engine.models.folders import folder_of
from tests.engine.trainings import Training, step_of

pytestmark = [pytest.mark.timeout(900), pytest.mark.slow]

RUN = """
name = "pretrained"
[environment]
id = "python-math"
levels = [1]
max_turns = 2
max_turn_tokens = 12
[model]
kind = "pretrained"
path = "{folder}"
context_tokens = 700
microbatch_tokens = 1024
[model.lora]
rank = 2
dropout = 0.1
[recipe]
preset = "grpo"
[[recipe.stages]]
steps = 3
batch_size = 4
[recipe.stages.data]
kind = "demonstrations"
count = 16
[resources]
threads = 1
kv_slots = 4
sandboxes = 2
[schedule]
steps = 3
prompts_per_step = 2
group_size = 2
minibatch_trajectories = 4
checkpoint_every = 1
[evaluation]
tasks = 2
interim_tasks = 2
every = 0
"""


@pytest.fixture
def toml(tmp_path: Path) -> Path:
    file = tmp_path / "run.toml"
    file.write_text(RUN.format(folder=folder_of("qwen3")))
    return file


@pytest.fixture
def trainings(toml: Path, tmp_path: Path) -> Iterator[tuple[Training, Training]]:
    with Training(toml, tmp_path / "killed") as killed, Training(toml, tmp_path / "through") as through:
        yield killed, through


@pytest.mark.soak  # the next one is resumed too, and test_resume.py compares the weights of the built-in model
def test_killed_and_resumed_a_run_ends_with_the_same_weights_in_a_folder_that_opens(
    trainings: tuple[Training, Training],
) -> None:
    killed, through = trainings
    through.finish("--in-process")
    killed.die("update", 2, "--in-process")
    killed.finish("--in-process", "--resume")
    last = [run.folder / "checkpoints" / "step-000003" / "model" for run in trainings]
    assert (last[0] / "model.safetensors").read_bytes() == (last[1] / "model.safetensors").read_bytes()
    AutoModelForCausalLM.from_pretrained(last[0])


def test_a_killed_run_goes_on_with_smaller_micro_batches_and_fewer_slots(toml: Path, tmp_path: Path) -> None:
    with Training(toml, tmp_path / "run") as training:
        training.die("update", 2, "--in-process")
        smaller = toml.read_text().replace("microbatch_tokens = 1024", "microbatch_tokens = 704")
        toml.write_text(smaller.replace("kv_slots = 4", "kv_slots = 2\nrollout_workers = 2"))
        training.finish("--in-process", "--resume")
        spec = training.state(3)["spec"]
        assert (spec["model"]["microbatch_tokens"], spec["resources"]["kv_slots"]) == (704, 2)
        assert [event["from_step"] for event in training.of_kind("started")] == [0, 1]
        trained = [event["trajectory"] for event in training.lineage() if event["kind"] == "trajectory"]
        assert sorted({step_of(one) for one in trained if one["purpose"] == "train"}) == [1, 2, 3]


@pytest.mark.soak  # test_learner_on_ray.py kills a rank, and above a run of such a model is resumed
def test_a_run_whose_rank_is_killed_fails_and_is_resumed_to_the_same_weights_with_nothing_twice(
    toml: Path, trainings: tuple[Training, Training]
) -> None:
    killed, through = trainings
    toml.write_text(toml.read_text().replace("[resources]", "[resources]\ntrainer_ranks = 2"))
    through.finish("--in-process")
    process = killed.start("--in-process", program=losing_a_rank("update", 2))
    output, _ = process.communicate()
    assert process.returncode == ATTEMPT_FAILED, output
    assert "rank 1 died" in output
    killed.finish("--in-process", "--resume")
    assert killed.weights(3) == through.weights(3)
    reported = [
        [event["trajectory"]["id"] for event in run.lineage() if event["kind"] == "trajectory"] for run in trainings
    ]
    assert reported[0] == reported[1]
    assert len(set(reported[0])) == len(reported[0])
