"""Pages of conversations: which there are, and one, in which a person talks with a model."""

from uuid import UUID

from django import forms
from django.contrib.auth.decorators import login_required
from django.core.paginator import Paginator
from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.http import require_GET, require_POST

from engine.spec.chat import Sampling
from webapp.accounts.access import may
from webapp.accounts.requests import PageRequest
from webapp.catalog.access import version_for
from webapp.conversations.access import conversation_for, conversations_of
from webapp.conversations.services import begin_conversation, begin_with_version
from webapp.pages.responses import refusals_return_to
from webapp.runs.access import run_for

PER_PAGE = 50


class Beginning(forms.Form):
    step = forms.IntegerField(min_value=0, max_value=2**31 - 1, required=False)
    tools = forms.BooleanField(required=False)


@login_required
@require_GET
def overview(request: PageRequest) -> HttpResponse:
    pages = Paginator(conversations_of(request), PER_PAGE)
    context = {"section": "conversations", "page": pages.get_page(request.GET.get("page"))}
    return render(request, "conversations/overview.html", context)


@login_required
@require_GET
def detail(request: PageRequest, conversation_id: UUID) -> HttpResponse:
    conversation = conversation_for(request, conversation_id)
    api = f"/api/v1/conversations/{conversation.id}"
    context = {
        "section": "conversations",
        "conversation": conversation,
        "talks": may(request, conversation.team, "launch") and not conversation.version_is_gone,
        "page_data": {"api": api, "socket": f"/live/conversations/{conversation.id}/"},
        "sampling": Sampling(),
    }
    return render(request, "conversations/detail.html", context)


def _checkpoints_of(run_id: UUID) -> str:
    return reverse("runs:detail", args=[run_id]) + "?tab=checkpoints"


@login_required
@require_POST
@refusals_return_to(_checkpoints_of)
def begin(request: PageRequest, run_id: UUID) -> HttpResponse:
    run = run_for(request, run_id, to="launch")
    asked = Beginning(request.POST)
    if not asked.is_valid():
        return redirect(_checkpoints_of(run_id))
    begun = begin_conversation(
        run, asked.cleaned_data["step"], with_tools=asked.cleaned_data["tools"], acting_user=request.user
    )
    return redirect("conversations:detail", begun.id)


def _version_page(version_id: int) -> str:
    return reverse("library:version", args=[version_id])


@login_required
@require_POST
@refusals_return_to(_version_page)
def begin_with(request: PageRequest, version_id: int) -> HttpResponse:
    begun = begin_with_version(version_for(request, version_id, to="launch"), acting_user=request.user)
    return redirect("conversations:detail", begun.id)
