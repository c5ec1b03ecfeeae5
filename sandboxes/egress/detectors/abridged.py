"""Both ends of what is too long to be kept whole.  Pure, and without pydantic: the observer cuts by it as well."""

from collections.abc import Sequence


def ends(text: str, limit: int) -> str:
    """Padding in front or behind hides nothing, only padding on both sides does."""
    return text if len(text) <= limit else text[: limit // 2] + "\n" + text[-(limit // 2) + 1 :]


def abridged(words: Sequence[str], most: int, characters: int) -> list[str]:
    """At most ``most`` words of at most so many characters together: both ends of the list, and of its longest words.

    Short words are kept whole however long their neighbours are.
    """
    kept = list(words) if len(words) <= most else [*words[: most // 2], *words[-(most // 2) :]]
    limit = left = characters
    for place, length in enumerate(sorted(map(len, kept))):
        limit = left // (len(kept) - place)
        if length > limit:
            break
        left -= length
    return [ends(word, limit) for word in kept]
