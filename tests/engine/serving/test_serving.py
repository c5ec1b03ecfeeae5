"""Environments are played over GEM and OpenEnv with their own rewards, several at once, by who may."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from starlette.testclient import TestClient
from starlette.websockets import WebSocketDisconnect

from engine.environments.contract import Demonstrator
from engine.environments.registry import environment_for
from engine.launch.preflight import BadSpec
from engine.serving.app import BODY_BYTES, application
from engine.serving.command import parser, serve
from engine.serving.episodes import Episodes, Limits, Served, ServingRefused, message_of, pool_of
from engine.spec.message import AssistantMessage
from engine.spec.run import RunSpec

GEM = "/apis/v1/envs/gem"
WORLDS = {"house": "household", "crates": "sokoban", "sums": "python-math"}


def served(name: str) -> Served:
    spec = RunSpec.model_validate({"name": name, "environment": {"id": WORLDS[name]}})
    environment = environment_for(spec.environment, spec.dataset)
    return Served(name, spec.environment, environment, pool_of(spec.environment, Limits()))


@pytest.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    app = application(Episodes([served("house"), served("crates"), served("sums")], Limits()), None)
    transport = httpx.ASGITransport(app)
    async with app.router.lifespan_context(app), httpx.AsyncClient(transport=transport, base_url="http://x") as client:
        yield client


async def posted(client: httpx.AsyncClient, verb: str, **fields: Any) -> Any:
    answer = await client.post(f"{GEM}/{verb}", json=fields)
    assert answer.status_code == 200, answer.text
    return answer.json()


def commands(name: str, number: int) -> tuple[str, list[str]]:
    """The task's question, and the way to its goal as the environment's own demonstrator goes it, as actions."""
    from random import Random

    environment = served(name).environment
    assert isinstance(environment, Demonstrator)
    script = environment.script(environment.tasks("train")[number], "solve", Random(0))
    actions = [
        json.dumps({"tool": request.name, "arguments": dict(request.arguments)})
        for turn in script.turns
        for request in turn.message.requests
    ]
    return script.opening[0].content, actions


async def played(client: httpx.AsyncClient, name: str, number: int) -> list[dict[str, Any]]:
    instance = (await posted(client, "make", env_id=name))["sandbox_id"]
    question, actions = commands(name, number)
    begun = await posted(client, "reset", sandbox_id=instance, seed=number)
    assert begun["observation"] == question
    steps = [await posted(client, "step", sandbox_id=instance, action=action) for action in actions]
    await posted(client, "close", sandbox_id=instance)
    return steps


@pytest.mark.parametrize("name", ["house", "crates"])
async def test_the_way_to_the_goal_is_paid_when_it_is_reached(client: httpx.AsyncClient, name: str) -> None:
    *before, last = await played(client, name, 3)
    assert all((step["reward"], step["terminated"], step["truncated"]) == (0.0, False, False) for step in before)
    assert (last["reward"], last["terminated"], last["info"]["success"]) == (1.0, True, True)


async def test_several_environments_and_tasks_are_played_at_once(client: httpx.AsyncClient) -> None:
    numbers = [(name, number) for name in ("house", "crates") for number in range(5)]
    episodes = await asyncio.gather(*(played(client, name, number) for name, number in numbers))
    assert [steps[-1]["reward"] for steps in episodes] == [1.0] * 10


async def test_giving_up_is_paid_nothing(client: httpx.AsyncClient) -> None:
    instance = (await posted(client, "make", env_id="house"))["sandbox_id"]
    await posted(client, "reset", sandbox_id=instance)
    last = await posted(client, "step", sandbox_id=instance, action="I give up")
    assert (last["reward"], last["terminated"]) == (0.0, True)
    again = await client.post(f"{GEM}/step", json={"sandbox_id": instance, "action": "x"})
    assert (again.status_code, again.json()["detail"]) == (409, "no episode is under way: reset first")


async def test_an_environment_with_sandboxes_runs_code_in_one(client: httpx.AsyncClient) -> None:
    instance = (await posted(client, "make", env_id="sums"))["sandbox_id"]
    await posted(client, "reset", sandbox_id=instance, seed=0)
    (tool,) = (await posted(client, "reset", sandbox_id=instance, seed=0))["info"]["tools"]
    (argument,) = tool["parameters"]["properties"]
    call = json.dumps({"tool": tool["name"], "arguments": {argument: "6 * 7"}})
    assert "42" in (await posted(client, "step", sandbox_id=instance, action=call))["observation"]
    answer = served("sums").environment.tasks("train")[0].answer
    last = await posted(client, "step", sandbox_id=instance, action=answer)
    assert (last["reward"], last["terminated"]) == (1.0, True)


async def test_an_episode_of_too_many_turns_is_truncated_and_scored(client: httpx.AsyncClient) -> None:
    instance = (await posted(client, "make", env_id="house", max_steps=2))["sandbox_id"]
    await posted(client, "reset", sandbox_id=instance)
    look = json.dumps({"tool": "nothing", "arguments": {}})
    first, second = [await posted(client, "step", sandbox_id=instance, action=look) for _ in range(2)]
    assert (first["truncated"], second["truncated"], second["terminated"], second["reward"]) == (
        False,
        True,
        False,
        0.0,
    )
    assert second["info"]["failed_calls"] == ["unknown-tool"]


@pytest.mark.parametrize(
    ("verb", "fields", "status"),
    [
        ("make", {"env_id": "nowhere"}, 404),
        ("make", {"env_id": "house", "split": "secret"}, 422),
        ("make", {}, 422),
        ("reset", {"sandbox_id": "0" * 32}, 404),
        ("step", {"sandbox_id": "0" * 32, "action": "x"}, 404),
        ("reset", {"sandbox_id": ["x"]}, 422),
    ],
)
async def test_what_is_not_there_is_named(
    client: httpx.AsyncClient, verb: str, fields: dict[str, Any], status: int
) -> None:
    assert (await client.post(f"{GEM}/{verb}", json=fields)).status_code == status


@pytest.mark.parametrize(
    "action",
    ['{"tool": 7}', '{"calls": [1]}', '{"tool": "a", "arguments": []}', '{"tool": "a", "arguments": {"x": NaN}}'],
)
def test_a_call_that_is_none_is_refused(action: str) -> None:
    with pytest.raises(ServingRefused):
        message_of(action)


@pytest.mark.parametrize("text", ["plain", "7", "[1]", '{"a": 1}', '{"tool": "x", "more": 1}', "[" * 100_000])
def test_any_other_text_is_an_answer(text: str) -> None:
    message = message_of(text)
    assert message.answers
    assert message.content == text or json.loads(message.content) == json.loads(text)
    assert message_of('{"answer": "{}"}') == AssistantMessage("{}")


def test_more_instances_than_allowed_are_refused_until_one_is_closed() -> None:
    episodes = Episodes([served("house")], Limits(episodes=2))
    first, _ = episodes.make("house", "train", None)
    episodes.make("house", "train", None)
    with pytest.raises(ServingRefused, match="which is the limit"):
        episodes.make("house", "train", None)
    asyncio.run(episodes.close(first))
    episodes.make("house", "train", None)


async def test_what_nobody_uses_is_closed() -> None:
    episodes = Episodes([served("house")], Limits(idle_s=-1.0))
    id_, _ = episodes.make("house", "train", None)
    await episodes.sweep()
    with pytest.raises(ServingRefused, match="no such instance"):
        episodes.find(id_)


@pytest.mark.parametrize("given", [None, "Bearer wrong", "Bearer ", "secret-token-of-16"])
def test_without_the_token_nothing_is_answered(given: str | None) -> None:
    app = application(Episodes([served("house")], Limits()), "secret-token-of-16")
    headers = {} if given is None else {"Authorization": given}
    with TestClient(app) as client:
        assert client.get(f"{GEM}/environments", headers=headers).status_code == 401
        assert client.post(f"{GEM}/make", json={"env_id": "house"}, headers=headers).status_code == 401
        with pytest.raises(WebSocketDisconnect), client.websocket_connect("/openenv/house/ws", headers=headers):
            pass
        allowed = {"Authorization": "Bearer secret-token-of-16"}
        assert client.get(f"{GEM}/environments", headers=allowed).status_code == 200


def test_a_body_without_a_bound_is_not_read() -> None:
    app = application(Episodes([served("house")], Limits()), None)
    with TestClient(app) as client:
        assert client.post(f"{GEM}/make", content=b"x" * (BODY_BYTES + 1)).status_code == 413
        assert client.post(f"{GEM}/make", content=iter([b"x"])).status_code == 411


def test_openenv_plays_an_episode_of_its_own_per_connection() -> None:
    app = application(Episodes([served("house")], Limits()), None)
    question, actions = commands("house", 5)
    with TestClient(app) as client:
        with (
            client.websocket_connect("/openenv/house/ws") as first,
            client.websocket_connect("/openenv/house/ws") as other,
        ):
            first.send_json({"type": "reset", "data": {"seed": 5}})
            begun = first.receive_json()["data"]
            assert (begun["observation"]["text"], begun["reward"], begun["done"]) == (question, 0.0, False)
            other.send_json({"type": "step", "data": {"action": "x"}})
            assert other.receive_json()["data"]["message"] == "no episode is under way: reset first"
            for action in actions:
                first.send_json({"type": "step", "data": json.loads(action)})
                last = first.receive_json()["data"]
            assert (last["reward"], last["done"]) == (1.0, True)
            first.send_json({"type": "state"})
            assert first.receive_json()["data"]["step_count"] == len(actions)
            for bad in ("nonsense", "[]", '{"type": 7}', '{"type": "reset", "data": {"seed": -1}}'):
                first.send_text(bad)
                assert first.receive_json()["type"] == "error"
        assert app.state.episodes._episodes == {}


@pytest.mark.parametrize(
    ("arguments", "token", "reported"),
    [
        (["--host", "0.0.0.0"], "", "nothing listens beyond loopback without a token"),
        (["--host", "0.0.0.0"], "short", "it can be guessed"),
        (["--host", "example.org"], "", "nothing listens beyond loopback without a token"),
    ],
)
def test_nothing_listens_beyond_loopback_without_a_token(
    arguments: list[str], token: str, reported: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PALESTRA_ENVIRONMENTS_TOKEN", token)
    with pytest.raises(BadSpec) as refused:
        serve(parser().parse_args(["run.toml", *arguments]))
    assert reported in str(refused.value.lines)
    assert "short" not in str(refused.value.lines)
