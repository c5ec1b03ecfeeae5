"""What one service is told by whoever starts it."""

import ipaddress
from dataclasses import dataclass
from pathlib import Path

from sandboxes.egress.gateway.upstream import UPSTREAM, Upstream
from sandboxes.service.capacity import Capacity


@dataclass(frozen=True, slots=True)
class Settings:
    tokens: Path
    """The file of tokens (``tokens``)."""
    capacity: Capacity
    host: str = "127.0.0.1"
    port: int = 8750
    most_waiting: int = 1000
    """Sandboxes in the queue; more are refused."""
    body_bytes: int = 64 * 2**20
    """No request may be longer."""
    frozen_s: float = 3600.0
    """How long a frozen sandbox is kept for inspection when nobody asks for it."""
    remembered_s: float = 600.0
    """How long a closed sandbox can still say why, and give its records."""
    drain_s: float = 10.0
    """How long requests under way may take once the service was told to stop."""
    special_egress: bool = False
    """Whether rules of its users may open loopback, private and metadata ranges."""
    upstream: Upstream = UPSTREAM


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
