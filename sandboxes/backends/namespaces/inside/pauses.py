"""How long to wait before each look at what nobody tells.

Hundreds of sandboxes that look thousands of times a second take a machine for themselves, and leave those whose end
they wait for no time to end.
"""

from _collections_abc import Iterator

LONGEST_S = 0.01


def ever_longer_s(first_s: float) -> Iterator[float]:
    """``first_s``, and twice the one before each time, up to ``LONGEST_S``."""
    pause_s = first_s
    while True:
        yield pause_s
        pause_s = min(2 * pause_s, LONGEST_S)
