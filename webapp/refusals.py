"""Why the service does not do what it was asked, in words that the asker can act on.

Services raise these; the API answers them as problem+json and pages show them next to the field.
Strangers get ``Http404`` and a role too low gets ``PermissionDenied``, both from the access doors.
"""

from typing import Any

from engine.spec.problems import Problem


class Refused(Exception):
    """The request is understood and not possible now: 409."""

    status = 409

    def __init__(self, title: str, problems: list[Problem] | None = None) -> None:
        super().__init__(title)
        self.title = title
        self.problems = problems or []


class Invalid(Refused):
    """What was sent cannot be used: 422, one problem per field."""

    status = 422

    @classmethod
    def field(cls, field: str, value: Any, message: str, remedy: str) -> "Invalid":
        return cls("The request has a value that cannot be used", [Problem(field, value, message, remedy)])


class TooMany(Refused):
    """Too often: 429."""

    status = 429
