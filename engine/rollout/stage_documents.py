"""The documents of a supervised stage as token ids: conversations by the run's renderer, plain text by its tokenizer.

What a text writes is text: a mark's name in it is spelled, as a user's words are.
"""

import json
from collections.abc import Callable
from pathlib import Path

from engine.models.origin import model_origin
from engine.models.tokenizer import Tokenizer, tokenizer_for
from engine.rollout.chat_documents import DocumentRefused, document_in, supervised_sequences
from engine.rollout.renderers.contract import Renderer
from engine.spec.model import BuiltinModel, Model
from engine.spec.problems import Problem
from engine.spec.supervised import Chat, Stage, Text

Sequences = list[tuple[list[int], list[bool]]]
"""Token ids, and which of them are learned."""
Read = Callable[[str, int], Sequences]


def line_reader(stage: Stage, model: Model, renderer: Renderer) -> Read:
    """A function from a line of the stage's file, and its number from 1, to token ids.  It raises DocumentRefused."""
    if isinstance(stage.data, Chat):
        return _chat_reader(stage, stage.data, renderer)
    assert isinstance(stage.data, Text), "other data are no documents"
    return _text_reader(stage.data, model)


def check_line(data: Chat | Text, line: str, number: int) -> None:
    """Raises DocumentRefused for a line that is not of the form of the stage's data; no model is asked."""
    if isinstance(data, Chat):
        document_in(line, number)
    else:
        text_in(line, number, data.field)


def text_in(line: str, number: int, field: str) -> str:
    """The text of a line.  Raises DocumentRefused."""
    try:
        document = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise _refused(number, "", line, f"the line is no JSON: {error}", _example(field)) from error
    if not isinstance(document, dict):
        raise _refused(number, "", document, "this is no JSON object", _example(field))
    text = document.get(field)
    if not isinstance(text, str):
        raise _refused(number, field, "(missing)" if text is None else text, "there is no text", _example(field))
    return text


def _chat_reader(stage: Stage, data: Chat, renderer: Renderer) -> Read:
    def read(line: str, number: int) -> Sequences:
        sequences = supervised_sequences(
            document_in(line, number),
            renderer,
            trained=data.turns,
            mask_errors=stage.mask_errors,
            mask_irrelevant=stage.mask_irrelevant,
        )
        return [(sequence.token_ids, sequence.trained) for sequence in sequences]

    return read


def _text_reader(data: Text, model: Model) -> Read:
    origin = model_origin(model)
    if isinstance(origin.model, BuiltinModel):
        tokenizer = tokenizer_for(origin.model.vocabulary)
        return lambda line, number: _spelled(text_in(line, number, data.field), number, data.field, tokenizer)
    assert origin.weights is not None  # a pretrained model has a folder
    return _pretrained_reader(data.field, origin.weights)


def _pretrained_reader(field: str, folder: Path) -> Read:
    """Puts the tokenizer's own beginning before each text, where it has one, and its end behind it."""
    from engine.models.pretrained_tokenizer import PretrainedTokenizer, shown_characters

    tokenizer = PretrainedTokenizer(folder)
    begin, end = tokenizer.special_texts.get("bos_token"), tokenizer.special_texts.get("eos_token")
    first = [tokenizer.marks[begin]] if begin in tokenizer.marks else []
    last = [tokenizer.marks[end]] if end in tokenizer.marks else [min(tokenizer.stop_ids)]

    def read(line: str, number: int) -> Sequences:
        text = text_in(line, number, field)
        if lost := tokenizer.lost_in(text):
            problem = f"the model's tokenizer cannot hold {shown_characters(lost)}"
            raise _refused(number, field, text, problem, "leave it out, or train a model whose tokenizer can")
        ids = [*first, *tokenizer.encode(text), *last]
        return [(ids, [False, *[True] * (len(ids) - 1)])]

    return read


def _spelled(text: str, number: int, field: str, tokenizer: Tokenizer) -> Sequences:
    """Raises DocumentRefused for a character that the built-in vocabulary lacks: it would be learned as unknown."""
    ids = tokenizer.encode(text)
    if tokenizer.unk in ids:
        unknown = next(character for character in text if tokenizer.encode(character) == [tokenizer.unk])
        problem = f"the built-in vocabulary has no {unknown!r}"
        raise _refused(number, field, text, problem, "leave it out, or train a pretrained model")
    ids = [tokenizer.bos, *ids, tokenizer.eos]
    return [(ids, [False, *[True] * (len(ids) - 1)])]


def _example(field: str) -> str:
    return f"write one document a line, e.g. {json.dumps({field: 'Once upon a time'})}"


def _refused(line: int, field: str, value: object, message: str, remedy: str) -> DocumentRefused:
    place = f"line {line}: {field}" if field else f"line {line}"
    return DocumentRefused(Problem(place, value, message, remedy))
