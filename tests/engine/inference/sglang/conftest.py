"""Real servers on the CPU, started once for all tests of a module: two of them, of the sample's model."""

import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from engine.inference.sglang.factory import PYTHON, sglang_generator
from engine.inference.sglang.generator import SglangGenerator
from engine.launch.sample_model import make_sample_model
from engine.models.folder_weights import FolderWeights
from engine.models.weights import StateDict
from engine.spec.generation import GenerateRequest
from engine.spec.model import PretrainedModel
from engine.spec.resources import Resources

CONTEXT = 256
FLAGS = ["max-total-tokens=8192"]


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("models") / "tiny"
    make_sample_model(made, seed=0)
    return made


@pytest.fixture(scope="session")
def model(folder: Path) -> PretrainedModel:
    return PretrainedModel(path=str(folder), context_tokens=CONTEXT)


@pytest.fixture(scope="session")
def weights(folder: Path) -> StateDict:
    return StateDict(FolderWeights(folder))


@pytest.fixture(scope="session")
def other_weights(weights: StateDict) -> StateDict:
    """So different that they say other tokens."""
    return StateDict({name: tensor * 1.3 for name, tensor in weights.items()})


def resources(**sglang: Any) -> Resources:
    return Resources.model_validate({"generator": "sglang", "kv_slots": 16, "threads": 1, "sglang": sglang})


@pytest.fixture(scope="session")
def server_python() -> str:
    """``./dev test backends`` names it."""
    assert os.environ.get(PYTHON), f"set {PYTHON} to an interpreter that has SGLang, or run ./dev test backends"
    return os.environ[PYTHON]


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def fleet(model: PretrainedModel, server_python: str) -> AsyncIterator[SglangGenerator]:
    made = sglang_generator(model, resources(servers=2, flags=FLAGS, health_every_s=0.5, start_timeout_s=240), seed=0)
    yield made
    made.close()


@pytest_asyncio.fixture(loop_scope="session")
async def generator(fleet: SglangGenerator, weights: StateDict) -> AsyncIterator[SglangGenerator]:
    """The servers with the model's own weights, as version 0, and without sessions."""
    await fleet.suspend()
    await fleet.load_weights(weights, 0)
    await fleet.resume()
    yield fleet
    await fleet.abort_all()


def turn(
    session: str = "s", *, ids: tuple[int, ...] = (5, 6, 7, 8), tokens: int = 8, **changes: Any
) -> GenerateRequest:
    given: dict[str, Any] = {"stop_ids": frozenset(), "temperature": 0.0, "seed": 1} | changes
    return GenerateRequest(session=session, new_ids=ids, max_new_tokens=tokens, **given)
