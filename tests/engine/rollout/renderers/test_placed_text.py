import os
from functools import cache
from pathlib import Path
from random import Random
from tempfile import mkdtemp

import pytest
from transformers import AutoTokenizer

from engine.models.pretrained_tokenizer import PretrainedTokenizer
from engine.models.tokenizer_training import TEMPLATES
from engine.rollout.renderers.chat import chat_renderer
from engine.rollout.renderers.preflight import problem_here
from engine.spec.message import AssistantMessage, Message
from tests.engine.rollout.renderers.model_folders import NAMES
from tests.engine.rollout.renderers.placed_folders import (
    IM,
    KINDS,
    UNCUT,
    Kind,
    byte_level,
    metaspace,
    prepending,
    write_placed_folder,
)
from tests.engine.rollout.renderers.test_chat import Play, folder

WORDS = ["sum", "Hello", "the", "žluť", "日本", "{", "<b>", "1", "It's", "print(1)", "[/", "a\n\nb", "▂"]
QWEN3 = (TEMPLATES / "qwen3.jinja").read_text("utf-8")
FRAMES = (*IM, "<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
THOUGHTFUL: dict[str, Kind] = {
    "prepend": (prepending, QWEN3, FRAMES, {}),
    "first": (lambda: metaspace("first"), QWEN3, FRAMES, {}),
    "always-split": (lambda: metaspace("always", split=True), QWEN3, FRAMES, {}),
    "bytes-rstrip": (byte_level, QWEN3, FRAMES, {"rstrip": True}),
}
"""Templates with thoughts and calls, by the kind of tokenizer."""


def written(kind: Kind) -> Path:
    tokenizer, *rest = kind
    return write_placed_folder(Path(mkdtemp(dir=os.environ["PALESTRA_HOME"])), tokenizer(), *rest)


@cache
def spoken(name: str):
    folder = written(THOUGHTFUL[name])
    return chat_renderer(folder), AutoTokenizer.from_pretrained(folder)


class PlacedPlay(Play):
    """A conversation of Qwen3's template, through another tokenizer."""

    def __init__(self, kind: str, seed: int) -> None:
        super().__init__("qwen3", seed)
        self.renderer, self.reference_tokenizer = spoken(kind)

    def transformers_tokenizer(self):
        return self.reference_tokenizer


@pytest.mark.parametrize("kind", KINDS)
def test_turns_and_bridges_have_the_ids_that_transformers_gives_them_in_the_whole(kind):
    folder = written(KINDS[kind])
    speak, reference = chat_renderer(folder), AutoTokenizer.from_pretrained(folder)
    for seed in range(60):
        rng = Random(f"{kind}-{seed}")

        def text(rng=rng) -> str:
            return rng.choice(["", "", " "]) + " ".join(rng.choices(WORDS, k=rng.randrange(1, 5)))

        asked = text()
        documents, context = [{"role": "user", "content": asked}], speak.prompt([Message("user", asked)], [])
        for _ in range(3):
            answer, asked = text(), text()
            context += [*speak.write(AssistantMessage(answer), []), *speak.bridge([Message("user", asked)])]
            documents += [{"role": "assistant", "content": answer}, {"role": "user", "content": asked}]
            assert context == reference.apply_chat_template(documents, add_generation_prompt=True, return_dict=False)


@pytest.mark.parametrize("kind", KINDS)
def test_experience_can_be_cut_out_of_the_prompt_again(kind):
    speak, opening = chat_renderer(written(KINDS[kind])), [Message("user", "What is it?")]
    shown = speak.prompt(opening, [], ["Look twice."])
    start, stop = speak.experience_span(opening, [], ["Look twice."])
    assert [*shown[:start], *shown[stop:]] == speak.prompt(opening, [])
    assert speak.text(shown[start:stop]).strip().startswith("<EXP>Look twice.")


@pytest.mark.parametrize("kind", THOUGHTFUL)
def test_thoughts_and_calls_have_the_ids_that_transformers_gives_them_in_the_whole(kind):
    for seed in range(40):
        PlacedPlay(kind, seed).run()


@pytest.mark.parametrize("kind", [*KINDS, *THOUGHTFUL])
def test_a_tokenizer_that_can_be_cut_at_its_turns_passes_the_preflight(kind):
    folder, native = written((KINDS | THOUGHTFUL)[kind]), kind in THOUGHTFUL
    assert problem_here(folder, "auto" if native else "code-fence", "auto", tools=True) is None


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("bytes-word-chatml", "reads no mark where the chat template writes '<|im_start|>'"),
        ("bytes-joined-chatml", "cuts a conversation otherwise than its turns"),
        ("prepend-normalized-chatml", "reads no mark where the chat template writes"),
        ("bytes-lstrip-thoughts", "cuts a conversation otherwise than its turns"),
    ],
)
def test_a_tokenizer_that_cannot_be_cut_at_its_turns_is_refused_with_the_reason(kind, message):
    thoughts: dict[str, Kind] = {"bytes-lstrip-thoughts": (byte_level, QWEN3, FRAMES, {"lstrip": True})}
    problem = problem_here(written((UNCUT | thoughts)[kind]), "auto", "auto", tools=kind in thoughts)
    assert problem is not None
    assert message in problem.message
    assert problem.remedy


def test_what_begins_within_a_token_is_cut_as_the_policy_begins_it():
    speak = chat_renderer(written(UNCUT["bytes-joined-chatml"]))
    assert speak.write(AssistantMessage("7"), []) == [*speak.tokenizer.encode("7"), speak.end_id]


def test_marks_that_stand_apart_from_words_are_marks_beside_each_other():
    folder = written((byte_level, "{{ messages }}", IM, {"single_word": True}))
    tokenizer, reference = PretrainedTokenizer(folder), AutoTokenizer.from_pretrained(folder)
    marked = "".join(map(tokenizer.mark, IM))
    assert tokenizer.encode(marked) == reference.encode("".join(IM), add_special_tokens=False)


@pytest.mark.parametrize("name", [name for name in NAMES if name != "gptoss"])
def test_byte_level_tokenizers_of_plain_marks_encode_each_piece_by_itself(name):
    speak = chat_renderer(folder(name))
    assert speak._behind_header.is_alike
    assert speak._behind_turn.is_alike
