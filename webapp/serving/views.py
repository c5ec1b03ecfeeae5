"""The page of serving keys: which there are, what they have used, and a new one, shown once."""

from typing import Any
from uuid import UUID

from django import forms
from django.conf import settings
from django.contrib.auth.decorators import login_required
from django.http import HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET, require_POST

from webapp.accounts.access import may, teams_of
from webapp.accounts.requests import PageRequest
from webapp.catalog.access import version_for
from webapp.catalog.models import ModelVersion, VersionState
from webapp.pages.responses import redirect_with, refusals_return_to
from webapp.refusals import Invalid
from webapp.runs.access import run_for
from webapp.runs.models import Run
from webapp.serving import services
from webapp.serving.access import serving_key_for, serving_keys_of

MOST_SHOWN = 100
"""Runs, versions and keys that the page offers or lists."""


class NewKey(forms.Form):
    """``opens`` is ``version-<id>`` or ``run-<id>``."""

    name = forms.CharField(max_length=100, label="Name", help_text="What will use the key")
    opens = forms.RegexField(r"^(version-[0-9]{1,18}|run-[0-9a-f-]{36})$", label="Model")
    step = forms.IntegerField(min_value=0, max_value=2**31 - 1, required=False, label="Step")
    requests_per_minute = forms.IntegerField(min_value=1, max_value=100_000, initial=60, label="Requests a minute")
    parallel = forms.IntegerField(min_value=1, max_value=256, initial=4, label="Answers at once")
    tokens_per_day = forms.IntegerField(min_value=1, max_value=10**12, required=False, label="Tokens a day")
    expires_in_days = forms.IntegerField(
        min_value=1, max_value=services.LONGEST_DAYS, required=False, label="Expires after days"
    )

    @property
    def limits(self) -> services.KeyLimits:
        given = self.cleaned_data
        return services.KeyLimits(
            given["requests_per_minute"], given["parallel"], given["tokens_per_day"], given["expires_in_days"]
        )


def _page(request: PageRequest, form: NewKey | None = None, *, status: int = 200, **shown_once: Any) -> HttpResponse:
    keys = list(serving_keys_of(request)[:MOST_SHOWN])
    totals = services.totals_of(keys)
    launching = [team for team in teams_of(request) if may(request, team, "launch")]
    versions = ModelVersion.objects.filter(model__team__in=launching, state=VersionState.READY)
    runs = Run.objects.filter(team__in=launching, checkpoints__isnull=False).distinct()
    context = {
        "section": "serving",
        "rows": [{"key": key, "used": totals.get(key.id), "revocable": key.team in launching} for key in keys],
        "creates": bool(launching),
        "form": form or NewKey(),
        "versions": versions.select_related("model").order_by("model__name", "-number")[:MOST_SHOWN],
        "runs": runs.select_related("team").order_by("-created_at")[:MOST_SHOWN],
        "url": settings.PALESTRA_SERVING_URL,
    }
    return render(request, "serving/keys.html", context | shown_once, status=status)


@never_cache
@login_required
@require_GET
def overview(request: PageRequest) -> HttpResponse:
    return _page(request)


@login_required
@require_GET
def detail(request: PageRequest, key_id: UUID) -> HttpResponse:
    key = serving_key_for(request, key_id)
    context = {
        "section": "serving", "key": key, "days": services.usage_by_day(key), "url": settings.PALESTRA_SERVING_URL,
        "revocable": may(request, key.team, "launch"),
    }  # fmt: skip
    return render(request, "serving/key.html", context)


def _list(*_: Any, **__: Any) -> str:
    return reverse("serving:list")


@never_cache
@login_required
@require_POST
@refusals_return_to(_list)
def create(request: PageRequest) -> HttpResponse:
    form = NewKey(request.POST)
    if not form.is_valid():
        return _page(request, form, status=422)
    given = form.cleaned_data
    kind, _, id_ = given["opens"].partition("-")
    try:
        if kind == "version":
            version = version_for(request, int(id_), to="launch")
            created = services.serve_version(version, given["name"], form.limits, acting_user=request.user)
        else:
            run = run_for(request, id_, to="launch")
            created = services.serve_checkpoint(
                run, given["step"], given["name"], form.limits, acting_user=request.user
            )
    except Invalid as refusal:
        for problem in refusal.problems:
            field = problem.field if problem.field in form.fields else None
            form.add_error(field, f"{problem.message}; {problem.remedy}")
        return _page(request, form, status=422)
    return _page(request, new_key=created)


@login_required
@require_POST
@refusals_return_to(_list)
def revoke(request: PageRequest, key_id: UUID) -> HttpResponse:
    key = serving_key_for(request, key_id, to="launch")
    services.revoke_serving_key(key, acting_user=request.user)
    return redirect_with(request, f"The key “{key.name}” opens nothing any more.", _list())
