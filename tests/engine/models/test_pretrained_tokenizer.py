import json
import shutil
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from tokenizers.decoders import DecodeStream
from transformers import AutoTokenizer

from engine.models.pretrained_tokenizer import PretrainedTokenizer
from engine.models.refusal import ModelFolderRefused
from engine.models.tokenizer_training import write_tokenizer

MARKS = ("<|im_end|>", "<tool_call>", "<|endoftext|>", "</think>")


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("qwen3")
    write_tokenizer(folder, family="qwen3", seed=5, texts=["naïve 日本語 <div> code"])
    return folder


@pytest.fixture(scope="module")
def tokenizer(folder) -> PretrainedTokenizer:
    return PretrainedTokenizer(folder)


@pytest.fixture(scope="module")
def reference(folder):
    return AutoTokenizer.from_pretrained(folder)


@pytest.fixture
def damaged(folder, tmp_path) -> Path:
    shutil.copytree(folder, tmp_path / "copy")
    return tmp_path / "copy"


def edit(file: Path, **entries) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), **entries}))


DECODED: dict[str, tuple[PretrainedTokenizer, Tokenizer]] = {}
"""By decoder: the tokenizer with it, and that of the package."""
PLAIN = st.text(st.characters(exclude_categories=["Cs"]))


@settings(max_examples=200, deadline=None)
@given(parts=st.lists(st.tuples(st.sampled_from(MARKS), PLAIN), max_size=4))
def test_text_with_marks_has_the_ids_that_transformers_gives_it(tokenizer, reference, parts):
    parts = [(mark, text) for mark, text in parts if not any(known in text for known in tokenizer.marks)]
    written = "".join(tokenizer.mark(mark) + text for mark, text in parts)
    whole = "".join(mark + text for mark, text in parts)
    assert tokenizer.encode(written) == reference.encode(whole, add_special_tokens=False)
    assert tokenizer.shown(written) == whole


@settings(max_examples=200, deadline=None)
@given(parts=st.lists(st.sampled_from([*MARKS, "<|im_", "end|>", "<", "|>"]) | st.text(max_size=3), max_size=8))
def test_text_never_becomes_a_mark(tokenizer, parts):
    ids = tokenizer.encode("".join(parts))
    assert not set(ids) & set(tokenizer.marks.values())


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_pieces_are_the_text_of_any_ids_and_none_raises(tokenizer, data):
    ids = data.draw(st.lists(st.integers(-3, len(tokenizer) + 3) | st.just(2**70), max_size=12))
    pieces = tokenizer.pieces(ids)
    assert len(pieces) == len(ids)
    known = [token for token in ids if tokenizer.knows(token)]
    if known == ids:
        assert "".join(pieces) == tokenizer.text(ids)
        assert len(tokenizer.text(ids).encode()) >= len(ids) - sum(piece == "" for piece in pieces)


@pytest.mark.parametrize("decoder", [decoders.ByteLevel(), decoders.Sequence([decoders.Fuse(), decoders.ByteLevel()])])
@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_pieces_are_those_of_a_stream_whatever_the_tokens_say_alone(folder, tmp_path_factory, decoder, data):
    if repr(decoder) not in DECODED:
        shutil.copytree(folder, copy := tmp_path_factory.mktemp("decoder") / "copy")
        edit(copy / "tokenizer.json", decoder=json.loads(decoder.__getstate__()))
        DECODED[repr(decoder)] = PretrainedTokenizer(copy), Tokenizer.from_file(str(copy / "tokenizer.json"))
    tokenizer, own = DECODED[repr(decoder)]
    tokens = st.integers(0, len(tokenizer) - 1).filter(tokenizer.knows)
    texts = st.sampled_from(["日本", "naïve", "🐎 x", " \ufffd", "<div>"]).map(tokenizer.encode)
    ids = sum(data.draw(st.lists(texts | st.lists(tokens, max_size=3), min_size=1, max_size=6)), [])
    stream = DecodeStream(skip_special_tokens=False)
    streamed = [stream.step(own, token) or "" for token in ids]
    kept_back = own.decode(ids, skip_special_tokens=False)[sum(map(len, streamed)) :] if ids else ""
    assert tokenizer.pieces(ids) == [*streamed[:-1], *(text + kept_back for text in streamed[-1:])]


def test_pieces_of_text_join_to_the_text(tokenizer):
    text = "žluťoučký 日本語 🐎 a\x00b"
    assert "".join(tokenizer.pieces(tokenizer.encode(text))) == text
    assert tokenizer.text(tokenizer.encode("a\ud800b")) == "a\ufffdb"


def test_two_processes_name_marks_differently_and_so_no_text_can_be_written_for_them(folder, tokenizer):
    other = PretrainedTokenizer(folder)
    assert other.mark("<|im_end|>") != tokenizer.mark("<|im_end|>")
    assert not set(other.encode(tokenizer.mark("<|im_end|>"))) & set(other.marks.values())


def test_its_length_is_what_an_embedding_must_have(tokenizer, reference):
    assert len(tokenizer) == len(reference)


def test_stops_come_from_the_generation_config_and_the_end_token(damaged, tokenizer):
    assert {tokenizer.mark_of(token) for token in tokenizer.stop_ids} == {"<|im_end|>", "<|endoftext|>"}
    edit(damaged / "generation_config.json", eos_token_id=tokenizer.marks["<|endoftext|>"])
    edit(damaged / "tokenizer_config.json", eos_token={"content": "<|im_end|>"})
    assert PretrainedTokenizer(damaged).stop_ids == tokenizer.stop_ids


def test_a_truncation_in_the_file_does_not_cut_prompts(damaged):
    truncation = {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0}
    edit(damaged / "tokenizer.json", truncation=truncation)
    assert len(PretrainedTokenizer(damaged).encode("one two three four five six seven")) > 4


def test_white_space_that_the_tokenizer_adds_is_text_and_no_mark(damaged):
    description = json.loads((damaged / "tokenizer.json").read_text())
    last = description["added_tokens"][-1]
    spaces = {**last, "id": last["id"] + 1, "content": "\n\n\n"}
    edit(damaged / "tokenizer.json", added_tokens=[*description["added_tokens"], spaces])
    tokenizer = PretrainedTokenizer(damaged)
    assert "\n\n\n" not in tokenizer.marks
    assert tokenizer.encode("a\n\n\nb")[1] == last["id"] + 1


def test_a_template_stands_in_a_file_or_in_the_configuration(damaged, tokenizer):
    template = tokenizer.chat_template()
    (damaged / "chat_template.jinja").unlink()
    for written in (template, [{"name": "tool_use", "template": "x"}, {"name": "default", "template": template}]):
        edit(damaged / "tokenizer_config.json", chat_template=written)
        assert PretrainedTokenizer(damaged).chat_template() == template


PANIC = {"type": "Precompiled", "precompiled_charsmap": "AAAA"}
"""The package panics when it reads this, with what is no Exception."""


def without(name):
    return lambda folder: (folder / name).unlink()


def no_end(folder: Path) -> None:
    (folder / "generation_config.json").unlink()
    (folder / "special_tokens_map.json").write_text("{}")
    (folder / "tokenizer_config.json").write_text("{}")


def marks_as_words(folder: Path) -> None:
    words = Tokenizer(models.WordLevel({"<|im_end|>": 0, "unknown": 1}, unk_token="unknown"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    description = json.loads(words.to_str())
    description["pre_tokenizer"] = None
    mark = {"id": 0, "content": "<|im_end|>", "special": True}
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    description["added_tokens"] = [mark | flags]
    (folder / "tokenizer.json").write_text(json.dumps(description))
    (folder / "generation_config.json").write_text('{"eos_token_id": 0}')


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (without("tokenizer.json"), "there is no tokenizer.json"),
        (lambda folder: (folder / "tokenizer.json").write_text("{"), "cannot be read"),
        (lambda folder: (folder / "tokenizer.json").write_bytes(b"\xff\xfe"), "cannot be read"),
        (lambda folder: (folder / "tokenizer.json").write_text("[]"), "no JSON object"),
        (lambda folder: (folder / "tokenizer.json").write_text("{}"), "cannot be read"),
        (lambda folder: edit(folder / "tokenizer.json", added_tokens=[{"id": 3}]), "missing field"),
        (lambda folder: edit(folder / "tokenizer.json", added_tokens="x"), "expected a sequence"),
        (lambda folder: edit(folder / "generation_config.json", eos_token_id=10**6), "does not have"),
        (lambda folder: edit(folder / "generation_config.json", eos_token_id="</s>"), "neither an id nor"),
        (lambda folder: edit(folder / "generation_config.json", eos_token_id=[True]), "neither an id nor"),
        (lambda folder: edit(folder / "tokenizer.json", normalizer=PANIC), "cannot be read"),
        (no_end, "no end token"),
        (marks_as_words, "could forge it"),
    ],
)
def test_a_folder_that_cannot_be_used_is_refused_with_field_value_and_remedy(damaged, damage, message):
    damage(damaged)
    with pytest.raises(ModelFolderRefused) as refused:
        PretrainedTokenizer(damaged)
    problem = refused.value.problem
    assert message in problem.message
    assert problem.field == "model.path"
    assert problem.value
    assert problem.remedy


@pytest.mark.parametrize("template", [None, "", [], 3, [{"name": "rag", "template": "x"}]])
def test_a_folder_without_a_template_is_refused(damaged, template):
    (damaged / "chat_template.jinja").unlink()
    edit(damaged / "tokenizer_config.json", chat_template=template)
    with pytest.raises(ModelFolderRefused, match="there is no chat template"):
        PretrainedTokenizer(damaged).chat_template()
