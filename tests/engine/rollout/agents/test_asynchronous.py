"""Agents in a run whose generation and training overlap, with a recipe that looks at turns and learns again."""

from collections import Counter
from pathlib import Path

import pytest

from tests.engine.trainings import Training

CODE = (Path(__file__).parent / "python_agent.py").read_text()
RUN = f"""
name = "agents"
seed = 3
[environment]
id = "agent"
max_turns = 4
max_turn_tokens = 12
[environment.tasks]
id = "python-math"
levels = [1]
sandbox = {{ network = "watched", snapshots = false, memory_mib = 256, processes = 32 }}
[environment.agent]
command = ["python3", "/tmp/agent/agent.py"]
[[environment.agent.files]]
path = "agent.py"
content = '''
{CODE}'''
[model]
layers = 1
hidden_size = 32
heads = 2
kv_heads = 1
head_dim = 16
intermediate_size = 64
context_tokens = 128
[recipe]
[recipe.credit]
kind = "gigpo"
[recipe.self_imitation]
replay_buffer = 1
warmup_steps = 1
[recipe.reward]
tool_error = 0.0
[[recipe.stages]]
data = {{kind = "demonstrations", count = 256, wrong_fraction = 0.5}}
steps = 60
batch_size = 16
learning_rate = 2e-3
[schedule]
async_ratio = 1
steps = 3
prompts_per_step = 2
group_size = 4
minibatch_trajectories = 8
[evaluation]
tasks = 4
interim_tasks = 4
every = 3
[resources]
threads = 1
kv_slots = 8
sandboxes = 4
"""


@pytest.mark.slow
@pytest.mark.soak  # test_training.py trains through agents, test_asynchronous_runs.py beside its own generation
@pytest.mark.timeout(300)
def test_agents_train_beside_their_own_generation_each_rollout_once_and_none_too_old(tmp_path):
    (tmp_path / "run.toml").write_text(RUN)
    with Training(tmp_path / "run.toml", tmp_path / "run") as training:
        training.finish("--in-process")
    rollouts = [event["trajectory"] for event in training.of_kind("trajectory")]
    learned = [rollout for rollout in rollouts if rollout["trained_at_step"] is not None]
    assert Counter(rollout["trained_at_step"] for rollout in learned) == {1: 8, 2: 8, 3: 8}
    assert len({rollout["id"] for rollout in learned}) == 24
    for rollout in learned:
        turns = [turn for segment in rollout["segments"] for turn in segment["turns"]]
        versions = [version for turn in turns for version in turn["policy_versions"]]
        assert rollout["sampled_at_version"] == min(versions)
        assert 0 <= rollout["trained_at_step"] - 1 - rollout["sampled_at_version"] <= 1
        assert all(len(turn["advantages"]) == len(turn["token_ids"]) == len(turn["old_logprobs"]) for turn in turns)
    steps = [event["values"] for event in training.of_kind("metric") if "agents/done" in event["values"]]
    assert sum(values["agents/done"] for values in steps) >= 24
    ages = Counter(rollout["trained_at_step"] - 1 - rollout["sampled_at_version"] for rollout in learned)
    shares = [event["values"] for event in training.of_kind("metric") if "staleness/1" in event["values"]]
    assert [values["staleness/0"] + values["staleness/1"] for values in shares] == [1.0] * 3
    assert sum(values["staleness/1"] for values in shares) == ages[1] / 8
