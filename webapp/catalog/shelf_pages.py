"""What the pages of models, datasets and task sets share: the list of what is stored, and the page that brings more."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render

from webapp.accounts.access import may, team_to_act_in, teams_of
from webapp.accounts.models import Team, User
from webapp.accounts.requests import PageRequest
from webapp.catalog.access import uploads_of
from webapp.catalog.models import UploadKind
from webapp.catalog.uploads import expires_at
from webapp.catalog.versions import bytes_of
from webapp.refusals import Refused

SHOWN_AT_THEIR_FIELD = frozenset({"name", "folder", "bytes"})
"""Problems of the form that need no line above it."""


class Importer(Protocol):
    def __call__(self, team: Team, name: str, path: str, *, acting_user: User) -> Any:
        """The version that was begun.  Raises Refused."""
        ...


@dataclass(frozen=True)
class ShelfPages:
    """The pages of one kind of things that a team keeps in versions."""

    section: str
    """The key of the sidebar."""
    app: str
    """Whose templates and addresses they are: ``index``, ``table`` and ``new``; ``version``."""
    kind: UploadKind
    stored: Callable[[HttpRequest], QuerySet[Any]]
    """What the user may see."""
    importable: Callable[[], Sequence[Any]]
    """Folders of the server that may be brought."""
    importer: Importer

    def listed(self, request: PageRequest, things: Sequence[Any], *, called: str) -> HttpResponse:
        """The list, whose template knows the things as ``called``; their ``shown`` are the versions to list."""
        context = {
            "section": self.section,
            called: things,
            "is_moving": any(version.is_unfinished for thing in things for version in thing.shown),
            "launches": any(may(request, team, "launch") for team in teams_of(request)),
            "uploads": [(upload, expires_at(upload)) for upload in uploads_of(request, self.kind)],
            "rooms": [(team, bytes_of(team)) for team in teams_of(request)],
        }
        return render(request, f"{self.app}/{'table' if request.htmx else 'index'}.html", context)

    def form(self, request: PageRequest, typed: dict[str, Any], refusal: Refused | None = None) -> HttpResponse:
        """The page that brings more, with what was typed and why it was refused."""
        problems = {problem.field: problem for problem in refusal.problems} if refusal else {}
        context = {
            "section": self.section,
            "folders": self.importable(),
            "typed": typed,
            "problems": problems,
            "refusal": refusal if refusal and not problems.keys() & SHOWN_AT_THEIR_FIELD else None,
            "teams": [team for team in teams_of(request) if may(request, team, "launch")],
            "names": list(self.stored(request).values_list("name", flat=True).distinct()),
        }
        return render(request, f"{self.app}/new.html", context, status=refusal.status if refusal else 200)

    def imported(self, request: PageRequest) -> HttpResponse:
        """Begin what the form asks for."""
        typed = {field: request.POST.get(field, "").replace("\0", "").strip() for field in ("name", "folder", "team")}
        try:
            team = team_to_act_in(request, typed["team"] or None, to="launch")
            version = self.importer(team, typed["name"], typed["folder"], acting_user=request.user)
        except Refused as refusal:
            return self.form(request, typed, refusal)
        return redirect(f"{self.app}:version", version_id=version.id)
