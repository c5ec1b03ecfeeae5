"""What the tool ``search`` looks in: passages of a split's texts in an index of SQLite's FTS5, ranked by BM25.

The index is a temporary file that no name leads to, so that memory stays bounded however large the corpus is; it is
built once, at the first search.  A query is hostile: it is cut into words, each of which is quoted.
"""

import re
import sqlite3
import threading
from collections.abc import Iterator

from engine.environments.dataset_reader import DatasetReader
from engine.spec.dataset_row import DatasetRow
from engine.spec.qa_tools import Search

LARGEST_CORPUS_BYTES = 2**28
"""The largest size of the split as it is stored."""
MOST_WORDS = 32
"""The most words of a query that are looked for; those behind them are left out."""
TOKENIZER = "unicode61 remove_diacritics 2"
"""Words in any case and without accents, as SQLite divides them."""
_WORD = re.compile(r"\w+")
_FIND = "SELECT text FROM passages WHERE passages MATCH ? ORDER BY rank, rowid LIMIT ?"


class Corpus:
    """Any thread may search; searches wait for each other."""

    def __init__(self, rows: DatasetReader, settings: Search) -> None:
        self._rows, self._settings = rows, settings
        self._lock = threading.Lock()
        self._index: sqlite3.Connection | None = None

    def found(self, query: str) -> list[str]:
        """The best passages, best first; of equal ones the earlier.  Raises DamagedDataset."""
        words = list(dict.fromkeys(_WORD.findall(query)))[:MOST_WORDS]
        if not words:
            return []
        matching = " OR ".join(f'"{word}"' for word in words)
        with self._lock:
            index = self._built()
            return [str(text) for (text,) in index.execute(_FIND, (matching, self._settings.results))]

    def _built(self) -> sqlite3.Connection:
        if self._index is None:
            index = sqlite3.connect("", check_same_thread=False)  # a temporary file, gone with the connection
            index.execute(f"CREATE VIRTUAL TABLE passages USING fts5(text, tokenize='{TOKENIZER}')")
            index.executemany("INSERT INTO passages VALUES (?)", self._passages())
            index.commit()
            self._index = index
        return self._index

    def _passages(self) -> Iterator[tuple[str]]:
        for row in self._rows.rows(self._settings.split):
            yield from ((passage,) for passage in passages_of(_text(row), self._settings.passage_characters))


def passages_of(text: str, longest: int) -> Iterator[str]:
    """The text in pieces of at most ``longest`` characters, divided where words end, if they ever do."""
    rest_at = 0
    while rest_at < len(text):
        end = rest_at + longest
        if end < len(text):
            gap = max(text.rfind(" ", rest_at + 1, end + 1), text.rfind("\n", rest_at + 1, end + 1))
            end = gap if gap > rest_at else end
        if piece := text[rest_at:end].strip():
            yield piece
        rest_at = end + (text[end : end + 1] in (" ", "\n"))


def _text(row: DatasetRow) -> str:
    return row.prompt if row.prompt is not None else "\n".join(message.content for message in row.messages or [])
