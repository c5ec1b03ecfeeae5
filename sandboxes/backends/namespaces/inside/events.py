"""What the agent waits for: descriptors and what to do when they are ready."""

import os
import select
from _collections_abc import Callable

READABLE = select.POLLIN | select.POLLHUP | select.POLLERR
WRITABLE = select.POLLOUT


class Events:
    """A ``poll`` with handlers.  A descriptor has one handler at a time."""

    def __init__(self) -> None:
        self._poll = select.poll()
        self._handlers: dict[int, Callable[[], object]] = {}

    def on(self, fd: int, handler: Callable[[], object], events: int = READABLE) -> None:
        self._handlers[fd] = handler
        self._poll.register(fd, events)

    def off(self, fd: int) -> None:
        if self._handlers.pop(fd, None) is not None:
            self._poll.unregister(fd)

    def close(self, *descriptors: int) -> None:
        for fd in descriptors:
            self.off(fd)
            os.close(fd)

    def wait(self, patience_ms: int | None) -> None:
        """Serve what is ready, or nothing once patience is over."""
        for fd, _ in self._poll.poll(patience_ms):
            handler = self._handlers.get(fd)
            if handler is not None:  # an earlier handler of this round may have closed it
                handler()
