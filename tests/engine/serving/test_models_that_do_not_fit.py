"""Models that can be served for text alone, or not at all: callers and whoever serves them learn it, and when."""

import asyncio

import pytest

from engine.launch.preflight import BadSpec
from engine.launch.sample_model import make_sample_model
from engine.serving.models import shelf
from engine.serving.models.command import parser, serve_models
from engine.serving.models.shelf import Room, Shelf
from engine.spec.serving import ServedFile, ServedModel
from tests.engine.serving.test_served_models import CHAT, OF_PATH, Process, served, serving

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
OF_CHAT = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
TOOLS = {
    CHAT: OF_CHAT,
    "/v1/messages": {"name": "look", "input_schema": {"type": "object"}},
    "/v1/responses": {"type": "function", "name": "look", "parameters": {"type": "object"}},
}


@pytest.fixture(scope="module")
def chatml(tmp_path_factory):
    """Its template writes no tool calls."""
    path = tmp_path_factory.mktemp("models") / "chatml"
    make_sample_model(path, seed=0)
    (path / "chat_template.jinja").write_text(CHATML)
    return path


@pytest.fixture(scope="module")
def unfit(tmp_path_factory):
    path = tmp_path_factory.mktemp("models") / "unfit"
    make_sample_model(path, seed=0)
    (path / "chat_template.jinja").write_text("{{ raise_exception('no') }}")
    return path


@pytest.mark.parametrize("path", OF_PATH)
async def test_a_model_without_tool_calls_is_served_for_text_and_refuses_tools_by_name(chatml, tmp_path, path):
    async with serving(served(chatml), tmp_path) as server:
        assert (await server.ask(path))[0] == 200
        status, document = await server.ask(path, OF_PATH[path] | {"tools": [TOOLS[path]]})
        assert status == 400
        assert "leave tools out" in document["error"]["message"]
        assert [line.outcome for line in server.lines] == ["answered", "unsupported"]


def test_a_folder_that_cannot_be_served_is_refused_at_once(unfit, tmp_path):
    options = ["--model", str(unfit), "--usage", str(tmp_path / "usage"), "--port", "0"]
    with pytest.raises(BadSpec, match="the chat template refuses: no"):
        serve_models(parser().parse_args(options))
    assert not (tmp_path / "usage").exists()


async def test_a_model_that_has_no_room_is_named_with_the_option(chatml):
    with pytest.raises(BadSpec, match=r"models\.tiny: it takes .* give --memory-gib more"):
        await Shelf(Room(memory_bytes=2**20)).check(ServedModel(name="tiny", folder=chatml, context_tokens=512))


async def test_models_of_a_file_that_cannot_be_served_are_named_before_anybody_asks(chatml, unfit, tmp_path, capfd):
    file = tmp_path / "served.json"
    models = [
        ServedModel(name="tiny", folder=chatml, context_tokens=512), ServedModel(name="odd", folder=unfit),
        ServedModel(name="long", folder=chatml, context_tokens=10**6),
    ]  # fmt: skip
    file.write_text(ServedFile(models=models, keys=served(chatml).keys).model_dump_json())
    with Process(tmp_path, str(file)):
        printed = ""
        async with asyncio.timeout(120):
            while "model odd" not in printed or "model long" not in printed:
                await asyncio.sleep(0.2)
                printed += capfd.readouterr().err
    assert "model odd cannot be served: model.path" in printed
    assert "the chat template refuses: no" in printed
    assert "model tiny" not in printed
    assert "context_tokens" in printed


async def test_a_folder_that_does_not_fit_is_not_looked_at_for_each_call(unfit, tmp_path, monkeypatch):
    looked, look = [], shelf.lacking_for_model
    monkeypatch.setattr(shelf, "lacking_for_model", lambda *a, **k: looked.append(1) or look(*a, **k))
    async with serving(served(unfit), tmp_path) as server:
        for _ in range(3):
            assert (await server.ask())[0] == 503
        assert len(looked) == 1
        monkeypatch.setattr(shelf, "WAIT_S", 0)
        assert (await server.ask())[0] == 503
        assert len(looked) == 2
