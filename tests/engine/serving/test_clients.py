"""The clients of OpenAI and Anthropic, from their packages, call a served model."""

import os
import subprocess
import sys

import pytest

from engine.launch.sample_model import make_sample_model
from engine.serving.models.callers import digest_of
from engine.spec.serving import ServedFile, ServedKey, ServedModel
from tests.engine.rollout.agents.foreign import packages
from tests.engine.serving.test_served_models import KEY, Process

pytestmark = pytest.mark.protocols

CLIENTS = """
import os
from anthropic import Anthropic, AuthenticationError, NotFoundError
from openai import OpenAI, RateLimitError

url, key = os.environ["URL"], os.environ["KEY"]
openai = OpenAI(base_url=url + "/v1", api_key=key, max_retries=0)
anthropic = Anthropic(base_url=url, api_key=key, max_retries=0)
hello = [{"role": "user", "content": "Say hello."}]
tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
print([model.id for model in openai.models.list()], [model.id for model in anthropic.models.list()])
chat = openai.chat.completions.create(model="tiny", messages=hello, max_tokens=8, n=2, seed=1, tools=[tool])
assert chat.usage.completion_tokens <= 16 and len(chat.choices) == 2
stream = openai.chat.completions.create(model="tiny", messages=hello, max_tokens=8, seed=1, stream=True, tools=[tool])
text = "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)
assert text == (chat.choices[0].message.content or ""), (text, chat)
assert openai.responses.create(model="tiny", input="Say hello.", max_output_tokens=16).usage.output_tokens <= 16
answer = anthropic.messages.create(model="tiny", max_tokens=8, messages=hello)
assert answer.usage.output_tokens <= 8
with anthropic.messages.stream(model="tiny", max_tokens=8, messages=hello) as stream:
    assert stream.get_final_message().usage.input_tokens == answer.usage.input_tokens
for refused, call in (
    (NotFoundError, lambda: anthropic.messages.create(model="other", max_tokens=8, messages=hello)),
    (AuthenticationError, lambda: anthropic.with_options(api_key="x").messages.create(
        model="tiny", max_tokens=8, messages=hello)),
    (RateLimitError, lambda: openai.chat.completions.create(model="tiny", messages=hello, max_tokens=1)),
):
    try:
        call()
    except refused as error:
        print(type(error).__name__, error.response.headers.get("retry-after", "-") != "-")
"""


def test_both_packages_call_it_and_raise_their_own_errors(tmp_path):
    site = packages(tmp_path / "site", "openai", "anthropic")
    make_sample_model(tmp_path / "tiny", seed=0)
    key = ServedKey(id="clients", sha256=digest_of(KEY.encode()), model="tiny", requests_per_minute=8)
    file = tmp_path / "served.json"
    models = [ServedModel(name="tiny", folder=tmp_path / "tiny")]
    file.write_text(ServedFile(models=models, keys=[key]).model_dump_json())
    with Process(tmp_path, file) as server:
        variables = os.environ | {"URL": f"http://127.0.0.1:{server.port}", "KEY": KEY, "PYTHONPATH": str(site)}
        clients = subprocess.run(
            [sys.executable, "-c", CLIENTS], env=variables, capture_output=True, text=True, timeout=200
        )
    assert clients.stdout.splitlines() == [
        "['tiny'] ['tiny']", "NotFoundError False", "AuthenticationError False", "RateLimitError True",
    ], clients.stderr  # fmt: skip
