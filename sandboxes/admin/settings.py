"""What an admin is told by whoever starts it."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class AdminSettings:
    tokens: Path
    """The file of tokens of its users, and of hosts that register themselves."""
    hosts: Path
    """The file of hosts (``hosts_file``)."""
    host: str = "127.0.0.1"
    port: int = 8760
    most_waiting: int = 10_000
    """Sandboxes in the queue; more are refused."""
    body_bytes: int = 64 * 2**20
    """No request may be longer."""
    remembered_s: float = 600.0
    """How long a sandbox whose host is gone can still say why it ended."""
    look_every_s: float = 0.5
    """How often each host is asked how it is."""
    drain_s: float = 10.0
    """How long requests under way may take once the admin was told to stop."""
