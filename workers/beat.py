"""When periodic tasks are due, by a clock that nobody sets.

Celery's own scheduler compares times of day: a clock that was an hour ahead and is put right would stop ``reconcile``
for that hour.
"""

import time
from typing import Any

from celery.beat import PersistentScheduler


class SteadyScheduler(PersistentScheduler):
    """Sends each task at once and then every so many seconds of the monotonic clock."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._due: dict[str, float] = {}
        super().__init__(*arguments, **options)

    def tick(self, *_: Any, **__: Any) -> float:
        """Send what is due; the seconds until something is."""
        for name, entry in self.schedule.items():
            now = time.monotonic()
            if self._due.get(name, now) <= now:
                self.apply_entry(entry, producer=self.producer)
                self._due[name] = now + entry.schedule.seconds
        return max(0.0, min(self._due.values()) - time.monotonic())
