"""Libraries that we did not write, each unchanged in a venv of its own: rewards are those that they give themselves."""

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from devtools.protocol_venvs import VARIABLE
from engine.environments.contract import Environment
from engine.environments.imported import UnusableEnvironment
from engine.environments.registry import environment_for
from engine.spec.foreign_environments import Gem, OpenEnv, ProcessLimits, VerifiersTaskset
from engine.spec.message import AssistantMessage
from engine.spec.run import Dataset

pytestmark = pytest.mark.protocols
ROOT = Path(__file__).parents[4]
ROOM = ProcessLimits(memory_mib=8192, processes=512, start_timeout_s=240, call_timeout_s=120)
GUESSES = ["\\boxed{5}", "\\boxed{2}", "\\boxed{8}", "\\boxed{1}", "nonsense", "\\boxed{7}"]
ENV_IDS = ["game:GuessTheNumber-v0-easy", "game:Mastermind-v0-easy", "game:Sudoku-v0-easy", "game:TowerofHanoi-v0-easy"]
PLAYED_BY_GEM = """
import gem, json, sys
env_id, seeds, actions = json.loads(sys.argv[1])
for seed in seeds:
    env, total, seen = gem.make(env_id), 0.0, []
    seen.append(str(env.reset(seed=seed)[0]))
    for action in actions:
        observation, reward, terminated, truncated, _ = env.step(action)
        total, seen = total + float(reward), [*seen, str(observation)]
        if terminated or truncated:
            break
    print(json.dumps([seen, total]))
"""
TASKSET = """
import verifiers.v1 as vf

class AddingData(vf.TaskData):
    answer: str

class AddingTask(vf.Task[AddingData]):
    @vf.reward(weight=1.0)
    async def right(self, trace: vf.Trace) -> float:
        return float(trace.last_reply == self.data.answer)

    @vf.reward(weight=0.25)
    async def short(self, trace: vf.Trace) -> float:
        return 1.0 / max(1, len(trace.last_reply))

class AddingConfig(vf.TasksetConfig):
    num_tasks: int = 5

class AddingTaskset(vf.Taskset[AddingTask, AddingConfig]):
    def load(self):
        return [
            AddingTask(AddingData(prompt=f"{n}+{n}=?", answer=str(2 * n), system_prompt="Add."), self.config.task)
            for n in range(self.config.num_tasks)
        ]

class NeedyTask(AddingTask):
    @vf.reward
    async def ran(self, runtime) -> float:
        return 1.0

class NeedyTaskset(vf.Taskset[NeedyTask, AddingConfig]):
    def load(self):
        return [NeedyTask(AddingData(prompt="x", answer="y"), self.config.task)]
"""
SCORED_BY_VERIFIERS = """
import asyncio, json, sys
sys.path.insert(0, sys.argv[1])
from palestra_env.adapters.verifiers_tasksets import trace_of
from adding_taskset import AddingConfig, AddingTaskset
for task, reply in zip(AddingTaskset(AddingConfig(num_tasks=4)), json.loads(sys.argv[2])):
    trace = trace_of(task, reply)
    asyncio.run(task.score(trace))
    print(trace.reward)
"""
SERVER = """
import sys
from openenv.core.env_server.http_server import create_fastapi_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State
import uvicorn

class Say(Action):
    message: str

class Heard(Observation):
    text: str

class Counting(Environment):
    SUPPORTS_CONCURRENT_SESSIONS = True
    def reset(self, seed=None, episode_id=None, **_):
        self.hidden, self.steps = seed % 7, 0
        return Heard(text="a number below 7?")
    def step(self, action, timeout_s=None, **_):
        self.steps += 1
        right = action.message == str(self.hidden)
        return Heard(text="yes" if right else "no", reward=1.0 / self.steps if right else -0.125, done=right)
    @property
    def state(self):
        return State(step_count=self.steps)

app = create_fastapi_app(Counting, Say, Heard, max_concurrent_envs=16)
uvicorn.run(app, port=int(sys.argv[1]), log_level="warning")
"""
ROCK_CLIENT = """
import json, os, sys
os.environ["ROCK_BASE_URL"] = sys.argv[1]
from rock.sdk.envs.rock_env import RockEnv
env = RockEnv("crates")
seen, info = env.reset(seed=int(sys.argv[2]))
for action in json.loads(sys.argv[3]):
    last = env.step(action)
env.close()
print(json.dumps([seen, *last[1:4]]))
"""
OPENENV_CLIENT = """
import json, sys
from openenv.core.generic_client import GenericEnvClient
with GenericEnvClient(base_url=sys.argv[1] + "/openenv/crates").sync() as env:
    seen = env.reset(seed=int(sys.argv[2])).observation["text"]
    for action in json.loads(sys.argv[3]):
        last = env.step(json.loads(action))
print(json.dumps([seen, last.reward, last.done, last.observation["info"]["truncated"]]))
"""


@pytest.fixture(autouse=True)
def venvs() -> None:
    if VARIABLE not in os.environ:
        pytest.skip("the libraries' own environments are made by: ./dev test protocols")


def python_of(name: str) -> str:
    return str(Path(os.environ[VARIABLE]) / name / "bin" / "python")


def printed(name: str, code: str, *arguments: str) -> list[str]:
    """What the library's own interpreter prints."""
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "HOME": os.environ.get("HOME", "/")}
    done = subprocess.run(
        [python_of(name), "-c", code, *arguments], capture_output=True, text=True, env=environment, timeout=250
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


async def played(environment: Environment, number: int, texts: list[str]) -> tuple[list[str], float]:
    async with environment.session(environment.tasks("train")[number], None) as session:  # type: ignore[arg-type]
        seen = [message.content for message in await session.reset()]
        for text in texts:
            observation = await session.act(AssistantMessage(text))
            seen += [message.content for message in observation.messages]
            if observation.done:
                break
        rewards = await session.score()
        return seen, float(rewards.success) + sum(rewards.components.values())


@pytest.mark.parametrize("env_id", ENV_IDS)
async def test_the_rewards_of_gem_are_those_that_gem_gives(env_id: str) -> None:
    described = Gem(env_id=env_id, python=python_of("gem"), process=ROOM)
    environment = environment_for(described, Dataset(train_tasks=20, heldout_tasks=5))
    expected = printed("gem", PLAYED_BY_GEM, json.dumps([env_id, list(range(8)), GUESSES]))
    totals = set()
    for number, line in enumerate(expected):
        own_seen, own_total = json.loads(line)
        seen, total = await played(environment, number, GUESSES)
        assert total == pytest.approx(own_total, abs=1e-12)
        assert len(seen) == len(own_seen)
        assert all(text.startswith(own) for text, own in zip(seen, own_seen, strict=True))
        totals.add(own_total)
    assert totals


def test_what_gem_does_not_know_is_refused() -> None:
    with pytest.raises(UnusableEnvironment, match="not found in registry"):
        environment_for(Gem(env_id="game:Nothing-v0", python=python_of("gem"), process=ROOM), Dataset())


@pytest.fixture
def taskset(venvs: None, tmp_path: Path) -> Iterator[Path]:
    """Installed into the library's environment, as its users install theirs."""
    (site,) = (Path(python_of("verifiers")).parents[1] / "lib").glob("python*/site-packages")
    module = site / "adding_taskset.py"
    module.write_text(TASKSET)
    yield module
    module.unlink()


async def test_the_rewards_of_a_taskset_are_those_that_verifiers_gives(taskset: Path) -> None:
    described = VerifiersTaskset(
        taskset="adding_taskset:AddingTaskset", python=python_of("verifiers"), config='{"num_tasks": 5}', process=ROOM
    )
    environment = environment_for(described, Dataset())
    assert (len(environment.tasks("train")), len(environment.tasks("heldout"))) == (4, 1)
    replies = ["0", "3", "4", "a long reply"]
    own = [float(line) for line in printed("verifiers", SCORED_BY_VERIFIERS, str(taskset.parent), json.dumps(replies))]
    for number, (reply, expected) in enumerate(zip(replies, own, strict=True)):
        seen, total = await played(environment, number, [reply])
        assert seen == ["Add.", f"{number}+{number}=?"]
        assert total == pytest.approx(expected, abs=1e-12)
    assert own == pytest.approx([1.25, 0.25, 1.25, 0.25 / 12])


def test_a_taskset_that_needs_what_is_not_played_is_refused_by_name(taskset: Path) -> None:
    described = VerifiersTaskset(taskset="adding_taskset:NeedyTaskset", python=python_of("verifiers"), process=ROOM)
    with pytest.raises(UnusableEnvironment, match=r"NeedyTask\.ran needs a runtime"):
        environment_for(described, Dataset())


PROJECT = """
[project]
name = "{name}"
version = "1"
dependencies = ["{needs}"]
"""


WITHOUT_WHEELS = ("cellpylib==2.4.0", "pycosat==0.6.6", "zss==1.2.0")
"""What GEM's library needs in the end, and no index has wheels of: whoever runs the engine makes them."""


def checked_package(folder: Path, needs: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """What the command says of a package that has a library as a dependency."""
    (folder / "src").mkdir(parents=True)
    (folder / "pyproject.toml").write_text(PROJECT.format(name=folder.name, needs=needs))
    (folder / "src" / "adding_taskset.py").write_text(TASKSET)
    room = ["--memory-mib", str(ROOM.memory_mib), "--processes", str(ROOM.processes)]
    command = [sys.executable, "-m", "engine", "environment", "check", str(folder), *arguments, *room]
    environment = os.environ | {"PALESTRA_HOME": str(folder.parent / "home"), "PIP_FIND_LINKS": str(folder.parent)}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=280)


def needed(name: str, distribution: str) -> str:
    (version,) = printed(name, f"import importlib.metadata as m; print(m.version({distribution!r}))")
    return f"{distribution}=={version}"


def test_a_package_that_needs_verifiers_brings_its_taskset(tmp_path: Path) -> None:
    folder = tmp_path / "adding"
    taskset = ("--taskset", "adding_taskset:AddingTaskset", "--options", '{"num_tasks": 5}')
    done = checked_package(folder, needed("verifiers", "verifiers"), *taskset)
    assert (done.returncode, "tasks: 4 train, 1 heldout" in done.stdout) == (0, True), done.stdout + done.stderr


def test_a_package_that_needs_gem_plays_one_of_its_environments(tmp_path: Path) -> None:
    folder = tmp_path / "guessing"
    wheels = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(tmp_path)]
    subprocess.run([*wheels, *WITHOUT_WHEELS], check=True, timeout=200)
    done = checked_package(folder, needed("gem", "gem-llm"), "--env-id", ENV_IDS[0])
    assert (done.returncode, "tasks: 100 train, 100 heldout" in done.stdout) == (0, True), done.stdout + done.stderr


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def reachable(process: "subprocess.Popen[Any]", url: str) -> str:
    for _ in range(1200):
        assert process.poll() is None
        try:
            httpx.get(url)
            return url
        except httpx.TransportError:
            time.sleep(0.1)
    raise AssertionError(f"{url} never answered")


@pytest.fixture
def openenv_server(venvs: None) -> Iterator[str]:
    port = free_port()
    process = subprocess.Popen([python_of("openenv"), "-c", SERVER, str(port)])
    yield reachable(process, f"http://127.0.0.1:{port}")
    process.terminate()
    process.wait()


async def test_an_episode_of_an_openenv_server_is_played(openenv_server: str) -> None:
    described = OpenEnv(url=openenv_server, observation_field="text")
    environment = environment_for(described, Dataset(train_tasks=20, heldout_tasks=5))
    for number in (0, 3, 5):
        hidden = number % 7
        guesses = [str(guess) for guess in range(7)]
        seen, total = await played(environment, number, guesses)
        assert seen == ["a number below 7?", *["no"] * hidden, "yes"]
        assert total == pytest.approx(1.0 / (hidden + 1) - 0.125 * hidden)


@pytest.fixture
def our_server(venvs: None, tmp_path: Path) -> Iterator[str]:
    (tmp_path / "crates.toml").write_text('name = "crates"\n[environment]\nid = "sokoban"\n')
    port = free_port()
    command = [sys.executable, "-m", "engine", "serve-environments", str(tmp_path / "crates.toml"), "--port", str(port)]
    process = subprocess.Popen(command, cwd=ROOT)
    yield reachable(process, f"http://127.0.0.1:{port}")
    process.terminate()
    process.wait()


@pytest.mark.parametrize(("client", "code"), [("rock", ROCK_CLIENT), ("openenv", OPENENV_CLIENT)])
def test_clients_that_we_did_not_write_play_our_environments(our_server: str, client: str, code: str) -> None:
    from random import Random

    from engine.spec.run import RunSpec

    spec = RunSpec.model_validate({"name": "crates", "environment": {"id": "sokoban"}})
    environment: Any = environment_for(spec.environment, spec.dataset)
    script = environment.script(environment.tasks("train")[4], "solve", Random(0))
    actions = [
        json.dumps({"tool": request.name, "arguments": dict(request.arguments)})
        for turn in script.turns
        for request in turn.message.requests
    ]
    *_, line = printed(client, code, our_server, "4", json.dumps(actions))
    assert json.loads(line) == [script.opening[0].content, 1.0, True, False]
