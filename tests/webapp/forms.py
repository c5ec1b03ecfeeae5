"""What a browser would post for a page: the controls of its form, as they stand."""

from html.parser import HTMLParser
from typing import Any


def posted_by(page: str) -> dict[str, list[str]]:
    """Name -> values of the last form with a field named ``base``, without its buttons."""
    reader = _Controls()
    reader.feed(page)
    return reader.values


class _Controls(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.values: dict[str, list[str]] = {}
        self.select: str | None = None
        self.options: list[tuple[str | None, str, bool]] = []
        self.area: str | None = None
        self.in_option = False

    def handle_starttag(self, tag: str, attributes: list[tuple[str, Any]]) -> None:
        its = dict(attributes)
        match tag:
            case "input" if "name" in its and (its.get("type") not in ("checkbox", "radio") or "checked" in its):
                self.values.setdefault(its["name"], []).append(its.get("value") or "")
            case "select":
                self.select, self.options = its.get("name"), []
            case "option":
                self.options.append((its.get("value"), "", "selected" in its))
                self.in_option = True
            case "textarea":
                self.area = its.get("name")
                self.values[str(self.area)] = [""]

    def handle_data(self, data: str) -> None:
        if self.area is not None:
            self.values[self.area][0] += data
        elif self.in_option:
            value, text, chosen = self.options[-1]
            self.options[-1] = (value, text + data, chosen)

    def handle_endtag(self, tag: str) -> None:
        if tag == "option":
            self.in_option = False
        elif tag == "select" and self.select is not None and self.options:
            chosen = next((option for option in self.options if option[2]), self.options[0])
            self.values[self.select] = [chosen[1] if chosen[0] is None else chosen[0]]
            self.select = None
        elif tag == "textarea":
            self.area = None
