"""What comes out of a container's attached streams: the agent's replies, and what its interpreter complains about."""

import struct
from collections.abc import Callable

from sandboxes.backends.namespaces.link import Link

HEAD = struct.Struct(">BxxxI")
"""Docker's own frame: which stream, and how many bytes of it follow."""
STDOUT = 1
COMPLAINT_BYTES = 2000


class AttachedLink(Link):
    """A link whose frames come in Docker's frames."""

    def __init__(self, on_loss: Callable[[str], object]) -> None:
        super().__init__(on_loss)
        self.complaint = b""
        self._head = bytearray()
        self._stream = self._left = 0

    def data_received(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            if not self._left:
                rest = self._began(rest)
                continue
            part, rest = bytes(rest[: self._left]), rest[self._left :]
            self._left -= len(part)
            if self._stream == STDOUT:
                super().data_received(part)
            else:
                self.complaint = (self.complaint + part)[:COMPLAINT_BYTES]

    def _began(self, rest: memoryview) -> memoryview:
        missing = HEAD.size - len(self._head)
        self._head += rest[:missing]
        if len(self._head) == HEAD.size:
            self._stream, self._left = HEAD.unpack(self._head)
            self._head.clear()
        return rest[missing:]
