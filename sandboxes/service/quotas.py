"""What a token has used up in the last minute."""

import time
from collections import deque

from sandboxes.service.refusals import TooMuch
from sandboxes.service.tokens import Token

MINUTE_S = 60.0


class Window:
    """Amounts of the last minute, and their sum."""

    def __init__(self) -> None:
        self._amounts: deque[tuple[float, float]] = deque()
        self._sum = 0.0

    def add(self, amount: float) -> None:
        self._amounts.append((time.monotonic(), amount))
        self._sum += amount

    def used(self) -> float:
        self._forget()
        return self._sum

    def until_below(self, limit: float) -> float:
        """Seconds until what is left of the amounts is below ``limit``, if none is added."""
        self._forget()
        left, now = self._sum, time.monotonic()
        for at, amount in self._amounts:
            if left < limit:
                break
            left -= amount
            wait_s = at + MINUTE_S - now
        return 0.0 if self._sum < limit else max(wait_s, 0.0)

    def _forget(self) -> None:
        horizon = time.monotonic() - MINUTE_S
        while self._amounts and self._amounts[0][0] <= horizon:
            self._sum -= self._amounts.popleft()[1]
        if not self._amounts:
            self._sum = 0.0


class Usage:
    """What all tokens have used.  Raises ``TooMuch`` with the reason, and when it may pass.

    The token of an admin has no bounds at its hosts: the admin counts what its own users use.
    """

    def __init__(self) -> None:
        self._requests: dict[str, Window] = {}
        self._exec_s: dict[str, Window] = {}
        self.refused = 0

    def count_request(self, token: Token) -> None:
        window = self._requests.setdefault(token.id, Window())
        limit = token.quota.requests_per_minute
        self._check(window, limit, "requests_per_minute", token)
        window.add(1)

    def check_exec(self, token: Token) -> None:
        window = self._exec_s.setdefault(token.id, Window())
        self._check(window, token.quota.exec_s_per_minute, "exec_s_per_minute", token)

    def count_exec(self, token: Token, seconds: float) -> None:
        self._exec_s.setdefault(token.id, Window()).add(seconds)

    def check_sandboxes(self, token: Token, sandboxes: int) -> None:
        if token.role != "admin" and sandboxes >= token.quota.sandboxes:
            self.refused += 1
            raise TooMuch(
                f"token '{token.name}' has {sandboxes} sandboxes of the {token.quota.sandboxes} that its quota allows"
                " at once: close one, or ask for a larger quota",
                retry_after_s=1.0,
            )

    def _check(self, window: Window, limit: float, what: str, token: Token) -> None:
        if token.role != "admin" and (wait_s := window.until_below(limit)) > 0:
            self.refused += 1
            raise TooMuch(
                f"token '{token.name}' has used up {what} = {limit:g} of its quota: wait {wait_s:.0f} s",
                retry_after_s=wait_s,
            )
