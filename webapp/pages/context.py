"""What the frame around every page needs, whoever reads it."""

from django.http import HttpRequest

THEMES = frozenset({"light", "dark"})


def theme(request: HttpRequest) -> dict[str, str]:
    """The chosen theme; empty: the system decides."""
    chosen = request.COOKIES.get("theme", "")
    return {"theme": chosen if chosen in THEMES else ""}
