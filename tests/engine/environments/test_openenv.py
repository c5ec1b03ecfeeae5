"""An OpenEnv server is a stranger: what it answers is bounded, read strictly, and its own fault."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from pydantic import ValidationError
from websockets.asyncio.server import ServerConnection, serve

from engine.environments.contract import Observation, Rewards
from engine.environments.openenv import ANSWER_BYTES, HELDOUT_FROM, OpenEnvEnvironment, ServerFailed
from engine.spec.foreign_environments import OpenEnv
from engine.spec.message import AssistantMessage, Message
from engine.spec.run import Dataset

Answer = Callable[[dict[str, Any]], str | None]


@asynccontextmanager
async def served(answer: Answer, **fields: Any) -> AsyncIterator[OpenEnvEnvironment]:
    """An environment of a server that answers so; None is no answer."""

    async def talk(connection: ServerConnection) -> None:
        async for line in connection:
            if (text := answer(json.loads(line))) is not None:
                await connection.send(text)

    async with serve(talk, "127.0.0.1", 0) as server:
        port = next(iter(server.sockets)).getsockname()[1]
        described = OpenEnv.model_validate({"url": f"http://127.0.0.1:{port}", **fields})
        yield OpenEnvEnvironment(described, Dataset(train_tasks=3, heldout_tasks=2))


def observation(text: Any, reward: Any = 0.0, done: Any = False) -> str:
    data = {"observation": {"message": text}, "reward": reward, "done": done}
    return json.dumps({"type": "observation", "data": data})


async def played(environment: OpenEnvEnvironment, *texts: str) -> tuple[list[Message], list[Observation], Rewards]:
    async with environment.session(environment.tasks("train")[2], None) as session:  # type: ignore[arg-type]
        opening = list(await session.reset())
        observations = [await session.act(AssistantMessage(text)) for text in texts]
        return opening, observations, await session.score()


async def test_an_episode_is_played_and_its_rewards_are_summed() -> None:
    asked: list[dict[str, Any]] = []

    def answer(message: dict[str, Any]) -> str:
        asked.append(message)
        return observation(f"seen {len(asked)}", [None, 0.25, True][len(asked) - 1], len(asked) == 3)

    async with served(answer, observation_field="message") as environment:
        opening, observations, rewards = await played(environment, "one", "two")
    assert [message["data"] for message in asked] == [{"seed": 2}, {"message": "one"}, {"message": "two"}]
    assert opening == [Message("user", "seen 1")]
    assert [observation.done for observation in observations] == [False, True]
    assert (rewards.success, dict(rewards.components)) == (True, {"environment": 0.25})


async def test_without_a_field_the_policy_reads_all_of_it() -> None:
    async with served(lambda _: observation("x"), action_field="text") as environment:
        opening, _, rewards = await played(environment)
    assert opening == [Message("user", '{"message": "x"}')]
    assert (rewards.success, dict(rewards.components)) == (False, {"environment": 0.0})


def test_seeds_of_the_splits_never_meet() -> None:
    environment = OpenEnvEnvironment(OpenEnv(url="http://127.0.0.1:1"), Dataset(train_tasks=3, heldout_tasks=2))
    assert [task.answer for task in environment.tasks("train")] == ["0", "1", "2"]
    assert [task.answer for task in environment.tasks("heldout")] == [str(HELDOUT_FROM), str(HELDOUT_FROM + 1)]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("nonsense", "reset: "),
        ("[" * 100_000, "reset: "),
        ("[]", "gave no observation"),
        ('{"type": "observation", "data": {}}', "gave no observation"),
        (observation("x", "1.0"), "no number, or too large"),
        (observation("x", float("nan")), "no number, or too large"),
        (observation("x", 10**400), "no number, or too large"),
        (observation("x", 0.0, "yes"), "gave no observation"),
        (observation("\0"), "cannot be kept"),
        (observation("x" * ANSWER_BYTES), "reset: "),
        ('{"type": "error", "data": {"message": "no such world"}}', "no such world"),
        (None, "TimeoutError"),
    ],
)
async def test_what_is_no_observation_is_the_servers_fault(text: str | None, reason: str) -> None:
    async with served(lambda _: text, timeout_s=1.0) as environment:
        with pytest.raises(ServerFailed, match=reason):
            await played(environment)


async def test_a_server_that_is_not_there_is_named() -> None:
    environment = OpenEnvEnvironment(OpenEnv(url="http://127.0.0.1:1"), Dataset())
    with pytest.raises(ServerFailed, match=r"http://127\.0\.0\.1:1: "):
        await played(environment)


@asynccontextmanager
async def redirecting_to(location: str, status: str) -> AsyncIterator[str]:
    """The address of a server that answers every request with a redirect."""

    async def redirect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(f"HTTP/1.1 {status}\r\nLocation: {location}\r\nContent-Length: 0\r\n\r\n".encode())
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(redirect, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


@pytest.mark.parametrize("status", ["301 Moved", "302 Found", "303 See Other", "307 Temporary", "308 Permanent"])
async def test_no_redirect_leads_to_a_server_that_nobody_allowed(status: str) -> None:
    asked: list[dict[str, Any]] = []

    def secret(message: dict[str, Any]) -> str:
        asked.append(message)
        return observation("internal")

    async with served(secret) as internal:
        url = internal.tasks("train")[0].question.partition(",")[0]
        async with redirecting_to(url.replace("http", "ws"), status) as allowed:
            environment = OpenEnvEnvironment(OpenEnv(url=allowed), Dataset(train_tasks=3))
            with pytest.raises(ServerFailed, match=r"a redirect \(30\d\) is not followed"):
                await played(environment)
    assert asked == []


async def test_many_episodes_have_a_connection_each() -> None:
    async with served(lambda message: observation(json.dumps(message["data"]))) as environment:
        episodes = await asyncio.gather(*(played(environment, f"text {number}") for number in range(10)))
    for number, (_, (acted,), _) in enumerate(episodes):
        assert f"text {number}" in acted.messages[0].content


@pytest.mark.parametrize("url", ["ftp://x", "http://user:key@x", "http://x/?token=1", "http://x/#y", "x", "http:// x"])
def test_an_address_with_more_than_a_place_is_refused(url: str) -> None:
    with pytest.raises(ValidationError):
        OpenEnv(url=url)
