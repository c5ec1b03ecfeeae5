"""Where a segment leaves an earlier one: after so many tokens, and so many letters."""

from collections.abc import Sequence

from engine.rollout.renderers.contract import Renderer
from engine.spec.trajectory import SharedPrefix, Turn


def shared_prefix(
    segment: int, tokens: int, *, inherited: int, turns: Sequence[Turn], renderer: Renderer
) -> SharedPrefix:
    """The first ``tokens`` of ``segment``, which holds ``turns`` behind its own shared prefix of ``inherited``."""
    return SharedPrefix(segment=segment, tokens=tokens, characters=_characters(tokens - inherited, turns, renderer))


def _characters(tokens: int, turns: Sequence[Turn], renderer: Renderer) -> int | None:
    """None where the beginning does not end inside a context, or its letters do not: a token may be half a letter."""
    for turn in turns:
        if 0 < tokens < len(turn.context_ids):
            text = renderer.text(turn.context_ids[:tokens])
            return len(text) if turn.context_text.startswith(text) else None
        tokens -= turn.token_count
    return None
