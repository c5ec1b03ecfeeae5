"""What a run would refuse of its own data is refused by ``check``, and by ``train`` before anything is written."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from engine.launch.preflight import BadSpec, spec_from_file
from engine.launch.run_files import check_stage_files
from engine.launch.sample_model import make_sample_model
from engine.training.examples import FileExamples

USER = {"role": "user", "content": "1+1="}
PHRASE = {"role": "assistant", "content": "2"}
TOOLS = [{"type": "function", "function": {"name": "python"}}]
GOOD = {"messages": [USER, PHRASE]}
LONG = {"messages": [USER, {"role": "assistant", "content": "number " * 400}]}
UNWRITABLE = {
    "messages": [
        USER,
        {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "", "arguments": {}}}]},
    ],
    "tools": TOOLS,
}
RUN = """\
name = "own"
[environment]
id = "python-math"
levels = [1]
max_turns = 2
max_turn_tokens = 32
[dataset]
train_tasks = 50
heldout_tasks = 8
[model]
kind = "pretrained"
path = "tiny"
context_tokens = 256
[recipe]
preset = "grpo"
objective = {kind = "none"}
[[recipe.stages]]
data = {kind = "chat", file = "chat.jsonl"}
steps = 2
batch_size = 2
[resources]
threads = 1
kv_slots = 4
sandboxes = 2
[evaluation]
tasks = 2
interim_tasks = 2
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "tiny"
    make_sample_model(path, seed=0)
    return path


@pytest.fixture
def run_toml(tmp_path: Path, model: Path) -> Path:
    file = tmp_path / "run.toml"
    file.write_text(RUN.replace('"tiny"', json.dumps(str(model))))
    return file


def written(run_toml: Path, *documents: Any) -> None:
    lines = (document if isinstance(document, str) else json.dumps(document) for document in documents)
    (run_toml.parent / "chat.jsonl").write_text("".join(line + "\n" for line in lines))


def refusal(run_toml: Path, **options: Any) -> str:
    with pytest.raises(BadSpec) as refused:
        check_stage_files(spec_from_file(run_toml), run_toml.parent, **options)
    return "\n".join(refused.value.lines)


@pytest.mark.parametrize("lines", [[], ["", "   "]])
def test_a_file_without_documents_is_refused_with_what_to_do(run_toml: Path, lines: list[str]) -> None:
    written(run_toml, *lines)
    reason = refusal(run_toml)
    assert "chat.jsonl: holds nothing to learn (0 documents" in reason
    assert reason.endswith("or name another file in recipe.stages.0.data.file")


def test_documents_that_cannot_be_written_or_do_not_fit_are_counted_and_the_first_shown(run_toml: Path) -> None:
    written(run_toml, GOOD, LONG, UNWRITABLE, GOOD, LONG, LONG)
    reason = refusal(run_toml)
    assert "chat.jsonl: 4 of 6 documents cannot be learned from, first: line 2: " in reason
    assert "do not fit into model.context_tokens = 256; shorten it, or set recipe.stages.0.data.too_long" in reason
    assert " | line 3: messages[1] = '': this model cannot write the message" in reason
    assert "leave the document out, or use a model whose template can write it | line 5: " in reason
    assert "line 6" not in reason


def test_one_document_that_does_not_fit_is_named_alone(run_toml: Path) -> None:
    written(run_toml, GOOD, LONG)
    assert "of 2 documents" not in (reason := refusal(run_toml))
    assert "chat.jsonl: line 2: " in reason


def test_documents_behind_those_that_are_written_have_their_form_looked_at(run_toml: Path) -> None:
    written(run_toml, GOOD, LONG)
    check_stage_files(spec_from_file(run_toml), run_toml.parent, most_written=1)
    written(run_toml, GOOD, {"messages": []})
    assert "line 2: messages" in refusal(run_toml, most_written=1)


@pytest.mark.parametrize("verb", ["check", "train"])
def test_the_commands_refuse_before_anything_is_written(run_toml: Path, verb: str) -> None:
    written(run_toml, LONG)
    done = subprocess.run(
        [sys.executable, "-m", "engine", verb, "run.toml", *(["--run-dir", "run"] if verb == "train" else [])],
        cwd=run_toml.parent, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 2
    assert "do not fit into model.context_tokens" in done.stderr
    assert not (run_toml.parent / "run").exists()


WRITES_ONE = """
import sys
from engine.__main__ import main
from engine.launch import train
train.MOST_WRITTEN = 1
sys.exit(main(sys.argv[1:]))
"""


def test_a_run_that_can_never_go_on_is_not_offered_to(run_toml: Path) -> None:
    written(run_toml, GOOD, LONG)
    done = subprocess.run(
        [sys.executable, "-c", WRITES_ONE, "train", "run.toml", "--in-process", "--run-dir", "run"],
        cwd=run_toml.parent, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 1
    assert "do not fit into model.context_tokens" in done.stderr
    assert "--resume" not in done.stderr
    assert "to go on" not in done.stderr


def test_a_file_with_a_byte_order_mark_is_taken_and_read_again(run_toml: Path) -> None:
    file = run_toml.parent / "chat.jsonl"
    file.write_text(json.dumps(GOOD) + "\n", encoding="utf-8-sig")
    check_stage_files(spec_from_file(run_toml), run_toml.parent)
    file.write_text("\n", encoding="utf-8-sig")
    assert "holds nothing to learn (0 documents" in refusal(run_toml)
    file.write_text(json.dumps(GOOD) + "\n\ufeff" + json.dumps(GOOD) + "\n")
    assert "line 2" in refusal(run_toml)


@pytest.mark.parametrize("indent", [None, 1])
def test_a_file_that_is_one_array_is_refused_in_one_sentence(run_toml: Path, indent: int | None) -> None:
    (run_toml.parent / "chat.jsonl").write_text(json.dumps([GOOD, GOOD], indent=indent))
    reason = refusal(run_toml)
    assert "this is no JSON object but an array, as of all documents together; write one document a line: jq" in reason
    assert "line 2" not in reason


def test_an_example_of_a_file_with_a_byte_order_mark_is_read_as_it_was_counted(tmp_path: Path) -> None:
    file = tmp_path / "data.jsonl"
    file.write_text(json.dumps({"text": "ab"}) + "\n", encoding="utf-8-sig")
    made = FileExamples(
        file, lambda line, _: [([1, *map(ord, json.loads(line)["text"])], [False, True, True])],
        field="f", context_tokens=9, too_long="refuse", sha256=None,
    )  # fmt: skip
    assert made.read_on(2**20)
    assert made.samples(0)[0].token_ids.tolist() == [1, 97, 98]
