"""Pages of people and teams: signing in, passwords, members, keys, the audit log."""

from typing import Any

from django.contrib.auth import logout, update_session_auth_hash
from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.utils.http import url_has_allowed_host_and_scheme
from django.views.decorators.cache import never_cache
from django.views.decorators.debug import sensitive_post_parameters
from django.views.decorators.http import require_http_methods, require_POST

from webapp.accounts import services
from webapp.accounts.access import allowed, may, scopes_within, team_for
from webapp.accounts.models import Role, Scope, Team
from webapp.accounts.requests import PageRequest
from webapp.accounts.sign_in import sign_in as start_session
from webapp.pages.responses import redirect_with, refusals_return_to
from webapp.refusals import Invalid, Refused


@never_cache
@sensitive_post_parameters("password")
@require_http_methods(["GET", "POST"])
def sign_in(request: HttpRequest) -> HttpResponse:
    if request.method == "GET":
        if request.user.is_authenticated:
            return redirect(_safe_next(request))
        return render(request, "accounts/sign_in.html", {"next": request.GET.get("next", "")})
    email = request.POST.get("email", "")
    try:
        start_session(request, email, request.POST.get("password", ""))
    except Refused as refusal:
        context = {"refusal": refusal, "email": email, "next": request.POST.get("next", "")}
        return render(request, "accounts/sign_in.html", context, status=refusal.status)
    return redirect(_safe_next(request))


def _safe_next(request: HttpRequest) -> str:
    """Only addresses of our own: a link with ``?next=`` must not lead elsewhere."""
    target = (request.POST or request.GET).get("next", "")
    is_ours = url_has_allowed_host_and_scheme(target, {request.get_host()}, require_https=request.is_secure())
    return target if is_ours else "/"


@require_POST
def sign_out(request: HttpRequest) -> HttpResponse:
    logout(request)
    return redirect("accounts:sign-in")


@never_cache
@sensitive_post_parameters()
@login_required
@require_http_methods(["GET", "POST"])
def password(request: PageRequest) -> HttpResponse:
    context: dict[str, Any] = {"section": "password", "errors": {}}
    if request.method == "POST":
        try:
            services.change_password(request.user, request.POST.get("current", ""), _new_password(request))
        except Refused as refusal:
            context["errors"] = {problem.field: problem for problem in refusal.problems}
            return render(request, "accounts/password.html", context, status=refusal.status)
        update_session_auth_hash(request, request.user)
        return redirect_with(request, "Your password is changed. Other sessions of yours are signed out.", "/")
    return render(request, "accounts/password.html", context)


def _new_password(request: PageRequest) -> str:
    new, again = request.POST.get("new", ""), request.POST.get("again", "")
    if new != again:
        raise Invalid.field("again", "(hidden)", "this is not the same password", "type the new one twice")
    return new


@never_cache
@login_required
def team(request: PageRequest, slug: str, **shown_once: Any) -> HttpResponse:
    """``shown_once``: a new member's password or a new key, which no later request can see again."""
    team = team_for(request, slug)
    membership = allowed(request, team, "read")
    manages = may(request, team, "manage")
    keys = team.api_keys.select_related("user").filter(revoked_at=None).order_by("-created_at")
    context = {
        "section": "team",
        "current_team": team,
        "manages": manages,
        "memberships": team.memberships.select_related("user").order_by("role", "user__email"),
        "roles": Role.choices,
        "scopes": [(value, label) for value, label in Scope.choices if value in scopes_within(membership.role)],
        "keys": keys if manages else keys.filter(user=request.user),
    }
    return render(request, "accounts/team.html", context | shown_once)


def _team_url(slug: str, **_: Any) -> str:
    return reverse("accounts:team", args=[slug])


def _managed(request: PageRequest, slug: str) -> Team:
    return team_for(request, slug, to="manage")


@login_required
@require_POST
@refusals_return_to(_team_url)
def add_member(request: PageRequest, slug: str) -> HttpResponse:
    team_ = _managed(request, slug)
    email, role = request.POST.get("email", ""), request.POST.get("role", "")
    added = services.add_member(team_, email, role, acting_user=request.user)
    if added.password is None:
        return redirect_with(request, f"{added.membership.user.email} is in the team now.", _team_url(slug))
    return team(request, slug, new_member=added)


@login_required
@require_POST
@refusals_return_to(_team_url)
def change_role(request: PageRequest, slug: str, membership_id: int) -> HttpResponse:
    membership = get_object_or_404(_managed(request, slug).memberships, id=membership_id)
    changed = services.change_role(membership, request.POST.get("role", ""), acting_user=request.user)
    return redirect_with(request, f"{changed.user.email} is {changed.role} now.", _team_url(slug))


@login_required
@require_POST
@refusals_return_to(_team_url)
def remove_member(request: PageRequest, slug: str, membership_id: int) -> HttpResponse:
    membership = get_object_or_404(_managed(request, slug).memberships.select_related("user"), id=membership_id)
    services.remove_member(membership, acting_user=request.user)
    return redirect_with(request, f"{membership.user.email} has left the team.", _team_url(slug))


@login_required
@require_POST
@refusals_return_to(_team_url)
def create_key(request: PageRequest, slug: str) -> HttpResponse:
    team_ = team_for(request, slug)
    name, scopes = request.POST.get("name", ""), request.POST.getlist("scopes")
    return team(request, slug, new_key=services.create_api_key(team_, name, scopes, acting_user=request.user))


@login_required
@require_POST
@refusals_return_to(_team_url)
def revoke_key(request: PageRequest, slug: str, key_id: int) -> HttpResponse:
    """Everybody may revoke a key of their own; owners may revoke any."""
    team_ = team_for(request, slug)
    keys = team_.api_keys.all() if may(request, team_, "manage") else team_.api_keys.filter(user=request.user)
    key = get_object_or_404(keys, id=key_id)
    services.revoke_api_key(key, acting_user=request.user)
    return redirect_with(request, f"The key “{key.name}” is revoked.", _team_url(slug))
