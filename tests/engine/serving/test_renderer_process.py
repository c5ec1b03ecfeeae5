"""A served model whose tokenizer or template works for ever, or asks for all memory, harms its own callers only."""

import asyncio
import json
import os
import pickle
import resource
import signal

import pytest

from engine.launch.sample_model import make_sample_model
from engine.rollout.agents import live
from engine.rollout.agents.asked import RequestRefused
from engine.rollout.renderers.preflight import chat_problem
from engine.serving.models import renderer_process, shelf
from engine.serving.models.callers import digest_of
from engine.spec.serving import ServedFile, ServedKey, ServedModel
from tests.engine.serving.test_served_models import HELLO, KEY, OTHER, serving

HANGS = "{{ range(99999) | map('string') | map('center', 9999) | list | length }}" * 1000
EATS = "{{ 'x' | center(3000000000) | length }}"
LONG_S = 600.0


@pytest.fixture(scope="module")
def harmless(tmp_path_factory):
    path = tmp_path_factory.mktemp("models") / "harmless"
    make_sample_model(path, seed=0)
    return path


@pytest.fixture(scope="module")
def hostile_folders(tmp_path_factory):
    """By what their templates do where somebody says BOOM; harmless as far as the preflight sees."""

    def made(does):
        path = tmp_path_factory.mktemp("models") / "hostile"
        make_sample_model(path, seed=0)
        template = path / "chat_template.jinja"
        bomb = "{% for message in messages %}{% if message.content == 'BOOM' %}" + does + "{% endif %}{% endfor %}"
        template.write_text(bomb + template.read_text())
        return path

    folders = {"hangs": made(HANGS), "eats": made(EATS)}
    assert chat_problem(folders["hangs"]) is None
    return folders


@pytest.fixture
def unchecked(monkeypatch):
    monkeypatch.setattr(shelf, "lacking_for_model", lambda spec, with_tools: [])


def both(hostile, harmless):
    keys = [
        ServedKey(id=name, sha256=digest_of(key.encode()), model=name, parallel=16)
        for name, key in (("hostile", KEY), ("harmless", OTHER))
    ]
    folders = {"hostile": hostile, "harmless": harmless}
    models = [ServedModel(name=name, folder=folder, context_tokens=512) for name, folder in folders.items()]
    return ServedFile(models=models, keys=keys)


def says(text, **more):
    return HELLO | {"messages": [{"role": "user", "content": text}]} | more


async def both_loaded(server):
    for key in (KEY, OTHER):
        status, _ = await server.ask(key=key)
        assert status == 200


async def test_a_template_that_hangs_holds_up_nobody_else_and_its_call_is_refused(
    hostile_folders, harmless, tmp_path, monkeypatch, unchecked
):
    async with serving(both(hostile_folders["hangs"], harmless), tmp_path) as server:
        await both_loaded(server)
        monkeypatch.setattr(renderer_process, "MOST_SECONDS", LONG_S)
        hanging = asyncio.create_task(server.ask(document=says("BOOM")))
        await asyncio.sleep(0.5)
        assert (await server.ask(key=OTHER))[0] == 200
        assert not hanging.done()
        hanging.cancel()
        await asyncio.gather(hanging, return_exceptions=True)


async def test_what_is_not_done_in_time_is_ended_and_the_next_call_is_answered(
    hostile_folders, harmless, tmp_path, monkeypatch, unchecked
):
    async with serving(both(hostile_folders["hangs"], harmless), tmp_path) as server:
        await both_loaded(server)
        monkeypatch.setattr(renderer_process, "MOST_SECONDS", 1.0)
        status, document = await server.ask(document=says("BOOM"))
        assert status == 400
        assert "not done after 1 s" in document["error"]["message"]
        assert document["error"]["param"] == "messages"
        monkeypatch.setattr(renderer_process, "MOST_SECONDS", LONG_S)
        assert (await server.ask(document=says("boom")))[0] == 200
        assert [line.outcome for line in server.lines if line.key == "hostile"] == ["answered", "template", "answered"]


async def test_who_hangs_up_leaves_nothing_that_the_next_caller_waits_behind_for_long(
    hostile_folders, harmless, tmp_path, monkeypatch, unchecked
):
    async with serving(both(hostile_folders["hangs"], harmless), tmp_path) as server:
        await both_loaded(server)
        monkeypatch.setattr(renderer_process, "MOST_SECONDS", 3.0)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(server.ask(document=says("BOOM")), 0.5)
        assert (await server.ask())[0] == 200


async def test_a_template_that_asks_for_all_memory_is_refused_it(hostile_folders, harmless, tmp_path, unchecked):
    async with serving(both(hostile_folders["eats"], harmless), tmp_path) as server:
        await both_loaded(server)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        status, _ = await server.ask(document=says("BOOM"))
        assert status == 400
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2**20
        assert [(await server.ask(key=key))[0] for key in (KEY, OTHER)] == [200, 200]


async def test_a_tokenizer_that_makes_a_gigabyte_of_one_character_ends_its_own_process_alone(
    harmless, tmp_path, unchecked
):
    folder = tmp_path / "multiplies"
    make_sample_model(folder, seed=0)
    file = folder / "tokenizer.json"
    described = json.loads(file.read_text())
    steps = [{"type": "Replace", "pattern": {"String": "\u2603"}, "content": "\u2604" * 10}]
    steps += [{"type": "Replace", "pattern": {"String": "\u2604"}, "content": "\u2604" * 10}] * 8
    file.write_text(json.dumps(described | {"normalizer": {"type": "Sequence", "normalizers": steps}}))
    assert chat_problem(folder) is None
    async with serving(both(folder, harmless), tmp_path / "usage") as server:
        await both_loaded(server)
        status, document = await server.ask(document=says("\u2603"))
        assert status == 400
        assert "tokenizer" in document["error"]["message"]
        assert [(await server.ask(key=key))[0] for key in (KEY, OTHER)] == [200, 200]


async def test_a_process_that_is_killed_is_begun_anew_also_in_the_middle_of_a_call(
    hostile_folders, harmless, tmp_path, monkeypatch, unchecked
):
    async with serving(both(hostile_folders["hangs"], harmless), tmp_path) as server:
        await both_loaded(server)
        async with server.shelf.using(both(hostile_folders["hangs"], harmless).models[0]) as loaded:
            first = loaded.renderer.pid
            os.kill(first, signal.SIGKILL)
            assert (await server.ask())[0] == 200
            assert loaded.renderer.pid not in (None, first)
            monkeypatch.setattr(renderer_process, "MOST_SECONDS", LONG_S)
            hanging = asyncio.create_task(server.ask(document=says("BOOM")))
            for _ in range(2):
                before = loaded.renderer.pid
                await asyncio.sleep(0.5)
                os.kill(before, signal.SIGKILL)
                while not hanging.done() and loaded.renderer.pid == before:  # noqa: ASYNC110 - nobody tells of it
                    await asyncio.sleep(0.01)
            status, document = await hanging
            assert status == 400
            assert "code -9" in document["error"]["message"]


async def test_a_model_that_is_unloaded_leaves_no_process(harmless, tmp_path, unchecked):
    file = both(harmless, harmless)
    async with serving(file, tmp_path) as server:
        await both_loaded(server)
        async with server.shelf.using(file.models[0]) as loaded:
            pid = loaded.renderer.pid
        assert os.path.exists(f"/proc/{pid}")
    assert not os.path.exists(f"/proc/{pid}")


async def test_a_stream_shows_what_is_read_in_time_and_ends_whole(harmless, tmp_path, monkeypatch, unchecked):
    monkeypatch.setattr(live, "SHOWN_EVERY_S", 0.0)
    asked = says("hello", max_tokens=40, seed=5)
    async with serving(both(harmless, harmless), tmp_path) as server:
        _, whole = await server.ask(document=asked)
        for document in (asked | {"stream": True}, asked | {"stream": True, "n": 2}):
            _, events = await server.ask(document=document)
            pieces = [
                event["choices"][0]["delta"].get("content") or ""
                for event in events
                if event["choices"] and event["choices"][0]["index"] == 0
            ]
            assert "".join(pieces).strip() == whole["choices"][0]["message"]["content"].strip()


async def test_what_nests_too_deep_is_the_fault_of_its_call(harmless, tmp_path, unchecked):
    parameters = {"type": "object"}
    for _ in range(250):
        parameters = {"type": "object", "properties": {"a": parameters}}
    tool = {"type": "function", "function": {"name": "look", "parameters": parameters}}
    async with serving(both(harmless, harmless), tmp_path) as server:
        assert (await server.ask(document=HELLO | {"tools": [tool]}))[0] == 400
        assert (await server.ask())[0] == 200


def test_a_refusal_travels_whole():
    refusal = pickle.loads(pickle.dumps(RequestRefused("rate", "later", field="messages", retry_s=7)))
    assert (refusal.kind, str(refusal), refusal.field, refusal.retry_s) == ("rate", "later", "messages", 7)


async def test_tools_choices_and_log_probs_pass_both_ways(harmless, tmp_path, unchecked):
    tool = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
    asked = says("hello", n=2, seed=1, logprobs=True, tools=[tool])
    async with serving(both(harmless, harmless), tmp_path) as server:
        status, document = await server.ask(document=asked)
    assert status == 200
    for choice in document["choices"]:
        assert len(choice["logprobs"]["content"]) >= 1
