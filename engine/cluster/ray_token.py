"""A token for a Ray of one's own.  Must run before Ray is imported, which reads these variables once."""

import os
import secrets
import sys
from pathlib import Path


def use_private_token(file: Path) -> None:
    """Nobody else may use our Ray, we use nobody else's, and the user's home stays untouched."""
    assert "ray" not in sys.modules, "Ray has read its environment already"
    if not file.exists():
        file.touch(mode=0o600)
        file.write_text(secrets.token_hex(32))
    os.environ.update(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN_PATH=str(file.resolve()), RAY_USAGE_STATS_ENABLED="0")
