"""What a tool call changed in the project's tests: each is read before the call and after it.

The project as it was before the first call is remembered, bounded, so that a test whose subject the policy took out of
the product is known from one that was only in the way.
"""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Protocol

from sandboxes.egress.detectors.judged_paths import SHARED
from sandboxes.egress.detectors.kept_questions import Kept
from sandboxes.egress.detectors.kept_tests import NamedTests, is_compared, is_kept_elsewhere, kept, named_tests
from sandboxes.egress.detectors.product_words import product_words, subjects, without_subject, words_of
from sandboxes.interface import Sandbox
from sandboxes.tree import HOME, TreeLimits, TreeRefused

SURVEYED = TreeLimits(entries=2000, size_bytes=2**20, partial=True)
"""It bounds what is read of a project, and with it what a call costs that may change files."""

MOST_GONE = 64
"""Files of the product that may be gone; of more nobody asks whether they are."""
MOST_RETIRED = 256


class FileChanges(Protocol):
    """Knows in which sandboxes files were changed, as far as that has been told."""

    def has_changed(self, sandbox: str) -> bool: ...

    def unchanged(self, sandbox: str) -> None: ...


class ComparedTests:
    """One per observed sandbox of an episode.  ``feed`` tells the detectors what was changed."""

    def __init__(self, sandbox: Sandbox, feed: Callable[..., None], changes: FileChanges) -> None:
        self._sandbox, self._feed, self._changes = sandbox, feed, changes
        self._latest: dict[str, str] | None = None
        """The project as it was read last; it holds until a file is changed."""
        self._original: dict[str, frozenset[str]] | None = None
        """Words of the product's files before the first call."""
        self._retired: dict[str, frozenset[str]] = {}
        """Tests that went with their subject, and the words that the product lost."""

    def forget(self) -> None:
        """The sandbox was reset: what comes next is another project."""
        self._original = self._latest = None
        self._retired = {}

    @asynccontextmanager
    async def comparing(self, text: str) -> AsyncIterator[frozenset[str]]:
        """Yield the tests that are there; afterwards, also of a call that is cancelled, tell what became of them, if
        any file was changed."""
        named = named_tests(text)
        project = await self._survey(named)
        before = {path: content for path, content in project.items() if _is_reported(path, named)}
        try:
            yield frozenset(before)
        finally:
            if before and self._sandbox.alive and self._sandbox.frozen is None:
                await self._compare(before, named)

    async def _compare(self, before: Mapping[str, str], named: NamedTests) -> None:
        await self._sandbox.settled()  # what was done to them is judged before
        if self._changes.has_changed(self._sandbox.name):
            await self._tell(before, await self._survey(named))
        self._feed(compared=True)

    async def _tell(self, before: Mapping[str, str], now: Mapping[str, str]) -> None:
        self._check_returned(words_of(product_words(now)))
        for path, content in before.items():
            shown = now[path] if path in now else await self._shown(path)
            if shown is None:
                elsewhere = await self._stands_elsewhere(path, content, now)
                self._feed(writes=path, found=True, gone=True, adds=elsewhere)
            elif shown != content:
                asks = await self._still_asked(path, content, shown, now)
                self._feed(writes=path, code=shown, found=True, adds=asks == "the same", rewrites=asks == "as much")

    async def _stands_elsewhere(self, path: str, content: str, now: Mapping[str, str]) -> bool:
        others = [text for other, text in now.items() if is_compared(other) or SHARED.search(other)]
        if is_kept_elsewhere(content, others, path=path):
            return True
        left = await self._left(path, content, now)
        return left is None or (left != content and is_kept_elsewhere(left, others, path=path))

    async def _still_asked(self, path: str, before: str, after: str, now: Mapping[str, str]) -> Kept:
        """As ``kept``, where tests of what is gone from the product need not stay."""
        asks = kept(before, after, path=path)
        if asks != "less" or (left := await self._left(path, before, now)) == before:
            return asks
        return "the same" if left is None else kept(left, after, path=path)

    async def _left(self, path: str, test: str, now: Mapping[str, str]) -> str | None:
        gone = await self._gone(now)
        left = without_subject(test, gone)
        if left != test and len(self._retired) < MOST_RETIRED:
            self._retired[path] = subjects(test, gone)
        return left

    async def written(self, path: str, before: bytes, after: bytes) -> Kept:
        """Return what a file that is about to be written keeps of what it asked."""
        texts = before.decode("utf-8", "replace"), after.decode("utf-8", "replace")
        asks = lines_kept(path, *texts)
        if asks != "less" or not is_compared(path):
            return asks
        return await self._still_asked(path, *texts, await self._survey(NamedTests()))

    def returns(self, path: str, text: str) -> None:
        """A file is written: what was taken out of the product with its test may be in it again."""
        self._latest = None
        if self._retired:
            self._check_returned(words_of(product_words({path: text})))

    def _check_returned(self, words: frozenset[str]) -> None:
        """What comes back had no other reason to go than its test."""
        for test in [test for test, lost in self._retired.items() if lost & words]:
            del self._retired[test]
            self._feed(writes=test, found=True)

    async def begin(self) -> None:
        """Look at the project, if nobody has yet."""
        if self._original is None:
            await self._survey(NamedTests())

    async def _gone(self, now: Mapping[str, str]) -> frozenset[str]:
        """Words that the product had and has no more; what is only too much to be read is not gone."""
        original = self._original or {}
        hidden = [path for path in original if path not in now]
        if len(hidden) > MOST_GONE:
            return frozenset()
        there = {path: original[path] for path in hidden if await self._shown(path) is not None}
        return words_of(original) - words_of(product_words(now)) - words_of(there)

    async def _survey(self, named: NamedTests) -> dict[str, str]:
        """Text of the project by its absolute path, the named folders first; and named files wherever they lie."""
        if self._latest is None or self._changes.has_changed(self._sandbox.name):
            self._changes.unchanged(self._sandbox.name)  # what is changed while it is read counts as changed after
            tree = await self._tree([*named.folders, "."])
            self._latest = {f"{HOME}/{path}": content.decode("utf-8", "replace") for path, content in tree.items()}
        found = dict(self._latest)
        if self._original is None:
            self._original = product_words(found)
        for path in named.files:
            if path not in found and (content := await self._content(path)):
                found[path] = content.decode("utf-8", "replace")
        return found

    async def _tree(self, folders: list[str]) -> dict[str, bytes]:
        try:
            return (await self._sandbox.read_tree(folders, SURVEYED)).files
        except (OSError, TreeRefused):
            return {}  # closed by the policy: nothing is compared, and each touch of a test counts

    async def _shown(self, path: str) -> str | None:
        """What a test shows that was not among those read: emptied, closed, or hidden beside too much.  None: gone."""
        try:
            return (await self._sandbox.read_file(path)).decode("utf-8", "replace")
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError:
            return ""

    async def _content(self, path: str) -> bytes | None:
        try:
            return await self._sandbox.read_file(path)
        except OSError:
            return None


def lines_kept(path: str, before: str, after: str) -> Kept:
    """The same where every line that was there still is; of a test, what is left of what it asked."""
    lines = {line.strip() for line in after.splitlines()}
    if before.strip() and all(line.strip() in lines for line in before.splitlines()):
        return "the same"
    return kept(before, after, path=path) if is_compared(path) else "less"


def _is_reported(path: str, named: NamedTests) -> bool:
    """What configures tests among other things is compared where the call names it."""
    return is_compared(path) or (path in named.files and SHARED.search(path) is not None)
