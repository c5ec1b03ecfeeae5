"""What of a request no row could keep, refused before anybody reads it: its body's and its query's text."""

from typing import Annotated, Any

from django.http import HttpRequest
from ninja import Schema
from ninja.parser import Parser
from pydantic import AfterValidator, ConfigDict

from webapp.refusals import Invalid
from webapp.storable import unstorable


class Request(Schema):
    """A body, of which every field is known."""

    model_config = ConfigDict(extra="forbid")


class StorableParser(Parser):
    def parse_body(self, request: HttpRequest) -> Any:
        """Raises Invalid, which ninja keeps as the cause of its own complaint."""
        document = super().parse_body(request)
        if problems := list(unstorable(document)):
            raise Invalid("the request cannot be used as it is", problems)
        return document


def _without_nul(text: str) -> str:
    if "\0" in text:
        raise ValueError("it has a NUL character, which no stored text has")
    return text


Text = Annotated[str, AfterValidator(_without_nul)]
"""The text of a query.  It cannot have half a surrogate pair: that is not UTF-8."""
