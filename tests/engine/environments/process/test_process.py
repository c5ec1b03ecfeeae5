"""An environment in a process of its own does what the same code does beside the engine, and outlives its losses."""

import asyncio
import json
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from engine.environments.contract import EnvironmentProcessLost, Restorable, VerifierFailed
from engine.environments.imported import UnusableEnvironment
from engine.environments.mixture import MixtureEnvironment
from engine.environments.process.checking import NoSandboxes, checked
from engine.environments.process.connection import RaisedInProcess
from engine.environments.process.environment import ProcessEnvironment
from engine.environments.process.package import package_environment, program_of
from engine.environments.process.source import package_at
from engine.rollout.checked_session import CheckedSession
from engine.rollout.episode import Arena, run_episode
from engine.rollout.faults import EnvironmentLost
from engine.rollout.requests import EpisodeRequest
from engine.spec.foreign_environments import Package
from engine.spec.message import AssistantMessage, Message, ToolRequest
from engine.spec.mixture import Mixture
from engine.spec.recipe import Reward
from engine.spec.run import Dataset
from tests.engine.rollout.scripted import RENDERER, ScriptedPolicy

Make = Callable[..., ProcessEnvironment]
ONE_CALL = AssistantMessage(requests=(ToolRequest("do", {"a": [1, None, "x"]}, "call-9"),))


async def answered(environment: ProcessEnvironment, *texts: str, task: int = 0) -> Any:
    """What the last of these answers led to, in an episode of its own."""
    async with environment.session(environment.tasks("train")[task], None) as session:  # type: ignore[arg-type]
        await session.reset()
        for text in texts:
            observation = await session.act(AssistantMessage(text))
        return observation


async def test_an_episode_is_played_in_the_process(environment_of: Make) -> None:
    environment = environment_of()
    task = environment.tasks("heldout")[7]
    assert (task.id, task.split, task.question, task.answer) == ("heldout-7", "heldout", "question 7", "7")
    assert [tool.name for tool in environment.tools(task)] == ["do"]
    async with environment.session(task, None) as session:  # type: ignore[arg-type]
        assert await session.reset() == [Message("user", "question 7")]
        observation = await session.act(ONE_CALL)
        (call,) = observation.calls
        assert (call.id, call.name, call.arguments, call.seconds) == ("call-9", "do", {"a": [1, None, "x"]}, 0.5)
        assert observation.messages == (Message("tool", "{'a': [1, None, 'x']}", "do", "call-9"),)
        assert (await session.score()).components == {"turns": 1.0}


async def test_snapshots_stay_in_the_process_and_set_an_episode_back(environment_of: Make) -> None:
    environment = environment_of()
    async with environment.session(environment.tasks("train")[0], None) as session:  # type: ignore[arg-type]
        assert isinstance(session, Restorable)
        kept = await session.snapshot()
        await session.act(AssistantMessage("one"))
        await session.restore(kept)
        assert (await session.score()).components == {"turns": 0.0}
        await session.drop(kept)


async def test_many_episodes_are_played_at_once_and_none_waits_for_another(environment_of: Make) -> None:
    meeting = """
waiting, met = [], []
async def act(play, text):
    waiting.append(play)
    while len(waiting) < 40: await asyncio.sleep(0.001)
    return Observation(done=True)
"""
    environment = environment_of(meeting)
    observations = await asyncio.gather(*(answered(environment, "x", task=number) for number in range(40)))
    assert all(observation.done for observation in observations)


def test_tasks_are_fetched_when_they_are_asked_for(environment_of: Make) -> None:
    environment = environment_of(options='{"size": 10000}')
    tasks = environment.tasks("train")
    assert (len(tasks), tasks[7_777].id, tasks[-1].id) == (10_000, "train-7777", "train-9999")
    assert [task.id for task in tasks[62:66]] == ["train-62", "train-63", "train-64", "train-65"]
    with pytest.raises(IndexError):
        tasks[10_000]


async def test_tasks_with_long_questions_come_in_as_many_answers_as_they_need(environment_of: Make) -> None:
    long = """
def tasks(self, split):
    return [Task(f"{split}-{i}", split, 1, str(i) * 2**20, "") for i in range(6)]
Acting.tasks = tasks
"""
    environment = environment_of(long)
    assert environment.tasks("heldout")[5].question == "5" * 2**20
    assert [task.question[0] for task in environment.tasks("train")] == list("012345")
    assert (await checked(environment._kept.program)).faults == []


async def test_a_task_that_was_fetched_and_its_tools_wait_for_nothing(
    environment_of: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    part = {"weight": 1, "environment": {"id": "sokoban"}}
    mixture = Mixture.model_validate({"id": "mixture", "parts": [part | {"name": "a"}, part | {"name": "b"}]})
    environment = MixtureEnvironment(mixture, Dataset(), [environment_of(options='{"size": 3}')] * 2)
    await environment.fetch("train", 7)
    monkeypatch.setattr("engine.environments.process.environment.waited", lambda work: pytest.fail("it waits"))
    [tool] = environment.tools(environment.tasks("train")[7])
    assert tool.name == "do"


async def test_what_many_episodes_want_at_once_is_asked_once(environment_of: Make) -> None:
    counting = """
asked = 0
def tasks(self, split):
    global asked
    asked += 1
    return [Task(f"{split}-{i}", split, 1, "", "") for i in range(100)]
Acting.tasks = tasks
Acting.tools = lambda self, task: [ToolSchema("do", f"asked {asked} times")]
"""
    environment = environment_of(counting)
    assert len(environment.tasks("train")) == 100
    await asyncio.gather(*(environment.fetch("train", number) for number in range(40)))
    assert environment.tools(environment.tasks("train")[50])[0].description == "asked 2 times"


async def test_no_other_episode_waits_while_a_process_hangs_over_a_task(environment_of: Make) -> None:
    hang = "Acting.tools = lambda self, task: time.sleep(3600)"
    environment = environment_of(hang, process={"call_timeout_s": 0.5})
    arena = Arena(environment, RENDERER, ScriptedPolicy(), NoSandboxes(), Reward(), 5, 32, 160)
    episode = asyncio.create_task(run_episode(EpisodeRequest("train", 0, 0, 0, "train", 0, 1.0, 11), arena))
    await asyncio.sleep(0)
    assert not episode.done()
    with pytest.raises(EnvironmentLost, match="no answer to tools within 0.5 s"):
        await episode


async def test_an_exception_costs_its_own_episode_and_its_process_goes_on(environment_of: Make) -> None:
    environment = environment_of("async def act(play, text):\n    raise ZeroDivisionError(text)")
    with pytest.raises(RaisedInProcess, match="ZeroDivisionError: first"):
        await answered(environment, "first")
    with pytest.raises(RaisedInProcess, match="ZeroDivisionError: second"):
        await answered(environment, "second")
    assert environment.starts == 1


async def test_a_verifier_that_fails_is_no_fault_of_the_policy(environment_of: Make) -> None:
    environment = environment_of("async def act(play, text):\n    raise VerifierFailed('no reward')")
    with pytest.raises(VerifierFailed, match="no reward"):
        await answered(environment, "x")


async def test_a_crash_ends_the_episodes_in_it_and_the_next_one_finds_a_new_process(environment_of: Make) -> None:
    crash = """
async def act(play, text):
    if text == "crash":
        print("the world ended", file=sys.stderr, flush=True)
        os._exit(3)
    await asyncio.sleep(3600)
"""
    environment = environment_of(crash)
    bystander = asyncio.create_task(answered(environment, "wait"))
    await asyncio.sleep(0)
    with pytest.raises(EnvironmentProcessLost, match=r"acting 1.0: it ended; it printed last: the world ended"):
        await answered(environment, "crash")
    with pytest.raises(EnvironmentProcessLost):
        await bystander
    assert (environment.starts, environment.tasks("train")[99].id) == (1, "train-99")
    with pytest.raises(EnvironmentProcessLost):
        await answered(environment, "crash")
    assert environment.starts == 2


async def test_episodes_that_end_before_a_crash_are_scored_however_many_end_at_once(environment_of: Make) -> None:
    seventh_ends_it = """
scored = 0

async def act(play, text):
    time.sleep(1)
    return Observation(done=True)

async def score(play):
    global scored
    scored += 1
    if scored == 7:
        os._exit(3)
    return Rewards(True, {})

Play.score = score
"""
    environment = environment_of(seventh_ends_it)
    tasks = environment.tasks("train")[:17]
    async with AsyncExitStack() as opened:
        sessions = [await opened.enter_async_context(environment.session(task, None)) for task in tasks]  # type: ignore[arg-type]
        busy = asyncio.create_task(sessions[0].act(AssistantMessage("while the others ask")))
        await asyncio.sleep(0.2)
        scores = await asyncio.gather(*(session.score() for session in sessions[1:]), return_exceptions=True)
        assert (await busy).done
    losses = [score for score in scores if isinstance(score, EnvironmentProcessLost)]
    assert (len(scores) - len(losses), {loss.finished_episodes for loss in losses}) == (6, {6})


async def test_what_a_run_reads_of_a_crash_is_an_environment_that_was_lost(environment_of: Make) -> None:
    environment = environment_of("async def act(play, text):\n    os._exit(3)")
    task = environment.tasks("train")[0]
    async with environment.session(task, None) as session:  # type: ignore[arg-type]
        with pytest.raises(EnvironmentLost, match="acting 1.0: it ended"):
            await CheckedSession(session, environment.tools(task)).act(AssistantMessage("x"))


async def test_a_process_that_crashes_at_its_start_later_on_is_tried_again_for_every_episode(
    environment_of: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = environment_of("async def act(play, text):\n    os._exit(3)")
    with pytest.raises(EnvironmentProcessLost):
        await answered(environment, "x")
    module = next(Path(here) for here, inside in environment._kept.program.folders if inside == "/environment")
    (module / "src" / "acting.py").write_text("raise OSError('gone')")
    for _ in range(3):
        with pytest.raises(RaisedInProcess, match="OSError: gone"):
            await answered(environment, "x")
    assert environment.starts == 1


async def test_a_hang_ends_the_process_after_the_limit(environment_of: Make) -> None:
    hang = "async def act(play, text):\n    while True: pass"
    environment = environment_of(hang, process={"call_timeout_s": 0.5})
    with pytest.raises(EnvironmentProcessLost, match="no answer to act within 0.5 s"):
        await answered(environment, "x")
    assert environment.tasks("train")[0].id == "train-0"


async def test_an_episode_that_is_cancelled_leaves_the_process_alive(environment_of: Make) -> None:
    waiting = """
async def act(play, text):
    await asyncio.sleep(3600 if text == "long" else 0)
    return Observation(done=True)
"""
    environment = environment_of(waiting)
    episode = asyncio.create_task(answered(environment, "long"))
    await asyncio.sleep(0.05)
    episode.cancel()
    with pytest.raises(asyncio.CancelledError):
        await episode
    assert (await answered(environment, "short")).done
    assert environment.starts == 1


@pytest.mark.parametrize(
    ("ending", "beginning", "fields", "reported"),
    [
        ("", "raise ImportError('no such library')", {}, "ImportError: no such library"),
        ("", "os._exit(4)", {}, "it ended"),
        ("", "while True: pass", {"process": {"start_timeout_s": 0.5}}, "no answer to start within 0.5 s"),
        ("", "", {"options": '{"colour": 1, "size": []}', "entry": "acting:Play"}, "TypeError"),
        ("", "", {"entry": "acting:Nothing"}, "AttributeError"),
        ("", "", {"entry": "nowhere:Acting"}, "ModuleNotFoundError"),
        ("", "", {"entry": "acting:asyncio.Lock"}, "no environment: it has no method tasks, tools, session"),
    ],
)
def test_a_package_that_never_starts_is_refused_with_its_reason(
    environment_of: Make, ending: str, beginning: str, fields: dict[str, Any], reported: str
) -> None:
    with pytest.raises(UnusableEnvironment) as refused:
        environment_of(ending, beginning, **fields)
    assert refused.value.problem.field == "environment.path"
    assert reported in refused.value.problem.message


def test_a_package_that_is_not_the_pinned_one_is_refused(environment_of: Make, package: Callable[..., Path]) -> None:
    digest = package_at(package()).digest
    assert len(environment_of(digest=digest).tasks("train")) == 100
    with pytest.raises(UnusableEnvironment, match=r"environment\.digest"):
        environment_of("# changed", digest=digest)


def test_a_changed_package_is_another_installation(
    package: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PALESTRA_HOME", str(tmp_path / "home"))
    first, again = (program_of(Package(path=str(package()))) for _ in range(2))
    other = program_of(Package(path=str(package("# changed"))))
    assert first == again
    assert first.folders != other.folders


def test_without_bubblewrap_nothing_of_a_package_runs(
    package: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PALESTRA_HOME", str(tmp_path / "home"))
    monkeypatch.setattr("sandboxes.backends.namespaces.probe.SYSTEM_PATH", str(tmp_path))
    with pytest.raises(UnusableEnvironment, match="bwrap is not installed"):
        package_environment(Package(path=str(package())))


@pytest.mark.parametrize("options", ["[1]", "nonsense", "{", json.dumps("text")])
def test_options_are_a_json_object(options: str) -> None:
    with pytest.raises(ValueError, match="JSON"):
        Package(path="x", options=options)
