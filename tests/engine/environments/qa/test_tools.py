"""The tools of qa: real sandboxes and a real index, ordinary calls and hostile ones."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from engine.environments.imported import UnusableEnvironment
from engine.environments.qa.corpus import passages_of
from engine.environments.qa.environment import QaEnvironment
from engine.environments.qa.session import QaSession
from engine.spec.environment import Qa
from engine.spec.message import AssistantMessage
from engine.spec.run import Dataset
from engine.spec.trajectory import ToolCall
from sandboxes.pool import Pool
from tests.engine.datasets.sources import json_lines, prepared

WATCHED = {
    "terminal": True,
    "network": "watched",
    "snapshots": False,
    "memory_mib": 512,
    "processes": 64,
    "timeout_s": 30,
}
QUESTIONS = [{"prompt": f"What is {n}?", "answer": "SECRET" + str(n)} for n in range(4)]
CORPUS = [
    {"prompt": "The heron nests in tall trees beside the lake.", "answer": "SECRET"},
    {"prompt": "A kingfisher digs its nest into a bank. Kingfishers eat fish.", "answer": "SECRET"},
    {"prompt": "Café Müller serves coffee to anglers.", "answer": "SECRET"},
    {"prompt": "word " * 400, "answer": "SECRET"},
]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    files = {
        "train.jsonl": json_lines(QUESTIONS[:2]),
        "heldout.jsonl": json_lines(QUESTIONS[2:]),
        "corpus.jsonl": json_lines(CORPUS),
    }
    mapping = {"prompt": "prompt", "answer": "answer"}
    wanted = {"mapping": mapping, "splitting": {"kind": "file"}, "duplicates": {"similarity": None}}
    folder, report = prepared(Path(tmp_path_factory.mktemp("qa")), files, wanted)
    assert report.state == "ready", report
    return Dataset(folder=str(folder))


@asynccontextmanager
async def episode(dataset: Dataset, **settings: Any) -> AsyncIterator[tuple[QaSession, Pool]]:
    qa = Qa.model_validate(settings)
    environment = QaEnvironment(qa, dataset)
    async with Pool(qa.sandbox, size=1) as pool, environment.session(environment.tasks("train")[0], pool) as session:
        await session.reset()
        yield session, pool


async def called(session: QaSession, name: str, **arguments: Any) -> ToolCall:
    observation = await session.act(AssistantMessage.calling(name, arguments))
    return observation.calls[0]


async def test_python_shell_and_files_share_one_sandbox(dataset: Dataset) -> None:
    settings = {"tools": ["python", "shell", "files"], "sandbox": WATCHED}
    qa = QaEnvironment(Qa.model_validate(settings), dataset)
    names = [tool.name for tool in qa.tools(qa.tasks("train")[0])]
    assert names == ["python", "shell", "read_file", "write_file", "edit_file"]
    async with episode(dataset, **settings) as (session, _):
        await called(session, "write_file", path="a.txt", content="one\ntwo\n")
        assert (await called(session, "python", code="print(open('a.txt').read())")).output == "one\ntwo"
        await called(session, "shell", command="cd /tmp && x=5")
        assert (await called(session, "shell", command="echo $x; pwd")).output == "5\n/tmp"
        failed = await called(session, "read_file", path="/etc/no-such-file")
        assert (failed.error_class, failed.output) == ("other", "Error: No such file or directory")


async def test_an_output_is_cut_and_what_hangs_is_interrupted(dataset: Dataset) -> None:
    sandbox = WATCHED | {"timeout_s": 3.0}
    async with episode(dataset, tools=["shell"], sandbox=sandbox, output_characters=100) as (session, _):
        flood = await called(session, "shell", command="head -c 300000 /dev/zero | tr '\\0' x")
        assert len(flood.output) < 200
        assert "bytes left out" in flood.output
        hanging = await called(session, "shell", command="sleep 1000")
        assert hanging.error_class == "timeout"
        assert (await called(session, "shell", command="echo on")).output == "on"


@pytest.mark.parametrize(
    ("query", "first"),
    [
        ("where does the heron nest", "The heron"),
        ("KINGFISHERS fish", "A kingfisher"),
        ("cafe muller", "Café"),
        ('heron" OR text:* NEAR( -^', "The heron"),
        ("heron) AND (passages MATCH 'x'; DROP TABLE passages --", "The heron"),
        ("kingfisher " * 100_000, "A kingfisher"),
    ],
)
async def test_search_finds_the_passage_that_fits_best(dataset: Dataset, query: str, first: str) -> None:
    async with episode(dataset, search={"results": 1}) as (session, pool):
        for _ in range(2):
            call = await called(session, "search", query=query)
            assert call.status == "ok"
            assert call.output.startswith(f"[1] {first}")
        assert pool.stats().started == 0


@pytest.mark.parametrize("query", ["", "   ", "!!! --", "___ _", "*", "SECRET", "SECRET0", "zebra", "NOT"])
async def test_search_finds_nothing_in_what_is_not_there_and_never_an_answer(dataset: Dataset, query: str) -> None:
    async with episode(dataset, search={}) as (session, _):
        assert (await called(session, "search", query=query)).output == "nothing was found"


async def test_a_long_text_is_found_in_passages_and_shown_within_the_limit(dataset: Dataset) -> None:
    search = {"results": 50, "passage_characters": 100}
    async with episode(dataset, search=search, output_characters=250) as (session, _):
        output = (await called(session, "search", query="word")).output
    assert output.startswith("[1] " + "word " * 19 + "word\n\n[2] word")
    assert len(output) == 250


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("aa bb ccc dddddddddd e", ["aa bb", "ccc", "ddddd", "ddddd", "e"]),
        ("aaaaa", ["aaaaa"]),
        ("aaaaa\nbbbbb", ["aaaaa", "bbbbb"]),
        ("  \n  ", []),
        ("", []),
    ],
)
def test_passages_end_where_words_end(text: str, pieces: list[str]) -> None:
    assert list(passages_of(text, 5)) == pieces


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"tools": ["shell"]}, "sandbox.terminal"),
        ({"tools": ["shell"], "sandbox": {"terminal": True}}, "sandbox.network"),
        ({"tools": ["shell"], "sandbox": WATCHED, "output_characters": 2**16}, "sandbox.output_bytes"),
        ({"tools": ["python", "python"]}, "tools"),
        ({"search": {"split": "heldout"}}, "split"),
        ({"mcp": [{"name": "read", "command": ["x"]}]}, "name"),
        ({"mcp": [{"name": "calc", "command": ["x"]}, {"name": "calc", "command": ["y"]}]}, "mcp.1.name"),
    ],
)
def test_tools_that_cannot_work_are_refused_with_the_field(settings: dict[str, Any], field: str) -> None:
    with pytest.raises(ValidationError) as refusal:
        Qa.model_validate(settings)
    assert refusal.value.errors()[0]["ctx"]["field"] == field


def test_a_corpus_that_is_not_there_or_too_large_is_refused(dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UnusableEnvironment, match=r"environment\.search\.split.*it has train, heldout, corpus|corpus"):
        QaEnvironment(Qa.model_validate({"search": {"split": "books"}}), dataset)
    monkeypatch.setattr("engine.environments.qa.tools.LARGEST_CORPUS_BYTES", 10)
    with pytest.raises(UnusableEnvironment, match="a corpus at most 10"):
        QaEnvironment(Qa.model_validate({"search": {}}), dataset)


@pytest.mark.parametrize("path", ["../a", "/etc/passwd", "a/../../b", ".profile", "a//b", "", "a\nb", "a\0"])
def test_a_file_outside_the_working_folder_is_refused(path: str) -> None:
    with pytest.raises(ValidationError, match=r"files\.0\.path"):
        Qa.model_validate({"files": [{"path": path, "content": ""}]})
