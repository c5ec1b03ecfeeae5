"""A language model that judges, on servers of the run's own: asked through the client that asks any endpoint."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import pytest_asyncio

from engine.environments.verifiers.rubric import RubricVerifier
from engine.inference.sglang.judge import ServedJudgeModel
from engine.inference.sglang.servers import ServersLost
from engine.judge_endpoint import JudgeTimeout
from engine.rollout.judge_llm import LanguageModelJudge
from engine.spec.dataset_row import DatasetRow
from engine.spec.judge import OF_THE_RUN, LlmJudge
from engine.spec.resources import Resources
from engine.spec.verifier import Rubric
from tests.engine.conftest import rollout
from tests.engine.inference.sglang.judging_model import make_judging_model
from tests.engine.inference.sglang.test_servers import kill_server, up_again

pytestmark = [pytest.mark.backends, pytest.mark.sglang, pytest.mark.asyncio(loop_scope="session")]
ASKED: dict[str, Any] = {"endpoint": OF_THE_RUN, "model": "judge", "max_tokens": 128, "retries": 0}


@pytest.fixture(scope="module")
def judge_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("models") / "judge"
    make_judging_model(made)
    return made


def served(folder: Path, **settings: Any) -> ServedJudgeModel:
    given = {"path": str(folder), "dtype": "float32", "start_timeout_s": 600, "health_every_s": 0.5} | settings
    resources = Resources.model_validate({"threads": 1, "judge": given})
    assert resources.judge is not None
    return ServedJudgeModel(resources.judge, resources)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def model(judge_folder: Path, server_python: str) -> AsyncIterator[ServedJudgeModel]:
    made = served(judge_folder)
    yield made
    made.close()


async def in_hand(model: ServedJudgeModel) -> None:
    fleet = model._started()
    async with asyncio.timeout(240):
        while not any(server.in_hand for server in fleet.servers):  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.01)


@pytest.mark.soak  # test_sglang_on_ray.py kills one that judges a run
@pytest.mark.timeout(900)  # a server starts twice
async def test_a_judge_whose_server_is_killed_is_asked_again_and_no_verdict_is_lost(model: ServedJudgeModel) -> None:
    turns = LanguageModelJudge(LlmJudge(kind="llm", **ASKED), key=None, served=model.ask)
    rubric = RubricVerifier(Rubric(rubric="Is it right?", judge=LlmJudge(**ASKED)), served=model.ask)
    row = DatasetRow(id="1", prompt="How much is 1 plus 1?", answer="2")
    first = await turns.verdicts(rollout(turns=1))
    assert list(first) == ["good"]
    asked = [asyncio.create_task(rubric.verified(f"It is {n}.", row)) for n in range(24)]
    await in_hand(model)
    fleet = model._started()
    kill_server(fleet.servers[0])
    async with asyncio.timeout(600):
        verifications = await asyncio.gather(*asked)
    assert {(each.success, each.share) for each in verifications} == {(True, 0.7)}
    assert (turns.counts.failed, rubric._judge.counts.calls) == (0, 24)
    await up_again(fleet.servers[0], fleet)
    messages = [message for _, message in model.reports()]
    assert any("SGLang server of the judge 0" in message and "is gone" in message for message in messages)
    [reading] = await model.servers()
    assert (reading.role, reading.health, reading.restarts, reading.version) == ("judge", "up", 1, 0)
    assert reading.sampled_tokens >= 25 * 60
    assert 0 < reading.cached_tokens < reading.prompt_tokens


async def test_the_time_of_an_answer_is_bounded_while_a_server_has_the_question(model: ServedJudgeModel) -> None:
    impatient = LanguageModelJudge(LlmJudge(kind="llm", **ASKED, timeout_s=1), key=None, served=model.ask)
    await impatient.verdicts(rollout(turns=1, reward=0.1))  # it is up
    fleet = model._started()
    process = fleet.servers[0].process
    assert process is not None
    assert process.pid is not None
    family = psutil.Process(process.pid).children(recursive=True)
    for member in family:
        os.kill(member.pid, signal.SIGSTOP)
    try:
        with pytest.raises(JudgeTimeout):
            await impatient.verdicts(rollout(turns=1, reward=0.2))
    finally:
        for member in family:
            os.kill(member.pid, signal.SIGCONT)


async def test_a_model_that_no_server_can_ask_ends_the_run_by_its_field(judge_folder: Path, tmp_path: Path) -> None:
    for file in judge_folder.iterdir():
        if "template" not in file.name:
            (tmp_path / file.name).write_bytes(file.read_bytes())
    wordless = served(tmp_path)
    with pytest.raises(ServersLost, match=r"resources\.judge\.path.*status 400"):
        await wordless.ask({"model": "m", "messages": [{"role": "user", "content": "1"}]}, 60.0)
    with pytest.raises(ServersLost):
        wordless.reports()
    wordless.close()
