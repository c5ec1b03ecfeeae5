"""The tokenizer of a model folder: text as ids, marks as marks, and never the one as the other.

A *mark* is a token that the folder's tokenizer.json adds to the text's own (``<|im_end|>``, ``<tool_call>``), but for
those of white space alone, which are text.  Text that spells a mark is encoded as the characters that it is: in the
copy of the tokenizer that encodes, each mark has a secret name, drawn anew for each process, and only ``encode``'s
caller can write it, by ``mark``.  A template's marks go in with the text around them, so that pieces are cut as the
folder's own tokenizer cuts them.

Files that are read: tokenizer.json, tokenizer_config.json, special_tokens_map.json, generation_config.json,
chat_template.jinja.  No code of the folder runs; neither torch nor transformers is imported.
"""

import json
import re
import secrets
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from tokenizers import Encoding, Tokenizer
from tokenizers.decoders import ByteLevel, DecodeStream

from engine.models.refusal import FIELD, ModelFolderRefused, refused

FILE = "tokenizer.json"
REPLACEMENT = "\ufffd"
"""What stands for bytes that are no text, and for ids that the tokenizer does not have."""

_NEIGHBOURLY = ("lstrip", "rstrip", "single_word")
_SURROGATES = re.compile(r"[\ud800-\udfff]")


class PretrainedTokenizer:
    """Raises ModelFolderRefused for a folder whose tokenizer cannot be read, has no end token, or cannot keep text and
    marks apart."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        description = _json_object(folder, FILE)
        description |= {"truncation": None, "padding": None}
        self._tokenizer = _opened(folder, description)
        self._config = _json_object(folder, "tokenizer_config.json", required=False)
        self._known = frozenset(self._tokenizer.get_vocab(with_added_tokens=True).values())
        # Bytes one after the other: a token that is whole characters says by itself what it says among others.
        self._says_bytes = isinstance(self._tokenizer.decoder, ByteLevel)
        self._alone = dict[int, str]()
        self._is_held = dict[str, bool]()
        self.marks = _marks(folder, description)
        self.marks_see_neighbours = any(
            token.get(flag) for token in description.get("added_tokens") or [] for flag in _NEIGHBOURLY
        )
        self.mark_pattern = pattern_of(self.marks)
        self._mark_of_id = {token: mark for mark, token in self.marks.items()}
        # Signs at both ends, so that a mark which must stand apart from words does so beside another.
        self._secrets = {mark: f"\U0010fffe{secrets.token_hex(16)}\U0010fffe" for mark in self.marks}
        self._mark_of_secret = {secret: mark for mark, secret in self._secrets.items()}
        self.secret_pattern = pattern_of(self._mark_of_secret)
        self._encoder = _opened(folder, _with_secret_marks(description, self._secrets))
        encoded = {
            self._encoder.token_to_id(self._secrets.get(text, text)): token
            for text, token in _added(folder, description).items()
        }
        self._id_of_encoded = {token: own for token, own in encoded.items() if token != own}
        self.special_texts = self._special_texts()
        self.stop_ids = self._stop_ids()
        self._check_apart()

    marks: dict[str, int]
    """Each mark's text and id."""
    marks_see_neighbours: bool
    """Whether a mark swallows white space beside it, or is none beside a word."""
    mark_pattern: re.Pattern[str]
    """The longest mark at a place, from left to right, as the tokenizer itself looks for them."""
    secret_pattern: re.Pattern[str]
    """Any mark as ``mark`` gives it."""
    special_texts: dict[str, str]
    """``bos_token``, ``eos_token`` and the like, as the folder names them: a template may write them."""
    stop_ids: frozenset[int]
    """Where the folder says that a turn may end.  Never empty."""

    def __len__(self) -> int:
        """The greatest id and one: how many rows a model's embedding must at least have."""
        return max(self._known) + 1

    def mark(self, text: str) -> str:
        """Return what ``encode`` reads as the mark ``text``.  Raises KeyError where there is no such mark."""
        return self._secrets[text]

    def shown(self, text: str) -> str:
        """Return what ``encode`` reads, with its marks by their own names."""
        return self.secret_pattern.sub(lambda found: self._mark_of_secret[found.group()], text)

    def encode(self, text: str) -> list[int]:
        """The ids of text in which only what ``mark`` gave is a mark.  Nothing is put before or behind it.

        Half a surrogate pair, which is no character, becomes U+FFFD.
        """
        return self._ids_of(self._encoded(text))

    def encode_with_ends(self, text: str) -> list[tuple[int, int]]:
        """Each id with the place in ``text`` where its characters end."""
        encoded = self._encoded(text)
        ends = [end for _, end in encoded.offsets]
        return list(zip(self._ids_of(encoded), ends, strict=True))

    def _encoded(self, text: str) -> Encoding:
        if not text.isascii():
            text = _SURROGATES.sub(REPLACEMENT, text)
        return self._encoder.encode(text, add_special_tokens=False)

    def _ids_of(self, encoded: Encoding) -> list[int]:
        others = self._id_of_encoded
        return [others.get(token, token) for token in encoded.ids] if others else encoded.ids

    def pieces(self, token_ids: Sequence[int]) -> list[str]:
        """The text of each token.  A character that several tokens make belongs to the last of them.

        Never raises: an id that the tokenizer does not have is U+FFFD, like bytes that are no text.
        """
        if token_ids and self._known.issuperset(token_ids):
            return self._pieces_of_known(list(token_ids))
        pieces = list[str]()
        for known, run in groupby(token_ids, key=self.knows):
            tokens = list(run)
            pieces += self._pieces_of_known(tokens) if known else [REPLACEMENT] * len(tokens)
        return pieces

    def text(self, token_ids: Sequence[int]) -> str:
        """The pieces as one.  Marks appear by name in it: a parser that must tell them from text asks ``mark_of``."""
        return "".join(self.pieces(token_ids))

    def lost_in(self, text: str) -> str:
        """The characters of ``text`` that it has no tokens for, or brings into another form than Unicode's own."""
        characters = set(text)
        for character in characters - self._is_held.keys():
            among_others = f"a{character}a"
            read = self.text(self.encode(among_others))
            self._is_held[character] = unicode_form(read).strip() == unicode_form(among_others)
        return "".join(sorted(character for character in characters if not self._is_held[character]))

    def mark_of(self, token_id: int) -> str | None:
        return self._mark_of_id.get(token_id)

    def marks_in(self, token_ids: Sequence[int]) -> list[str]:
        """The marks among the ids, in their order."""
        marks = self._mark_of_id
        return [] if marks.keys().isdisjoint(token_ids) else [marks[token] for token in token_ids if token in marks]

    def knows(self, token_id: int) -> bool:
        return token_id in self._known

    def unknown_in(self, token_ids: Sequence[int]) -> list[int]:
        """The ids that it does not have, in their order."""
        known = self._known
        return [] if known.issuperset(token_ids) else [token for token in token_ids if token not in known]

    def chat_template(self) -> str:
        """The folder's own.  Raises ModelFolderRefused where there is none."""
        file = self.folder / "chat_template.jinja"
        if file.is_file():
            return _text_of(file)
        template = self._config.get("chat_template")
        if isinstance(template, list):  # several by name, as older folders have them
            named = {entry.get("name"): entry.get("template") for entry in template if isinstance(entry, dict)}
            template = named.get("default")
        if not isinstance(template, str) or not template.strip():
            raise refused(
                FIELD,
                str(self.folder),
                "there is no chat template: neither chat_template.jinja nor chat_template in tokenizer_config.json",
                "add the template of the model's instruct version as chat_template.jinja",
            )
        return template

    def _pieces_of_known(self, token_ids: list[int]) -> list[str]:
        alone = self._alone
        for token in {*token_ids}.difference(alone):
            alone[token] = self._tokenizer.decode([token], skip_special_tokens=False)
        pieces = [alone[token] for token in token_ids]
        if self._says_bytes and REPLACEMENT not in "".join(pieces):
            return pieces
        return self._pieces_of_a_stream(token_ids)

    def _pieces_of_a_stream(self, token_ids: list[int]) -> list[str]:
        stream = DecodeStream(skip_special_tokens=False)
        pieces = [stream.step(self._tokenizer, token) or "" for token in token_ids]
        # The stream keeps back what may yet become a character.
        pieces[-1] += self._tokenizer.decode(token_ids, skip_special_tokens=False)[sum(map(len, pieces)) :]
        return pieces

    def _special_texts(self) -> dict[str, str]:
        named = _json_object(self.folder, "special_tokens_map.json", required=False) | self._config
        texts = {name: named[name] for name in named if name.endswith("_token")}
        contents = {name: text.get("content") if isinstance(text, dict) else text for name, text in texts.items()}
        return {name: content for name, content in contents.items() if isinstance(content, str)}

    def _stop_ids(self) -> frozenset[int]:
        ends = _json_object(self.folder, "generation_config.json", required=False).get("eos_token_id", [])
        named = ends if isinstance(ends, list) else [] if ends is None else [ends]
        if strange := [token for token in named if isinstance(token, bool) or not isinstance(token, int)]:
            raise refused(
                FIELD,
                str(strange[0])[:80],
                "eos_token_id in generation_config.json is neither an id nor a list of ids",
                "give the number of the end token, or copy the model's files anew",
            )
        stops = set(named)
        if (end := self.special_texts.get("eos_token")) is not None:
            stops |= {token for token in [self._tokenizer.token_to_id(end)] if token is not None}
        if not stops:
            raise refused(
                FIELD,
                str(self.folder),
                "the tokenizer has no end token, so that no turn would end",
                "name eos_token in tokenizer_config.json, or eos_token_id in generation_config.json",
            )
        if unknown := sorted(token for token in stops if not self.knows(token)):
            raise refused(
                FIELD,
                unknown,
                "eos_token_id in generation_config.json names ids that the tokenizer does not have",
                "use the files of one and the same model",
            )
        return frozenset(stops)

    def _check_apart(self) -> None:
        marks = frozenset(self.marks.values())
        for mark, token in self.marks.items():
            if token not in self.encode(self.mark(mark)) or marks & set(self.encode(mark)):
                raise refused(
                    FIELD,
                    str(self.folder),
                    f"the vocabulary holds the mark {mark!r} as ordinary text too, so that any text could forge it",
                    "use a model whose tokenizer.json lists its marks as added_tokens only",
                )


def unicode_form(text: str) -> str:
    """The same for texts that differ in how Unicode composes their characters (NFKC), which tokenizers may change."""
    return text if text.isascii() else unicodedata.normalize("NFKC", _SURROGATES.sub(REPLACEMENT, text))


def shown_characters(characters: str) -> str:
    """For people: those that can be printed as they are; at most 40."""
    shown = " ".join(
        character if character.isprintable() and character != " " else ascii(character) for character in characters[:40]
    )
    return shown if len(characters) <= 40 else f"{shown} and {len(characters) - 40} others"


def pattern_of(texts: Iterable[str]) -> re.Pattern[str]:
    """Any of ``texts``, the longest first; nothing where there are none."""
    longest_first = sorted(texts, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")


def _added(folder: Path, description: Mapping[str, Any]) -> dict[str, int]:
    try:
        return {str(token["content"]): int(token["id"]) for token in description.get("added_tokens") or []}
    except (TypeError, KeyError, ValueError) as error:
        raise _unreadable(folder / FILE, f"added_tokens: {error!r}") from error


def _marks(folder: Path, description: Mapping[str, Any]) -> dict[str, int]:
    return {text: token for text, token in _added(folder, description).items() if text.strip()}


def _with_secret_marks(description: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    added = description.get("added_tokens") or []
    renamed = [token | {"content": names.get(token["content"], token["content"])} for token in added]
    return {**description, "added_tokens": renamed, "post_processor": None}


def _opened(folder: Path, description: Mapping[str, Any]) -> Tokenizer:
    try:
        return Tokenizer.from_str(json.dumps(description))
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # the package raises no class of its own, and what it panics with is no Exception
        raise _unreadable(folder / FILE, str(error)) from error


def _json_object(folder: Path, name: str, *, required: bool = True) -> dict[str, Any]:
    file = folder / name
    if not file.is_file():
        if not required:
            return {}
        raise refused(
            FIELD,
            str(folder),
            f"there is no {name}",
            "name the folder of a whole model; a tokenizer of the old form becomes one by "
            "AutoTokenizer.from_pretrained(folder).save_pretrained(folder)",
        )
    try:
        content = json.loads(_text_of(file))
    except (ValueError, RecursionError) as error:
        raise _unreadable(file, str(error)) from error
    if not isinstance(content, dict):
        raise _unreadable(file, "it is no JSON object")
    return content


def _text_of(file: Path) -> str:
    try:
        return file.read_text("utf-8")
    except UnicodeDecodeError as error:
        raise _unreadable(file, str(error)) from error


def _unreadable(file: Path, message: str) -> ModelFolderRefused:
    return refused(FIELD, str(file), f"the file cannot be read: {message}", "copy the model's files anew")
