"""When two texts are near each other, and how often the bands find it."""

from random import Random

import pytest

from engine.datasets.similarity import Bands, band_keys, evened, shingles, similarity_of

WORDS = [f"word{number}" for number in range(500)]


def test_similarity_is_the_share_of_common_triples() -> None:
    one, other = shingles("a b c d"), shingles("a b c e")
    assert one == {"a b c", "b c d"}
    assert similarity_of(one, other) == pytest.approx(1 / 3)
    assert similarity_of(one, one) == 1


def test_signs_are_words_and_case_and_space_are_nothing() -> None:
    assert evened("  What\tIS\n3+4? ") == "what is 3+4?"
    assert shingles("3+4") == {"3 + 4"}
    assert shingles("3+4") != shingles("3-4")
    assert evened("\ufb01ne \u00bd") == evened("FINE 1\u20442"), "forms of one character (NFKC)"


@pytest.mark.parametrize("text", ["", "one", "one two", "\ud800"])
def test_short_texts_have_bands_of_their_own(text: str) -> None:
    bands = Bands.for_similarity(0.8)
    assert band_keys(text, bands) == band_keys(text, bands)
    assert band_keys(text, bands) != band_keys(text + " other", bands)


@pytest.mark.parametrize(("wanted", "changes"), [(0.8, 2), (0.5, 6)])
def test_pairs_at_the_wanted_similarity_agree_in_a_band_nearly_always(wanted: float, changes: int) -> None:
    bands, random, found, near = Bands.for_similarity(wanted), Random(7), 0, 0
    for _ in range(150):
        words = random.choices(WORDS, k=60)
        other = list(words)
        for place in random.sample(range(60), changes):
            other[place] = "changed"
        if similarity_of(shingles(" ".join(words)), shingles(" ".join(other))) < wanted:
            continue
        near += 1
        keys = zip(band_keys(" ".join(words), bands), band_keys(" ".join(other), bands), strict=True)
        found += any(one == same for one, same in keys)
    assert near > 50
    assert found / near > 0.95


def test_texts_that_share_nothing_hardly_ever_agree() -> None:
    bands, random = Bands.for_similarity(0.8), Random(3)
    texts = [" ".join(random.choices(WORDS, k=40)) for _ in range(60)]
    keys = [band_keys(text, bands) for text in texts]
    agreeing = sum(any(a == b for a, b in zip(left, right, strict=True)) for left in keys for right in keys) - len(keys)
    assert agreeing == 0
