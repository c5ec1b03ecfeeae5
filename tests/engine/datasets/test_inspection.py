"""What the columns of a file seem to be, by their names and by what most of their rows hold."""

from pathlib import Path
from typing import Any

import pytest

from engine.datasets.inspection import SHOWN_ROWS, inspect
from tests.engine.datasets.sources import folder_with, json_lines

CHAT = [{"role": "user", "content": "Hello"}]


def guessed(tmp_path: Path, rows: list[Any]) -> dict[str, Any] | None:
    mapping = inspect(folder_with(tmp_path, {"q.jsonl": json_lines(rows)})).mapping
    return None if mapping is None else mapping.model_dump(exclude_none=True, exclude_defaults=True)


@pytest.mark.parametrize(
    ("row", "mapping"),
    [
        (
            {"question": "a", "final_answer": 7, "uid": "x"},
            {"prompt": "question", "answer": "final_answer", "id": "uid"},
        ),
        ({"Problem": "a", "Solution": "b"}, {"prompt": "Problem", "answer": "Solution"}),
        ({"messages": CHAT, "prompt": "a", "split": "train"}, {"messages": "messages", "split": "split"}),
        ({"prompt": CHAT}, None),
        ({"text": "a"}, None),
        ({"prompt": "a", "metadata": "no object", "extra_info": {"a": 1}}, {"prompt": "prompt"}),
        ({"prompt": "a", "meta": '{"a": 1}'}, {"prompt": "prompt", "metadata": "meta"}),
    ],
)
def test_columns_are_guessed_by_their_names_and_contents(tmp_path: Path, row: Any, mapping: Any) -> None:
    assert guessed(tmp_path, [row]) == mapping


def test_a_few_rows_at_fault_change_no_guess_and_a_repeated_id_is_none(tmp_path: Path) -> None:
    rows = [{"prompt": f"{n}", "id": n % 9} for n in range(10)]
    rows[3]["prompt"] = 7
    assert guessed(tmp_path, rows) == {"prompt": "prompt"}


def test_the_first_rows_are_shown_cut_with_the_faults_between_them(tmp_path: Path) -> None:
    content = json_lines([{"prompt": "x" * 5000, "n": n} for n in range(30)]) + b"no json\n"
    report = inspect(folder_with(tmp_path, {"q.jsonl": content}))
    assert len(report.rows) == SHOWN_ROWS
    assert [len(cell) for cell in report.rows[0]] == [300, 1]
    assert [(column.name, column.filled, column.kind) for column in report.columns] == [
        ("prompt", 30, "text"), ("n", 30, "number"),
    ]  # fmt: skip
    assert [fault.line for fault in report.faults] == [31]
