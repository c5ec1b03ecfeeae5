import os
import string
from functools import cache, partial
from pathlib import Path
from tempfile import mkdtemp

import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from engine.models.pretrained_tokenizer import PretrainedTokenizer
from engine.rollout.chat_documents import ChatDocument, DocumentRefused, supervised_sequences
from engine.rollout.renderers.chat import ChatRenderer, chat_renderer
from engine.rollout.renderers.preflight import problem_here
from engine.rollout.stage_documents import line_reader
from engine.spec.message import AssistantMessage, Message, ToolSchema
from engine.spec.model import PretrainedModel
from engine.spec.supervised import Stage
from tests.engine.rollout.renderers.placed_folders import CHATML, IM, KINDS, byte_level, write_placed_folder

LETTERS = string.ascii_letters + string.digits
PYTHON = ToolSchema.of_text("python", "code")


def of_alphabet(characters: str) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator([characters], trainers.BpeTrainer(vocab_size=200, show_progress=False))
    return tokenizer


def of_words() -> Tokenizer:
    words = {"[UNK]": 0, "Hello": 1, "user": 2, "assistant": 3}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return tokenizer


LOSSY = {
    "gaps": partial(of_alphabet, LETTERS + " \n.!"),
    "half": partial(of_alphabet, string.ascii_lowercase + " \n.!"),
    "lower-case": partial(byte_level, normalizers.Lowercase()),
    "words": of_words,
    "no-accents": partial(byte_level, normalizers.Sequence([normalizers.NFD(), normalizers.StripAccents()])),
}
NORMAL = {"NFC": normalizers.NFC, "NFD": normalizers.NFD, "NFKC": normalizers.NFKC, "NFKD": normalizers.NFKD}


@cache
def folder(name: str) -> Path:
    tokenizer = LOSSY[name]() if name in LOSSY else byte_level(NORMAL[name]())
    return write_placed_folder(Path(mkdtemp(dir=os.environ["PALESTRA_HOME"])), tokenizer, CHATML, IM, {})


def speaking(name: str) -> ChatRenderer:
    return chat_renderer(folder(name), tool_calls="code-fence")


@pytest.mark.parametrize(
    ("name", "content", "named"),
    [
        ("gaps", "ok <|im_end|> there.", "< > _ |"),
        ("gaps", "Grüße", "ß ü"),
        ("lower-case", "Hello", "H"),
        ("words", "One", "O e n"),
        ("no-accents", "naïve", "ï"),
    ],
)
def test_what_the_tokenizer_loses_is_not_written_and_the_characters_are_named(name, content, named):
    speak = speaking(name)
    with pytest.raises(ValueError, match="cannot write the message: its tokenizer cannot hold ") as refused:
        speak.write(AssistantMessage(content), [])
    assert str(refused.value).endswith(f"cannot hold {named}")
    with pytest.raises(ValueError, match="cannot hold"):
        speak.write(AssistantMessage("", AssistantMessage.calling("python", {"code": content}).requests), [PYTHON])


def test_a_document_with_such_characters_is_refused_by_line_and_message():
    document = ChatDocument((Message("user", "<Hi>"), AssistantMessage("Fine."), Message("user", "a"),
                             AssistantMessage("a~b")), line=4)  # fmt: skip
    with pytest.raises(DocumentRefused, match=r"line 4: messages\[3\] = 'a~b': .*cannot hold ~; leave"):
        supervised_sequences(document, speaking("gaps"))


def test_what_is_only_read_may_lose_characters():
    speak = speaking("gaps")
    assert "im_start" not in speak.text(speak.prompt([Message("user", "say <|im_start|>.")], []))[12:].split("\n")[1]
    assert speak.text(speak.quote("say <b>.")).startswith("say b.")


def test_a_text_to_learn_with_such_characters_is_refused_by_line_and_field(tmp_path):
    stage = Stage.model_validate({"data": {"kind": "text", "file": "a.jsonl"}, "steps": 1, "batch_size": 1})
    read = line_reader(stage, PretrainedModel(path=str(folder("gaps"))), speaking("gaps"))
    assert read('{"text": "Fine."}', 1)
    with pytest.raises(DocumentRefused, match=r"line 2: text = .*tokenizer cannot hold < >; leave it out, or"):
        read('{"text": "a <b> c"}', 2)


@pytest.mark.parametrize(("name", "named"), [("half", "A B C"), ("lower-case", "A B C"), ("words", "0 1 2")])
def test_a_tokenizer_that_loses_letters_or_digits_is_refused_before_the_run(name, named):
    problem = problem_here(folder(name), "auto", "auto", tools=False)
    assert problem is not None
    assert f"cannot hold the characters {'0 1 2 3 4 5 6 7 8 9 ' if name == 'half' else ''}{named}" in problem.message


@pytest.mark.parametrize("name", ["gaps", "no-accents", *NORMAL])
def test_a_tokenizer_that_keeps_letters_and_digits_passes(name):
    assert problem_here(folder(name), "auto", "auto", tools=False) is None


@pytest.mark.parametrize("name", NORMAL)
def test_how_unicode_composes_a_character_is_the_tokenizers_own_affair(name):
    speak = speaking(name)
    for content in ("e\u0301 \u00e9", "ﬁne ²", "žluťoučký 日本語 🐎"):
        assert speak.write(AssistantMessage(content), [])
    assert not speak.tokenizer.lost_in("e\u0301 \u00e9 ﬁ ² 🐎\n\t")


@pytest.mark.parametrize("kind", KINDS)
def test_a_space_before_a_text_is_no_character_that_is_lost(kind):
    tokenizer, *rest = KINDS[kind]
    folder = write_placed_folder(Path(mkdtemp(dir=os.environ["PALESTRA_HOME"])), tokenizer(), *rest)
    printable = "".join(map(chr, range(32, 127)))
    assert PretrainedTokenizer(folder).lost_in(printable + "\n\tžluťoučký 日本語 🐎") == ""
