"""Keys of several teams at one server: what one of them sends, the others do not feel, and its limits meet."""

import asyncio
import json
import threading
import time

import pytest

from engine.launch.sample_model import make_sample_model
from engine.rollout.agents import connection, fields
from engine.rollout.agents.bodies import Bodies
from engine.rollout.agents.connection import MOST_BODY_BYTES
from engine.serving.models import callers, shelf
from engine.serving.models.callers import digest_of
from engine.spec.serving import ServedFile, ServedKey, ServedModel
from tests.engine.rollout.agents.endpoints import answer_on, request
from tests.engine.serving.test_served_models import CHAT, HELLO, KEY, OTHER, serving


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("models") / "tiny"
    make_sample_model(path, seed=0)
    return path


@pytest.fixture(autouse=True)
def unchecked(monkeypatch):
    monkeypatch.setattr(shelf, "lacking_for_model", lambda spec, with_tools: [])


def two_keys(folder, **limits):
    """Only that of KEY has ``limits``."""
    keys = [
        ServedKey(id="bounded", sha256=digest_of(KEY.encode()), model="tiny", **limits),
        ServedKey(id="other", sha256=digest_of(OTHER.encode()), model="tiny"),
    ]
    return ServedFile(models=[ServedModel(name="tiny", folder=folder, context_tokens=512)], keys=keys)


async def begun(server, sent_bytes, *, key=KEY, length=MOST_BODY_BYTES):
    """A request of which so much of the body has been sent."""
    reader, writer = await server.connected()
    writer.write(request(CHAT, b"", key=key, **{"content-length": str(length)}) + b" " * sent_bytes)
    return reader, writer


def held_by(server, key_id):
    return server.door._limits[key_id].bodies.held_bytes


async def until(condition):
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - nobody tells of it
            await asyncio.sleep(0.01)


async def test_bodies_that_do_not_end_use_up_the_share_of_their_key_alone(folder, tmp_path):
    async with serving(two_keys(folder), tmp_path) as server:
        most = callers.MOST_KEY_BYTES
        open_to = [await begun(server, MOST_BODY_BYTES - 1) for _ in range(most // MOST_BODY_BYTES)]
        await until(lambda: held_by(server, "bounded") == most - len(open_to))
        assert (await server.ask(document=HELLO | {"metadata": {"a": "x" * 1000}}))[0] == 429
        assert (await server.ask(key=OTHER))[0] == 200
        for _, writer in open_to:
            writer.close()
        await until(lambda: held_by(server, "bounded") == 0)
        assert (await server.ask())[0] == 200


async def test_the_bodies_of_all_keys_are_bounded_together(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(callers, "MOST_BYTES", 3 * MOST_BODY_BYTES)
    monkeypatch.setattr(callers, "MOST_KEY_BYTES", 2 * MOST_BODY_BYTES)
    async with serving(two_keys(folder), tmp_path) as server:
        open_to = [await begun(server, MOST_BODY_BYTES - 1, key=key) for key in (KEY, KEY, OTHER)]
        await until(lambda: held_by(server, "bounded") + held_by(server, "other") == 3 * (MOST_BODY_BYTES - 1))
        status, document = await server.ask(key=OTHER)
        assert status == 429
        assert f"{3 * MOST_BODY_BYTES} bytes" in document["error"]["message"]
        for _, writer in open_to:
            writer.close()


async def test_a_body_is_held_until_its_request_is_over(folder, tmp_path, monkeypatch):
    loading, load = threading.Event(), shelf._memory

    def slow(spec):
        loading.wait(60)
        return load(spec)

    monkeypatch.setattr(shelf, "_memory", slow)
    async with serving(two_keys(folder), tmp_path) as server:
        asked = HELLO | {"metadata": {"a": "x" * 100_000}}
        asking = asyncio.create_task(server.ask(document=asked))
        await until(lambda: held_by(server, "bounded") == len(json.dumps(asked).encode()))
        loading.set()
        assert (await asking)[0] == 200
        await until(lambda: held_by(server, "bounded") == 0)


def test_what_is_refused_among_all_is_not_held_by_the_key():
    of_all = Bodies(10)
    one, other = Bodies(8, among=of_all).held(), Bodies(8, among=of_all).held()
    one.take(8)
    with pytest.raises(Exception, match="more than 10 bytes"):
        other.take(3)
    other.take(2)
    for _ in range(2):
        one.give_back()
    other.take(6)
    other.give_back()
    assert of_all.held_bytes == 0


async def test_a_key_that_is_revoked_or_has_ended_while_the_body_comes_opens_nothing(folder, tmp_path, monkeypatch):
    file = two_keys(folder)
    async with serving(file, tmp_path) as server:
        body = json.dumps(HELLO).encode()
        for ended in (
            ServedFile(models=file.models, keys=file.keys[1:]),
            ServedFile(models=file.models, keys=[file.keys[0].model_copy(update={"expires_at": 1.0}), file.keys[1]]),
        ):
            server.door.serve(file)
            reader, writer = await begun(server, 0, length=len(body))
            await until(lambda: len(server.door._limits["bounded"]._begun) > 0)
            server.door.serve(ended)
            writer.write(body)
            assert (await answer_on(reader))[0] == 401
            writer.close()
        assert "answered" not in [line.outcome for line in server.lines]


async def test_requests_that_are_refused_or_ask_for_names_count_for_the_limit_of_a_minute(folder, tmp_path):
    async with serving(two_keys(folder, requests_per_minute=3), tmp_path) as server:
        assert (await server.ask(document={"messages": "?"}))[0] == 400
        names = request("/v1/models", b"", key=KEY, method="GET")
        assert [(await server.sent(names))[0] for _ in range(3)] == [200, 200, 429]
        assert (await server.ask())[0] == 429
        assert [(line.outcome, line.key) for line in server.lines] == [
            ("malformed", "bounded"), ("listed", "bounded"), ("listed", "bounded"), ("rate", "bounded"),
            ("rate", "bounded"),
        ]  # fmt: skip


async def test_a_flood_of_refused_requests_is_a_few_lines_that_say_how_many(folder, tmp_path, monkeypatch):
    flood = 200
    async with serving(two_keys(folder, requests_per_minute=1), tmp_path) as server:
        assert (await server.ask())[0] == 200
        now = time.monotonic()
        monkeypatch.setattr(callers.time, "monotonic", lambda: now)  # all in one second
        for _ in range(flood):
            assert (await server.ask())[0] == 429
        assert len(server.lines) == 1 + callers.MOST_LINES
        server.door.write_refusals()
        refused = [line for line in server.lines if line.outcome == "rate"]
        assert len(refused) == callers.MOST_LINES + 1
        assert sum(line.calls for line in refused) == flood


async def test_behind_a_request_beyond_the_limit_nothing_of_its_connection_is_read(folder, tmp_path):
    async with serving(two_keys(folder, requests_per_minute=1), tmp_path) as server:
        assert (await server.ask())[0] == 200
        reader, writer = await server.connected()
        writer.write(request("/v1/models", b"", key=KEY, method="GET") * 50)
        assert (await answer_on(reader))[0] == 429
        assert await reader.read() == b""
        writer.close()
        assert sum(line.calls for line in server.lines if line.outcome == "rate") == 1


async def test_a_limit_that_is_met_is_asked_before_the_body_is_read(folder, tmp_path, monkeypatch):
    read = []
    monkeypatch.setattr(connection, "document_in", lambda body: read.append(body) or fields.document_in(body))
    async with serving(two_keys(folder, requests_per_minute=1), tmp_path) as server:
        assert (await server.ask())[0] == 200
        assert len(read) == 1
        reader, writer = await begun(server, 10)
        assert (await answer_on(reader))[0] == 429
        writer.close()
        assert len(read) == 1


@pytest.mark.parametrize("content", ["[]", "{}", "1"])
async def test_a_body_of_very_many_values_is_refused_before_it_is_read(folder, tmp_path, monkeypatch, content):
    many = b'{"messages": [], "metadata": {"a": [' + b",".join([content.encode()] * (fields.MOST_SIGNS + 1)) + b"]}}"
    async with serving(two_keys(folder), tmp_path) as server:
        monkeypatch.setattr(fields, "unstorable", lambda *_: pytest.fail("it was read"))
        status, document = await server.ask(document=many)
        assert status == 413
        assert f"at most {fields.MOST_SIGNS}" in document["error"]["message"]


async def test_others_are_answered_while_a_long_body_is_read(folder, tmp_path, monkeypatch):
    reading, go_on = threading.Event(), threading.Event()

    def slow(body):
        if len(body) > connection.READ_AT_ONCE_BYTES:
            reading.set()
            go_on.wait(60)
        return fields.document_in(body)

    monkeypatch.setattr(connection, "document_in", slow)
    async with serving(two_keys(folder), tmp_path) as server:
        asking = asyncio.create_task(server.ask(document=HELLO | {"metadata": {"a": "x" * 100_000}}))
        await asyncio.to_thread(reading.wait, 60)
        assert (await server.ask(key=OTHER))[0] == 200
        assert not asking.done()
        go_on.set()
        assert (await asking)[0] == 200
