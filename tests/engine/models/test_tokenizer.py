import json
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as HfTokenizer

from engine.models.tokenizer import CHARACTERS, MARKS, default_tokenizer

tokenizer = default_tokenizer()


@given(st.text(alphabet=CHARACTERS))
def test_encoding_known_text_loses_nothing(text):
    assert tokenizer.decode(tokenizer.encode(text)) == text


@given(st.text())
def test_no_text_becomes_a_mark_except_unk(text):
    ids = tokenizer.encode(text)
    assert len(ids) == len(text)
    assert all(i == tokenizer.unk or not tokenizer.is_mark(i) for i in ids)


@pytest.mark.parametrize("mark", MARKS)
def test_writing_the_name_of_a_mark_gives_its_characters(mark):
    assert len(tokenizer.encode(mark)) == len(mark)


def test_each_mark_attribute_names_its_text():
    names = "pad unk bos eos user assistant tool_open tool_close output_open output_close answer_open answer_close"
    assert tuple(tokenizer.vocab[getattr(tokenizer, name)] for name in names.split()) == MARKS


def test_vocabulary_is_small_and_without_doubles():
    assert len(set(tokenizer.vocab)) == len(tokenizer) < 128


@given(st.text(max_size=40))
def test_exported_tokenizer_gives_equal_ids(text):
    assert _exported().encode(text).ids == tokenizer.encode(text)


def test_exported_tokenizer_does_not_read_marks_in_text():
    ids = _exported().encode("<answer>12</answer>").ids
    assert ids == tokenizer.encode("<answer>12</answer>")
    assert not any(map(tokenizer.is_mark, ids))


def test_importing_the_tokenizer_leaves_torch_alone():
    code = "import sys, engine.models.tokenizer; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


_cache: list[HfTokenizer] = []


def _exported() -> HfTokenizer:
    if not _cache:
        _cache.append(HfTokenizer.from_str(json.dumps(tokenizer.as_tokenizers_json())))
    return _cache[0]
