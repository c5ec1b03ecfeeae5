"""An agent that runs an errand from what its calls give, logging in where it has to."""

import json
from typing import Any

from engine.environments.apps.database import Database
from engine.environments.apps.phone import Phone
from engine.spec.message import AssistantMessage, ToolRequest


class Agent:
    """Plays on the real functions, and keeps its calls."""

    def __init__(self, phone: Phone, start: Database) -> None:
        self._phone, self._tokens = phone, dict[str, str]()
        self.database = start
        self.requests = list[ToolRequest]()
        self.answer: str | None = None

    @property
    def messages(self) -> list[AssistantMessage]:
        """A turn for each call, and one with the answer."""
        calls = [AssistantMessage(requests=(request,)) for request in self.requests]
        return [*calls, AssistantMessage(self.answer or "done")]

    def call(self, name: str, **arguments: object) -> Any:
        """What the function gives.  It has to work: an errand is made so that it does."""
        app = name.partition(".")[0]
        if app not in self._tokens:
            self._tokens[app] = self._made(f"{app}.login", {"password": self._phone.password})["token"]
        return self._made(name, {"token": self._tokens[app], **arguments})

    def contact(self, text: str) -> dict[str, Any]:
        """The person that a name or a relation finds."""
        rows: list[dict[str, Any]] = self.call("contacts.search", text=text)["rows"]
        return next(row for row in rows if text in (row["name"], row["relation"]))

    def found_in(self, name: str, arguments: dict[str, Any], **wanted: object) -> dict[str, Any]:
        """The row with this value, page by page."""
        ((field, value),) = wanted.items()
        page: dict[str, Any] = {}
        while True:
            given = self.call(name, **arguments, **page)
            if found := [row for row in given["rows"] if row[field] == value]:
                return found[0]  # type: ignore[no-any-return]
            assert given["next"] is not None, f"no {field} {value!r} in {name}"
            page = {"page": given["next"]}

    def _made(self, name: str, arguments: dict[str, Any]) -> Any:
        request = ToolRequest("call", {"api": name, "arguments": arguments})
        result = self._phone.called(self.database, request)
        assert result.legal, f"{name} of an errand's own way: {result.output}"
        self.requests.append(request)
        self.database = result.state
        return json.loads(result.output)
