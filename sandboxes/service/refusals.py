"""Why the service does not do what it was asked, in words that the asker can act on."""

from http import HTTPStatus

from sandboxes.backends.remote.faults import Fault, Problem


class Refusal(Exception):
    """Answered as problem+json with ``status``."""

    status = 409

    def __init__(self, detail: str, *problems: Fault, retry_after_s: float | None = None) -> None:
        super().__init__(detail)
        self.detail = detail
        self.problems = list(problems)
        self.retry_after_s = retry_after_s

    def problem(self) -> Problem:
        return Problem(
            type="about:blank", title=HTTPStatus(self.status).phrase, status=self.status,
            detail=self.detail, problems=self.problems,
        )  # fmt: skip


class NoToken(Refusal):
    status = 401


class NotAllowed(Refusal):
    """The token is valid, and not for this."""

    status = 403


class NotThere(Refusal):
    """The thing is not there, or is somebody else's."""

    status = 404


class TooLarge(Refusal):
    status = 413


class Unusable(Refusal):
    status = 422


class TooMuch(Refusal):
    """Over a quota; ``retry_after_s`` says when it may pass."""

    status = 429


class Busy(Refusal):
    status = 503
