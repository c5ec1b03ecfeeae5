"""``python -m engine make-model``: the small pretrained model of ``engine/spec/samples/pretrained.toml``.

Qwen3's architecture, tokenizer form and chat template, at 1.0 M random weights.  Its tokenizer is trained on what
Qwen3's template and the python-math environment write, so that a prompt takes some 160 tokens.  Made once, from a seed;
nothing is downloaded.
"""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from random import Random

from engine.environments.python_math import TOOL, PythonMathEnvironment
from engine.launch.preflight import BadSpec
from engine.models.tokenizer_training import TEMPLATES
from engine.spec.environment import PythonMath
from engine.spec.run import Dataset

SHAPE = {
    "hidden_size": 192,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "max_position_embeddings": 2048,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0},
    "tie_word_embeddings": True,
}
VOCABULARY = 1024
"""Ids of text: enough for every word that the sample's prompts hold."""
EXAMPLES = 400
REPEATED = 20
"""How often the tokenizer is shown what every prompt holds, so that its words become tokens."""


def make_sample_model(folder: Path, *, seed: int) -> None:
    """Write the folder as a whole or not at all.  Raises BadSpec if it exists."""
    from engine.models.random_folder import write_random_model

    if folder.exists():
        raise BadSpec([f"{folder} exists already: remove it, or name another folder"])
    partial = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    write_random_model(partial, family="qwen3", seed=seed, texts=sample_texts(seed), vocabulary=VOCABULARY, **SHAPE)
    partial.rename(folder)


def sample_texts(seed: int) -> Iterator[str]:
    """Yield what the policy of the sample reads and writes, piece by piece."""
    description = json.dumps(
        {"type": "function", "function": {"name": TOOL.name, "description": TOOL.description,
         "parameters": dict(TOOL.parameters)}}
    )  # fmt: skip
    template = (TEMPLATES / "qwen3.jinja").read_text()
    for _ in range(REPEATED):
        yield from (template.replace("\\n", "\n"), description)
    environment = PythonMathEnvironment(PythonMath(levels=[1, 2, 3]), Dataset(seed=seed))
    rng = Random(seed)
    for number in range(EXAMPLES):
        task = environment.task("train", number)
        yield task.question
        for turn in environment.script(task, "repair", rng).turns:
            for request in turn.message.requests:
                yield json.dumps({"name": request.name, "arguments": dict(request.arguments)})
            yield turn.message.content
            yield from (message.content for message in turn.observation.messages)
