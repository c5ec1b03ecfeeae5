"""One number from many: every random draw of a run hangs on names, never on order or timing."""

import hashlib


def derived_seed(*parts: int | str) -> int:
    """A seed in [0, 2**63) that depends on ``parts`` alone, equal on every machine and Python version."""
    text = "\x1f".join(f"{type(part).__name__}:{part}" for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1
