"""The cast of these tests: a service to ship to, a spool, small runs and rollouts."""

import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from engine.reporting.spool import Spool
from engine.spec.run import RunSpec
from engine.spec.trajectory import Task, ToolCall, Trajectory, Turn
from tests.engine.ingests import Service
from tests.engine.trainings import PARTS, RUN, Training

# How long an example takes says nothing on a shared machine, and the first one pays for imports.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")


@pytest.fixture
def service() -> Iterator[Service]:
    service = Service()
    yield service
    service.stop()


@pytest.fixture
def spool(tmp_path: Path) -> Iterator[Spool]:
    spool = Spool(tmp_path / "spool", segment_bytes=2000)
    yield spool
    spool.close()


@pytest.fixture(scope="session")
def docker_image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A Docker daemon, and the name of an image of this machine's own Python, for tests of tasks in containers."""
    from sandboxes.images.importing import import_tar
    from sandboxes.images.registry import Registry
    from tests.sandboxes.docker import daemon, root_file_system

    with daemon.daemon(), pytest.MonkeyPatch.context() as patch:
        patch.setenv("DOCKER_HOST", daemon.address())
        tar = root_file_system.write(tmp_path_factory.mktemp("image") / "root.tar")
        import_tar(Registry(), tar, "host", "1", "tests")
        tar.unlink()
        yield "host:1"


@pytest.fixture(scope="session")
def small_spec() -> RunSpec:
    return RunSpec.model_validate(tomllib.loads(RUN))


@pytest.fixture(scope="session")
def run_toml(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _written(RUN, tmp_path_factory)


@pytest.fixture(scope="session")
def parts_toml(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _written(PARTS, tmp_path_factory)


def _written(run: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("spec") / "run.toml"
    file.write_text(run)
    return file


@pytest.fixture
def training(run_toml: Path, tmp_path: Path) -> Iterator[Training]:
    with Training(run_toml, tmp_path / "run") as training:
        yield training


@pytest.fixture
def parts_training(parts_toml: Path, tmp_path: Path) -> Iterator[Training]:
    with Training(parts_toml, tmp_path / "run") as training:
        yield training


@pytest.fixture(scope="session")
def undisturbed(run_toml: Path, tmp_path_factory: pytest.TempPathFactory) -> Training:
    """The same run from start to end, which nobody disturbed."""
    return _finished(run_toml, tmp_path_factory)


@pytest.fixture(scope="session")
def undisturbed_parts(parts_toml: Path, tmp_path_factory: pytest.TempPathFactory) -> Training:
    return _finished(parts_toml, tmp_path_factory)


def _finished(toml: Path, tmp_path_factory: pytest.TempPathFactory) -> Training:
    with Training(toml, tmp_path_factory.mktemp("undisturbed") / "run") as training:
        training.finish("--in-process")
    return training


def rollout(
    *,
    prompt: int = 0,
    member: int = 0,
    step: int = 1,
    task: int = 0,
    turns: int = 2,
    success: bool = True,
    reward: float | None = None,
    prefilled: int = 0,
    mark: int = 0,
    **fields: Any,
) -> Trajectory:
    """Sampled for ``step``.  Calls the tool in all turns but the last, which answers.

    Turn t says the tokens [t, ``mark``].
    """
    call = ToolCall(name="python", arguments={"code": "1"}, output="1", status="ok", seconds=0.5)
    earned = float(success) if reward is None else reward
    made = [
        Turn(
            context_ids=[9],
            context_text="?",
            token_ids=[number, mark],
            pieces=["a", "b"],
            logprobs=[-0.5, -0.5],
            policy_versions=[step - 1] * 2,
            tool_calls=[call] if number < turns - 1 else [],
            answered=number == turns - 1 and fields.get("stop_reason", "answered") == "answered",
            prefilled=number < prefilled,
        )
        for number in range(turns)
    ]
    return Trajectory.model_validate(
        {
            "id": f"train-{prompt}-{member}",
            "purpose": "train",
            "prompt": prompt,
            "member": member,
            "sampled_at_version": step - 1,
            "task": Task(id=f"train-{task}", split="train", level=1, question=f"{task}+1=?", answer="1"),
            "segments": [{"turns": made}] if made else [],
            "stop_reason": "answered",
            "answer": "1",
            "success": success,
            "reward": earned,
            "rewards": {"outcome": earned},
            **fields,
        }
    )


@pytest.fixture(name="rollout")
def _rollout() -> Callable[..., Trajectory]:
    return rollout
