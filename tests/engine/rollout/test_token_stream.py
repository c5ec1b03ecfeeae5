"""What a person sees of a turn does not hang on when its tokens were told."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.rollout.renderers.chat import ChatRenderer, chat_renderer
from engine.rollout.token_stream import TokenStream
from engine.spec.chat import ShownToken
from tests.engine.models.folders import folder_of

TEXT = "Wie hei\u00dft \u4f60? \U0001f600!"
"""Characters of one to four bytes, of which a byte is a token."""


@pytest.fixture(scope="module")
def renderer() -> ChatRenderer:
    return chat_renderer(folder_of("qwen3"))


def groups_of(renderer: ChatRenderer, tokens: list[int], moments: set[int]) -> list[list[ShownToken]]:
    """What is told behind so many tokens, and at the end."""
    groups = list[list[ShownToken]]()
    stream = TokenStream(renderer, groups.append)
    for number, token in enumerate(tokens, start=1):
        stream.sampled(token, -0.5)
        if number in moments:
            stream.tell()
    stream.tell(is_over=True)
    return groups


@given(moments=st.sets(st.integers(1, 40)), more=st.lists(st.integers(0, 255), max_size=6))
def test_each_token_has_its_text_whenever_it_is_told(
    renderer: ChatRenderer, moments: set[int], more: list[int]
) -> None:
    """``more``: tokens that spell no text."""
    tokens = [*renderer.tokenizer.encode(TEXT), *more]
    groups = groups_of(renderer, tokens, moments)
    assert all(groups)
    assert [token for group in groups for token in group] == groups_of(renderer, tokens, set())[0]


def test_what_was_told_is_the_text_and_comes_at_once_where_characters_are_whole(renderer: ChatRenderer) -> None:
    tokens = renderer.tokenizer.encode(TEXT)
    groups = groups_of(renderer, tokens, set(range(1, len(tokens) + 1)))
    assert "".join(token.text for group in groups for token in group) == TEXT
    assert len(tokens) > len(TEXT)
    assert len(groups_of(renderer, renderer.tokenizer.encode("a b c"), set(range(1, 6)))) == 5


def test_a_turn_that_ends_in_half_a_character_is_told_whole(renderer: ChatRenderer) -> None:
    *half, _ = renderer.tokenizer.encode("\U0001f600")
    groups = groups_of(renderer, half, set(range(1, len(half) + 1)))
    assert [token.token for group in groups for token in group] == half
