"""The environment over a dataset: tasks are rows, episodes begin as the rows say, and answers are checked."""

from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from engine.environments.contract import Rewards, VerifierFailed
from engine.environments.imported import UnusableEnvironment
from engine.environments.qa.environment import QaEnvironment
from engine.environments.qa.session import QaSession
from engine.spec.environment import Qa
from engine.spec.message import AssistantMessage, Message
from engine.spec.run import Dataset, RunSpec
from sandboxes.interface import Sandbox
from sandboxes.pool import Pool
from sandboxes.spec import SandboxSpec
from tests.engine.datasets.sources import json_lines, prepared

ROWS: list[dict[str, Any]] = [
    {"prompt": f"What is {n} times {n}?", "answer": str(n * n), "s": "heldout" if n < 5 else "train"} for n in range(30)
]
MAPPING = {"prompt": "prompt", "answer": "answer", "split": "s"}


class NoSandboxes:
    def acquire(self) -> AbstractAsyncContextManager[Sandbox]:
        raise AssertionError("no sandbox is needed here")


def stored(tmp_path: Path, rows: list[dict[str, Any]], mapping: dict[str, str]) -> Dataset:
    wanted = {"mapping": mapping, "splitting": {"kind": "column"}, "duplicates": {"similarity": None}}
    folder, report = prepared(tmp_path, {"q.jsonl": json_lines(rows)}, wanted)
    assert report.state == "ready", report
    return Dataset(folder=str(folder))


@pytest.fixture
def sums(tmp_path: Path) -> Dataset:
    return stored(tmp_path, ROWS, MAPPING)


def environment(dataset: Dataset, **settings: Any) -> QaEnvironment:
    return QaEnvironment(Qa.model_validate(settings), dataset)


async def answered(session: QaSession, answer: str | None) -> Rewards:
    async with session:
        await session.reset()
        if answer is not None:
            assert (await session.act(AssistantMessage(answer))).done
        return await session.score()


async def test_the_rows_are_the_tasks_and_the_verifier_decides(sums: Dataset) -> None:
    qa = environment(sums, system_prompt="Be brief.", verifier={"kind": "numeric"})
    tasks = qa.tasks("train")
    assert (len(tasks), len(qa.tasks("heldout"))) == (25, 5)
    assert tasks[3] == environment(sums, verifier={"kind": "numeric"}).tasks("train")[3]
    assert tasks[3].question == "What is 8 times 8?"
    assert not qa.tools(tasks[3])
    session = qa.session(tasks[3], NoSandboxes())
    assert await session.reset() == [Message("system", "Be brief."), Message("user", "What is 8 times 8?")]
    for answer, success in {"It is 64.": True, "65": False, None: False}.items():
        assert (await answered(qa.session(tasks[3], NoSandboxes()), answer)).success is success


async def test_messages_open_the_dialogue_behind_one_system_message(tmp_path: Path) -> None:
    messages = [
        {"role": "system", "content": "You are Bob."},
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Yes?"},
    ]
    rows = [
        {"m": [*messages, {"role": "user", "content": f"{n}?"}], "answer": "y", "s": row["s"]}
        for n, row in enumerate(ROWS)
    ]
    qa = environment(
        stored(tmp_path, rows, {"messages": "m", "answer": "answer", "split": "s"}), system_prompt="Be brief."
    )
    opening = await qa.session(qa.tasks("heldout")[1], NoSandboxes()).reset()
    assert opening == [
        Message("system", "Be brief.\n\nYou are Bob."),
        Message("user", "Hi"),
        Message("assistant", "Yes?"),
        Message("user", "1?"),
    ]


async def test_the_tool_keeps_its_variables_and_the_sandbox_is_taken_at_the_first_call(sums: Dataset) -> None:
    qa = environment(sums, tools=["python"], verifier={"kind": "numeric"}, output_characters=16)
    task = qa.tasks("train")[3]
    assert [tool.name for tool in qa.tools(task)] == ["python"]
    async with Pool(SandboxSpec(), size=1) as pool, qa.session(task, pool) as session:
        await session.reset()
        assert pool.stats().started == 0
        await session.act(AssistantMessage.calling("python", {"code": "x = 8"}))
        observed = await session.act(AssistantMessage.calling("python", {"code": "print(x * x, 'a' * 99)"}))
        assert observed.messages[0].content == "64 aaaaaaaaaaaaa"
        failed = await session.act(AssistantMessage.calling("python", {"code": "y"}))
        assert failed.calls[0].error_class == "name"
        await session.act(AssistantMessage("64"))
        assert (await session.score()).success


async def test_format_and_length_are_components_of_their_own(sums: Dataset) -> None:
    settings = {"format_reward": 0.1, "length_penalty": 1.0, "longest_answer_characters": 20}
    qa = environment(sums, verifier={"kind": "numeric", "place": "marker"}, **settings)
    task = qa.tasks("train")[3]
    right = await answered(qa.session(task, NoSandboxes()), "Answer: 64")
    assert right == Rewards(True, {"format": 0.1, "length": -0.5})
    assert await answered(qa.session(task, NoSandboxes()), "64") == Rewards(False, {"format": 0.0, "length": -0.1})
    long = await answered(qa.session(task, NoSandboxes()), "x" * 99 + "Answer: 64")
    assert long == Rewards(False, {"format": 0.0, "length": -1.0})


ENDS = "def verify(result, row):\n    return 0.5 if result.endswith('.') else 0"


async def test_several_verifiers_pay_a_component_each(sums: Dataset) -> None:
    components = [
        {"name": "marked", "reward": 0.2, "verifier": {"kind": "numeric", "place": "marker"}},
        {"name": "sentence", "reward": -2.0, "verifier": {"kind": "python-function", "source": ENDS}},
    ]
    qa = environment(sums, verifier={"kind": "numeric"}, components=components)
    task = qa.tasks("train")[3]
    found = [await answered(qa.session(task, NoSandboxes()), answer) for answer in ("Answer: 64", "It is 64.", "65.")]
    assert found == [
        Rewards(True, {"marked": 0.2, "sentence": 0.0}),
        Rewards(True, {"marked": 0.0, "sentence": -1.0}),
        Rewards(False, {"marked": 0.0, "sentence": -1.0}),
    ]
    assert await answered(qa.session(task, NoSandboxes()), None) == Rewards(False, {})
    assert qa.settings.reward_components == {"marked", "sentence"}


async def test_a_score_is_paid_in_part_where_that_is_asked_for(sums: Dataset) -> None:
    verifier = {"kind": "python-function", "source": ENDS, "partial_credit": True, "pass_score": 0.6}
    qa = environment(sums, verifier=verifier)
    rewards = await answered(qa.session(qa.tasks("train")[0], NoSandboxes()), "65.")
    assert rewards == Rewards(False, {"python-function": 0.5})


async def test_one_failing_component_leaves_no_reward_at_all(sums: Dataset) -> None:
    raises = {"kind": "python-function", "source": "def verify(result, row):\n    return row['nothing']"}
    qa = environment(sums, verifier={"kind": "numeric"}, components=[{"name": "own", "verifier": raises}])
    with pytest.raises(VerifierFailed, match="KeyError"):
        await answered(qa.session(qa.tasks("train")[3], NoSandboxes()), "64")


@pytest.mark.parametrize("name", ["outcome", "format", "tests", "Own", "", "a b", "a" * 50])
def test_a_component_needs_a_name_of_its_own(name: str) -> None:
    with pytest.raises(ValidationError):
        Qa.model_validate({"components": [{"name": name}]})
    with pytest.raises(ValidationError, match="another component has this name"):
        Qa.model_validate({"components": [{"name": "own"}, {"name": "own"}]})


def test_a_schedule_of_a_component_that_is_not_paid_is_refused() -> None:
    document = {
        "name": "x",
        "dataset": {"folder": "rows"},
        "environment": {"id": "qa", "format_reward": 0.1},
        "recipe": {"preset": "grpo", "stages": [], "reward": {"schedules": [{"component": "format", "last_step": 9}]}},
    }
    assert RunSpec.model_validate(document).recipe.reward.schedules[0].last_weight == 0.0
    document["environment"] = {"id": "qa", "length_penalty": 0.1}
    with pytest.raises(ValidationError, match="pays no such component; it pays length"):
        RunSpec.model_validate(document)


async def test_an_answer_of_a_hundred_megabytes_is_wrong_at_once(sums: Dataset) -> None:
    qa = environment(sums, verifier={"kind": "numeric"})
    assert not (await answered(qa.session(qa.tasks("train")[3], NoSandboxes()), "9" * 10**8)).success


async def test_code_is_tested_and_may_be_paid_in_part(tmp_path: Path) -> None:
    rows = [
        {"prompt": f"Write f. {n}", "t": "assert f(2) == 4\nassert f(0) == 0", "s": r["s"]} for n, r in enumerate(ROWS)
    ]
    dataset = stored(tmp_path, rows, {"prompt": "prompt", "tests": "t", "split": "s"})
    qa = environment(dataset, verifier={"kind": "unit-tests", "partial_credit": True})
    task = qa.tasks("train")[0]
    square = "So:\n```python\ndef f(x):\n    return x * x\n```\n"
    assert await answered(qa.session(task, NoSandboxes()), square) == Rewards(True, {})
    zero = square.replace("x * x", "0")
    assert await answered(qa.session(task, NoSandboxes()), zero) == Rewards(False, {"tests": 0.5})


async def test_a_verifier_that_raises_is_no_reward(sums: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    qa = environment(sums, verifier={"kind": "json-schema", "json_schema": '{"multipleOf": 0.1}'})
    monkeypatch.setattr("engine.environments.verifiers.schema_check.fits", lambda *_: 1 / 0)
    with pytest.raises(VerifierFailed, match=r"row .*: verifier json-schema: ZeroDivisionError"):
        await answered(qa.session(qa.tasks("train")[0], NoSandboxes()), "7")


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"verifier": {"kind": "unit-tests"}}, r"row 1 of train \(.*\): it has no tests; .* and 27 rows more"),
        ({"verifier": {"kind": "json-schema", "json_schema": '{"type": 7}'}}, "no JSON schema"),
    ],
)
def test_what_cannot_be_checked_is_refused_with_its_rows(sums: Dataset, settings: dict[str, Any], problem: str) -> None:
    with pytest.raises(UnusableEnvironment, match=problem):
        environment(sums, **settings)


def test_thoughts_of_earlier_turns_are_refused_and_not_left_out_without_a_word(tmp_path: Path) -> None:
    turn = {"role": "assistant", "content": "4", "reasoning_content": "Two and two."}
    rows = [
        {"m": [{"role": "user", "content": "2 + 2?"}, turn, {"role": "user", "content": f"And {n}?"}], "a": "4", "s": s}
        for n, s in enumerate(["train", "heldout"])
    ]
    dataset = stored(tmp_path, rows, {"messages": "m", "answer": "a", "split": "s"})
    with pytest.raises(UnusableEnvironment, match=r"hold thoughts \(reasoning_content\), which no episode"):
        environment(dataset)


def test_a_version_without_held_out_rows_is_refused(tmp_path: Path) -> None:
    rows = [row | {"s": "train"} for row in ROWS]
    with pytest.raises(UnusableEnvironment, match="no rows for heldout"):
        environment(stored(tmp_path, rows, MAPPING))


def test_a_run_of_questions_names_its_rows() -> None:
    with pytest.raises(ValueError, match="are rows of a dataset, and none is named"):
        RunSpec.model_validate({"name": "x", "environment": {"id": "qa"}})


def test_a_judge_without_its_key_is_refused_with_the_path_of_its_verifier(
    sums: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PALESTRA_JUDGE_KEY", raising=False)
    judge = {"endpoint": "http://127.0.0.1:1/v1", "model": "m", "api_key_variable": "PALESTRA_JUDGE_KEY"}
    rubric = {"kind": "rubric", "rubric": "Courtesy.", "judge": judge}
    with pytest.raises(UnusableEnvironment) as refused:
        environment(sums, verifier={"kind": "numeric"}, components=[{"name": "own", "verifier": rubric}])
    assert refused.value.problem.field == "environment.components.0.verifier.judge.api_key_variable"
    monkeypatch.setenv("PALESTRA_JUDGE_KEY", "k")
    environment(sums, verifier={"kind": "numeric"}, components=[{"name": "own", "verifier": rubric}])
