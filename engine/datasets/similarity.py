"""When two rows ask the same: equal texts, and near-equal ones by the word triples that they have in common.

Near-duplicates are found with MinHash (Broder, On the resemblance and containment of documents, 1997) in bands, and
every pair so found is compared by its triples themselves, so that none is reported that is not one.  A pair whose
similarity is the wanted one is found with a probability of at least 0.98, a more similar one with a higher.
"""

import hashlib
import re
import unicodedata
import zlib
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

from engine.spec.dataset_row import DatasetRow

MOST_SHINGLES = 5000
"""Word triples of a text that are compared; those behind them are not looked at."""
_WORDS = re.compile(r"\w+|[^\w\s]")
_HASHES = 32
_DRAWN = np.random.default_rng(0)
_FACTORS = _DRAWN.integers(0, 2**63, _HASHES, dtype=np.uint64) * np.uint64(2) + np.uint64(1)
_TERMS = _DRAWN.integers(0, 2**63, _HASHES, dtype=np.uint64)
_PLACES = _DRAWN.integers(0, 2**63, 3, dtype=np.uint64) * np.uint64(2) + np.uint64(1)


@dataclass(frozen=True)
class Bands:
    """A signature cut into ``count`` bands of ``rows`` hashes: similar texts agree in one of them at least."""

    count: int
    rows: int

    @classmethod
    def for_similarity(cls, similarity: float) -> "Bands":
        """P(a pair of similarity s agrees in a band) = 1 - (1 - s^rows)^count."""
        return cls(8, 4) if similarity >= 0.8 else cls(16, 2)


def question_of(row: DatasetRow) -> str:
    """What the policy reads first."""
    if row.prompt is not None:
        return row.prompt
    return "\n".join(f"{message.role}: {message.content}" for message in row.messages or [])


def evened(text: str) -> str:
    """The text without the differences that make no other question: case, white space, forms of one character."""
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


def text_digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "replace")).digest()[:16]


def shingles(text: str) -> frozenset[str]:
    """The triples of words and signs of an evened text; of a shorter one all of it."""
    words = _words_of(text)
    if len(words) < 3:
        return frozenset([" ".join(words)])
    return frozenset(map(" ".join, zip(words, words[1:], words[2:], strict=False)))


def _words_of(text: str) -> list[str]:
    return [found.group() for found in islice(_WORDS.finditer(text), MOST_SHINGLES + 2)]


def similarity_of(one: frozenset[str], other: frozenset[str]) -> float:
    """|A and B| / |A or B| (Jaccard)."""
    return len(one & other) / len(one | other)


def band_keys(text: str, bands: Bands) -> list[int]:
    """A number for each band, equal where the signatures agree in the band; each fits into 63 bits."""
    hashed = _hashed_shingles(_words_of(text))
    signature = ((hashed[:, None] * _FACTORS + _TERMS) >> np.uint64(32)).min(axis=0)
    keys = []
    for band in range(bands.count):
        agreed = signature[band * bands.rows : (band + 1) * bands.rows].tobytes()
        keys.append(int.from_bytes(hashlib.blake2b(agreed, digest_size=8).digest(), "big") >> 1)
    return keys


def _hashed_shingles(words: list[str]) -> np.ndarray[Any, np.dtype[np.uint64]]:
    """A number for each triple; of a shorter text one for all of it."""
    hashed = np.fromiter((zlib.crc32(word.encode("utf-8", "replace")) for word in words), np.uint64, len(words))
    if len(words) < 3:
        return np.atleast_1d((hashed * _PLACES[: len(words)]).sum(dtype=np.uint64))
    triples: np.ndarray[Any, np.dtype[np.uint64]]
    triples = hashed[:-2] * _PLACES[0] + hashed[1:-1] * _PLACES[1] + hashed[2:] * _PLACES[2]
    return triples ^ (triples >> np.uint64(29))
