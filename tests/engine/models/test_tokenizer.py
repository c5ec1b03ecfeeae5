import json
import subprocess
import sys
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as HfTokenizer

from engine.models.tokenizer import CHARACTERS, MARKS, Tokenizer, tokenizer_for
from engine.models.words import WORDS_OF_VOCABULARY

tokenizer = tokenizer_for("characters")
VOCABULARIES = sorted(WORDS_OF_VOCABULARY)
SPEECH = st.lists(st.sampled_from([*WORDS_OF_VOCABULARY["household"], *CHARACTERS, *MARKS]), max_size=12).map("".join)


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


@pytest.mark.parametrize("vocabulary", VOCABULARIES)
def test_words_follow_the_characters_whose_ids_stay(vocabulary):
    vocab = tokenizer_for(vocabulary).vocab
    assert vocab == (*tokenizer.vocab, *WORDS_OF_VOCABULARY[vocabulary])
    assert len(set(vocab)) == len(vocab)


def test_the_characters_are_a_vocabulary_of_their_own():
    assert len(tokenizer) == len(MARKS) + len(CHARACTERS) == 108


def test_a_vocabulary_that_is_not_there_has_no_tokenizer():
    with pytest.raises(KeyError, match="chess"):
        tokenizer_for("chess")  # type: ignore[arg-type]


def test_the_longest_word_that_fits_wins_and_the_rest_is_characters():
    pieces = Tokenizer(("go", "go to ", "to", "desk", "desklamp")).pieces
    of = Tokenizer(("go", "go to ", "to", "desk", "desklamp")).encode
    assert pieces(of("go to desklamp 1")) == ["go to ", "desklamp", " ", "1"]
    assert pieces(of("go todesk")) == ["go", " ", "to", "desk"]
    assert pieces(of("desklam")) == ["desk", "l", "a", "m"]


@pytest.mark.parametrize("vocabulary", VOCABULARIES)
@given(text=SPEECH)
def test_words_lose_nothing_and_never_make_a_mark(vocabulary, text):
    worded = tokenizer_for(vocabulary)
    ids = worded.encode(text)
    assert worded.decode(ids) == text
    assert not any(map(worded.is_mark, ids))
    assert len(ids) <= len(tokenizer.encode(text))


@pytest.mark.parametrize("vocabulary", VOCABULARIES)
@given(text=st.one_of(SPEECH, st.text(max_size=20)))
def test_exported_words_give_equal_ids(vocabulary, text):
    assert _exported(vocabulary).encode(text).ids == tokenizer_for(vocabulary).encode(text)


@cache
def _exported(vocabulary: str = "characters") -> HfTokenizer:
    return HfTokenizer.from_str(json.dumps(tokenizer_for(vocabulary).as_tokenizers_json()))
