"""The status of a server's first answer: whether it has changed the protocol.  Pure."""

import re

STATUS_LINE = re.compile(rb"HTTP/1\.[01] ([1-5][0-9]{2})(?: [^\r\n]*)?\r?\Z")
HEAD_END = re.compile(rb"\r?\n\r?\n")
HEAD_END_BYTES = 4
LONGEST_BYTES = 32768
"""The most bytes of what may be looked at before there is a status."""
SWITCHING_PROTOCOLS = 101


class FirstResponse:
    """Fed with what the server sends.  Interim answers (100, 103) come before the one that counts."""

    def __init__(self) -> None:
        self.status: int | None = None
        """The status of the first answer that is not interim; None while it is not there, and where it cannot be
        read."""
        self.is_known = False
        """No further byte changes ``status``."""
        self._held = b""
        self._searched = 0
        """So much of an interim head has been searched for its end."""

    def feed(self, piece: bytes) -> bool:
        """Return whether it is known now."""
        if not self.is_known:
            self._held += piece[: LONGEST_BYTES + 1 - len(self._held)]
            self._read()
        return self.is_known

    def end(self) -> None:
        """The server has closed its side."""
        self.is_known = True

    def _read(self) -> None:
        while not self.is_known:
            line, ended, _ = self._held.partition(b"\n")
            if not ended:
                self.is_known = len(self._held) > LONGEST_BYTES
                return
            match = STATUS_LINE.match(line)
            status = int(match[1]) if match else None
            if status is None or status == SWITCHING_PROTOCOLS or status >= 200:
                self.status, self.is_known = status, True
                return
            head = HEAD_END.search(self._held, max(0, self._searched - HEAD_END_BYTES))
            self._searched = len(self._held)
            if head is None:
                self.is_known = len(self._held) > LONGEST_BYTES
                return
            self._held, self._searched = self._held[head.end() :], 0
