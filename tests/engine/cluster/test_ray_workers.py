"""What a run's members on Ray are asked and when, with plain objects in the place of actors."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ray.exceptions import RayActorError, RayTaskError

from engine.cluster import ray_workers
from engine.cluster.generator_client import GeneratorLost
from engine.cluster.ray_actors import GeneratorActor
from engine.cluster.ray_workers import RayWorkers
from engine.rollout.requests import EpisodeRequest
from engine.rollout.worker import Collected
from engine.spec.run import RunSpec
from tests.engine.groups import requests_of


class Actor:
    """Its methods are called as those of an actor's handle: ``actor.method.remote(...)``."""

    def __init__(self, **methods: Callable[..., Any]) -> None:
        for name, method in methods.items():
            setattr(self, name, _Remote(method))


class _Remote:
    def __init__(self, method: Callable[..., Any]) -> None:
        self.remote = lambda *given: asyncio.ensure_future(method(*given))


async def nothing(*_: Any) -> None: ...


async def reading() -> Any:
    return SimpleNamespace(pid=1)


async def dead(*_: Any) -> None:
    raise RayActorError


@pytest.fixture
def spec(small_spec: RunSpec) -> RunSpec:
    return small_spec.model_copy(
        update={"resources": small_spec.resources.model_copy(update={"rollout_workers": 1, "decoders": 1})}
    )


@pytest.fixture
def reported() -> list[str]:
    return []


@pytest.fixture
def workers(spec: RunSpec, tmp_path: Path, reported: list[str]) -> Any:
    return RayWorkers(
        spec,
        name="t",
        connection=nullcontext(),
        report=lambda _, message: reported.append(message),
        security_log=tmp_path,
    )


class TestGroupWhoseGeneratorDies:
    """Its successor takes a while."""

    @pytest.fixture
    def played(self) -> list[int]:
        return []

    @pytest.fixture
    def events(
        self, workers: Any, played: list[int], monkeypatch: pytest.MonkeyPatch
    ) -> tuple[asyncio.Event, asyncio.Event]:
        """The replacement begins, and may end."""
        begun, renewed = asyncio.Event(), asyncio.Event()

        async def collect_group(requests: Sequence[EpisodeRequest], *_: Any) -> Collected:
            played.append(requests[0].prompt)
            if not renewed.is_set():
                raise GeneratorLost("generator died")
            return Collected(unused_tokens=7)

        async def node_id() -> str:
            begun.set()
            await renewed.wait()
            return "node"

        workers._actors["rollout-0"] = Actor(collect_group=collect_group, abort_group=nothing, reading=reading)
        workers._actors["generator"] = Actor(reading=dead)
        monkeypatch.setattr(workers, "_made", lambda name: Actor(reading=reading, node_id=node_id))
        return begun, renewed

    @pytest.mark.parametrize("aborted", [False, True])
    async def test_only_one_that_is_still_wanted_is_played_again(
        self,
        workers: Any,
        spec: RunSpec,
        played: list[int],
        events: tuple[asyncio.Event, asyncio.Event],
        *,
        aborted: bool,
    ) -> None:
        begun, renewed = events
        group = [request for request in requests_of(spec, 1) if request.prompt == 0]
        playing = asyncio.create_task(workers.collect_group(group, enough=4, fewest=2))
        await begun.wait()
        if aborted:
            await workers.abort_group((0, 0))
        renewed.set()
        collected = await playing
        assert played == ([0] if aborted else [0, 0])
        assert (collected.unused_rollouts, collected.unused_tokens) == ((len(group), 0) if aborted else (0, 7))
        assert workers._groups == {}


class TestClose:
    @pytest.fixture
    def killed(self, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
        killed: list[Any] = []
        monkeypatch.setattr(ray_workers.ray, "kill", killed.append)
        return killed

    async def test_sandboxes_are_closed_then_generator_and_judge_and_all_are_killed(
        self, workers: Any, killed: list[Any], reported: list[str]
    ) -> None:
        closed: list[str] = []

        def closing(name: str) -> Callable[..., Any]:
            async def close() -> None:
                await asyncio.sleep(0)
                closed.append(name)

            return close

        for name in ("learner", "generator", "judge", "rollout-0"):
            workers._actors[name] = Actor(close=closing(name))
            workers._nodes[name] = "node"
        actors = list(workers._actors.values())
        await workers.close()
        assert closed == ["rollout-0", "generator", "judge"]
        assert killed == actors
        assert reported == []

    async def test_one_that_cannot_be_closed_is_reported_and_the_others_end_all_the_same(
        self, workers: Any, killed: list[Any], reported: list[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(ray_workers, "CLOSING_SERVERS_S", 0.05)

        async def failing() -> None:
            raise RayTaskError("close", "", OSError("the disk is gone"))

        async def hanging() -> None:
            await asyncio.Event().wait()

        async def nobody_asks() -> None:
            raise AssertionError("it never came up")

        members = {"rollout-0": failing, "generator": hanging, "judge": dead, "learner": nobody_asks}
        for name, close in members.items():
            workers._actors[name] = Actor(close=close)
            workers._nodes[name] = "node"
        await workers.close()
        assert reported == [
            "rollout-0 could not be closed: the disk is gone",
            "generator is killed before it was closed: that took more than 0 s",
        ]
        assert len(killed) == 4
        workers._nodes.clear()
        workers._actors["generator"] = Actor(close=nobody_asks)
        await workers.close()
        assert len(killed) == 5


class Loading:
    """A generator of servers that somebody else goes on with; weights never arrive."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    async def suspend(self) -> None:
        self.calls.append("suspend")

    async def load_weights(self, source: Any, version: int) -> None:
        self.calls.append("load")
        await asyncio.Event().wait()

    async def resume(self) -> None:
        self.calls.append("resume")

    def close(self) -> None:
        self.calls.append("close")


async def test_a_generator_that_is_closed_while_it_is_given_weights_leaves_nobody_suspended(
    spec: RunSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    generator = Loading()
    monkeypatch.setattr("engine.cluster.generators.generator_for", lambda *_, **__: generator)
    actor = GeneratorActor(spec, "generator")
    loading = asyncio.create_task(actor.load_weights(None, 1))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    await actor.close()
    assert generator.calls == ["suspend", "load", "resume", "close"]
    with pytest.raises(asyncio.CancelledError):
        await loading
