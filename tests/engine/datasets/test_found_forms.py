"""Forms in which datasets are found: taken as they are, or named in one sentence with what to do."""

import json
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from engine.datasets.sources import value_at
from engine.environments import dataset_reader
from engine.rollout.chat_documents import documents_in
from engine.spec.dataset_report import RowFault
from tests.engine.datasets.sources import json_lines, prepared

CALL = {"id": "1", "type": "function", "function": {"name": "python", "arguments": '{"code": "print(4)"}'}}
CHAT: list[dict[str, Any]] = [
    {"role": "user", "content": "2 + 2?"},
    {"role": "assistant", "content": None, "reasoning_content": "I had better run it.", "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "1", "content": "no such program", "is_error": True},
    {"role": "assistant", "content": "4", "reasoning_content": "Four."},
]


def only_fault(tmp_path: Path, content: bytes, mapping: dict[str, Any], name: str = "a.jsonl") -> RowFault:
    _, report = prepared(tmp_path, {name: content}, {"mapping": mapping})
    assert (report.state, report.faults) == ("refused", 1), report
    return report.shown_faults[0]


def parquet(tmp_path: Path, rows: list[dict[str, Any]]) -> bytes:
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "made.parquet")
    return (tmp_path / "made.parquet").read_bytes()


# Conversations
def test_a_chat_file_is_a_dataset_too_with_thoughts_failures_and_calls_without_content(tmp_path: Path) -> None:
    lines = json_lines([{"messages": CHAT}])
    assert len(list(documents_in(lines.decode().splitlines()))) == 1
    sealed, report = prepared(tmp_path, {"a.jsonl": lines}, {"mapping": {"messages": "messages"}})
    assert report.state == "ready", report
    with dataset_reader.open(sealed) as rows:
        kept = json.loads(rows.row("train", 0).line())["messages"]
    assert kept == [CHAT[0], CHAT[1] | {"content": ""}, *CHAT[2:]]


def test_what_says_nothing_leaves_no_trace_in_a_row(tmp_path: Path) -> None:
    digests = set()
    for number, (content, failed) in enumerate(
        [({"content": None}, {"is_error": False}), ({"content": ""}, {}), ({}, {})]
    ):
        call = {"role": "assistant", "tool_calls": [CALL]} | content
        reply = {"role": "tool", "content": "4"} | failed
        row = {"messages": [CHAT[0], call, reply]}
        sealed, report = prepared(
            tmp_path / str(number), {"a.jsonl": json_lines([row])}, {"mapping": {"messages": "messages"}}
        )
        assert report.state == "ready", report
        digests.add((sealed / "train.jsonl").read_bytes())
    assert len(digests) == 1


@pytest.mark.parametrize(
    ("message", "column", "words"),
    [
        ({"role": "assistant", "content": None}, "m.0.content", "string"),
        (
            {"role": "user", "content": "x", "reasoning_content": "hm"},
            "m.0.reasoning_content",
            "the user has no thought",
        ),
        ({"role": "user", "content": "x", "is_error": True}, "m.0.is_error", "the user answers no call"),
        ({"role": "tool", "content": "x", "is_error": "yes!"}, "m.0.is_error", "boolean"),
    ],
)
def test_what_belongs_to_another_role_is_refused_by_its_field(
    tmp_path: Path, message: dict[str, Any], column: str, words: str
) -> None:
    wrong = only_fault(tmp_path, json_lines([{"m": [message]}]), {"messages": "m"})
    assert (wrong.line, wrong.column) == (1, column)
    assert words in wrong.message
    assert wrong.remedy


# verl
VERL = [
    {
        "prompt": [{"role": "user", "content": f"How much is {n} + {n}?"}],
        "reward_model": {"style": "rule", "ground_truth": str(2 * n)},
        "extra_info": {"split": "train" if n else "heldout", "index": n},
    }
    for n in range(3)
]


def test_fields_inside_of_columns_are_mapped_by_their_paths(tmp_path: Path) -> None:
    mapping = {"messages": "prompt", "answer": "reward_model.ground_truth", "split": "extra_info.split",
               "id": "extra_info.index", "metadata_keys": ["reward_model.style"]}  # fmt: skip
    for name, content in {"a.parquet": parquet(tmp_path, VERL), "a.jsonl": json_lines(VERL)}.items():
        asked = {"mapping": mapping, "splitting": {"kind": "column"}, "duplicates": {"similarity": None}}
        sealed, report = prepared(tmp_path / name, {name: content}, asked)
        assert report.state == "ready", report
        with dataset_reader.open(sealed) as rows:
            assert (rows.len("heldout"), rows.len("train")) == (1, 2)
            row = rows.row("train", 1)
        assert (row.id, row.answer, row.metadata) == ("2", "4", {"reward_model.style": "rule"})


def test_a_column_with_a_dot_in_its_own_name_goes_before_a_path() -> None:
    values = {"a.b": 1, "a": {"b": 2, "c": {"d": 3}}}
    assert [value_at(values, column) for column in ("a.b", "a.c.d", "a.c.x", "a.b.c", "x.y")] == [
        1,
        3,
        None,
        None,
        None,
    ]


def test_an_object_where_a_text_is_due_names_its_fields(tmp_path: Path) -> None:
    wrong = only_fault(tmp_path, json_lines(VERL[:1]), {"messages": "prompt", "answer": "reward_model"})
    assert (wrong.column, wrong.message) == ("reward_model", "it is no text but an object")
    assert wrong.remedy == "map a field of it to answer: reward_model.style, reward_model.ground_truth"


def test_a_conversation_where_a_prompt_is_due_is_mapped_to_messages(tmp_path: Path) -> None:
    wrong = only_fault(tmp_path, json_lines(VERL[:1]), {"prompt": "prompt"})
    assert wrong.message == "it is no text but a list"
    assert wrong.remedy.startswith("map it to messages in place of prompt")


def test_a_path_that_leads_nowhere_is_named(tmp_path: Path) -> None:
    wrong = only_fault(tmp_path, json_lines(VERL), {"messages": "prompt", "answer": "reward_model.truth"})
    assert (wrong.column, wrong.message) == ("reward_model.truth", "no row has this column")
    assert "a field inside of one as column.field" in wrong.remedy


def test_a_column_that_no_row_can_keep_is_named(tmp_path: Path) -> None:
    content = parquet(tmp_path, [{"prompt": "What is it?", "picture": b"\x89PNG"}])
    wrong = only_fault(tmp_path, content, {"prompt": "prompt"}, "a.parquet")
    assert (wrong.line, wrong.column, wrong.message) == (1, "picture", "it holds bytes, which no JSON has")
    assert "PNG" in wrong.value


# Forms that are named
@pytest.mark.parametrize("as_text", [False, True])
def test_sharegpt_is_named_in_one_sentence(tmp_path: Path, as_text: bool) -> None:
    turns = [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello"}]
    row = {"conversations": json.dumps(turns) if as_text else turns}
    wrong = only_fault(tmp_path, json_lines([row]), {"messages": "conversations"})
    assert (wrong.column, wrong.message) == ("conversations", "this is the form of ShareGPT")
    assert "human -> user" in wrong.remedy


def test_alpacas_input_is_never_lost_without_a_word(tmp_path: Path) -> None:
    row = {"instruction": "Add them.", "input": "1 2", "output": "3"}
    mapping: dict[str, Any] = {"prompt": "instruction", "answer": "output"}
    wrong = only_fault(tmp_path, json_lines([row]), mapping)
    assert wrong.column == "input"
    assert wrong.message.startswith("this is the form of Alpaca")
    for number, fine in enumerate([(row | {"input": ""}, mapping), (row, mapping | {"metadata_keys": ["input"]})]):
        _, report = prepared(tmp_path / str(number), {"a.jsonl": json_lines([fine[0]])}, {"mapping": fine[1]})
        assert report.state == "ready", report


@pytest.mark.parametrize(
    ("content", "message", "remedy"),
    [
        (b'[{"prompt": "x"}]\n', "the line is no object but a list", "on a line of its own"),
        (b"[\n", "the line is no JSON: it ends before it is whole", "on a line of its own"),
        (b"{'prompt': 'x'}\n", "no JSON: a name in double quotes is due, at character 2", "one JSON object a line"),
        (b'{"prompt": x}\n', "misspelt (a text stands in double quotes), at character 12", "one JSON"),
        (b'{"prompt": "x",}\n', "a name in double quotes is due", "one JSON"),
        (b'{"prompt": "x" "y"}\n', "a comma or a closing bracket is due, at character 16", "one JSON"),
        (b'{"prompt": "x"} {}\n', "something follows behind its end", "one JSON"),
        (b'{"prompt": "x}\n', "the text that begins there is never closed, at character 12", "one JSON"),
        (b'{"prompt": "\\x"}\n', "a backslash stands before a character that it cannot escape", "one JSON"),
        (b"7\n", "the line is no object but 7", '{"prompt": ...}'),
    ],
)  # fmt: skip
def test_lines_that_are_no_json_are_explained_to_whoever_wrote_them(
    tmp_path: Path, content: bytes, message: str, remedy: str
) -> None:
    wrong = only_fault(tmp_path, content, {"prompt": "prompt"})
    assert message in wrong.message
    assert "Expecting" not in wrong.message
    assert remedy in wrong.remedy


# CSV
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_lines_of_csv_may_end_with_carriage_returns(tmp_path: Path, mark: bytes) -> None:
    content = mark + b'prompt,answer\ra,1\r"b\rc",2\r\rd,3'
    sealed, report = prepared(tmp_path, {"a.csv": content}, {"mapping": {"prompt": "prompt", "answer": "answer"}})
    assert (report.state, report.rows) == ("ready", 3), report
    with dataset_reader.open(sealed) as rows:
        assert [row.prompt for row in rows.rows("train")] == ["a", "b\nc", "d"]


def test_faults_of_such_a_file_know_their_lines(tmp_path: Path) -> None:
    wrong = only_fault(tmp_path, b"prompt,answer\ra,1\rb,2,3\r", {"prompt": "prompt"}, "a.csv")
    assert wrong.line == 3


def test_a_carriage_return_in_an_unquoted_cell_is_named(tmp_path: Path) -> None:
    wrong = only_fault(tmp_path, b"prompt,answer\na\rb,1\n", {"prompt": "prompt"}, "a.csv")
    assert wrong.message == "a carriage return stands in a cell without quotes"
    assert "universal-newline" not in f"{wrong.message} {wrong.remedy}"
