"""The page of a team's audit log, and the same as CSV.  Owners only."""

import csv
from collections.abc import Iterable, Iterator
from io import StringIO

from django.contrib.auth.decorators import login_required
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_GET

from webapp.accounts.access import team_for
from webapp.accounts.models import AuditEntry, Team
from webapp.audit.sentences import plain, sentence
from webapp.streams import streamed

ROWS = 50
LINES_AT_ONCE = 500
AREAS = {"run": "Runs", "experiment": "Experiments", "quarantine": "Review decisions", "alert": "Alerts",
         "member": "Members", "key": "API keys", "password": "Passwords", "team": "The team",
         "environment": "Environments", "dataset": "Datasets", "model": "Models",
         "upload": "Uploads"}  # fmt: skip
FORMULA = ("=", "+", "-", "@", "\t", "\r")


@login_required
@require_GET
def entries(request: HttpRequest, slug: str) -> HttpResponse:
    team = team_for(request, slug, to="manage")
    found = _chosen(request, team)
    before = request.GET.get("before", "")
    if before.isdecimal() and len(before) < 19:
        found = found.filter(id__lt=int(before))
    page = list(found[: ROWS + 1])
    context = {
        "section": "team",
        "current_team": team,
        "areas": AREAS,
        "area": request.GET.get("area", ""),
        "who": request.GET.get("who", ""),
        "people": team.audit_entries.order_by("who").values_list("who", flat=True).distinct(),
        "rows": [(entry, sentence(entry)) for entry in page[:ROWS]],
        "query": _query(request),
        "next_before": page[ROWS - 1].id if len(page) > ROWS else None,
        "is_later": bool(before),
    }
    return render(request, "audit/entries.html", context)


def _query(request: HttpRequest) -> str:
    """The filters alone, to be put before another parameter."""
    kept = request.GET.copy()
    kept.pop("before", None)
    return kept.urlencode()


@login_required
@require_GET
def export(request: HttpRequest, slug: str) -> StreamingHttpResponse:
    """All entries that the filters leave, newest first."""
    team = team_for(request, slug, to="manage")
    pages = streamed(_pages(_chosen(request, team)))
    answer = StreamingHttpResponse(pages, content_type="text/csv; charset=utf-8")
    answer["Content-Disposition"] = f'attachment; filename="audit-{team.slug}.csv"'
    return answer


def _chosen(request: HttpRequest, team: Team) -> QuerySet[AuditEntry]:
    found = team.audit_entries.order_by("-id")
    if (area := request.GET.get("area", "")) in AREAS:
        found = found.filter(verb__startswith=f"{area}.")
    if (who := request.GET.get("who", "")) and "\0" not in who:
        found = found.filter(who=who)
    return found


def _pages(found: QuerySet[AuditEntry]) -> Iterator[bytes]:
    """Page after page, as ``streamed`` asks."""
    yield _csv([("at", "who", "verb", "what", "target")])
    entries = list(found[:LINES_AT_ONCE])
    while entries:
        yield _csv((entry.at.isoformat(), entry.who, entry.verb, plain(entry), entry.target) for entry in entries)
        entries = list(found.filter(id__lt=entries[-1].id)[:LINES_AT_ONCE])


def _csv(lines: Iterable[tuple[str, ...]]) -> bytes:
    text = StringIO(newline="")
    csv.writer(text).writerows([_harmless(cell) for cell in line] for line in lines)
    return text.getvalue().encode()


def _harmless(cell: str) -> str:
    """A spreadsheet takes what begins like this for a formula."""
    return f"'{cell}" if cell.startswith(FORMULA) else cell
