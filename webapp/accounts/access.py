"""Who may do what: the one place that knows roles, and the door to teams.

Whoever is not in a team cannot tell whether its things exist (``Http404``); whoever is in it with a
role too low may know that (``PermissionDenied``).  The other apps' doors are built on ``allowed``.
"""

from dataclasses import dataclass
from typing import Literal

from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import Http404, HttpRequest

from webapp.accounts.models import ApiKey, Membership, Role, Scope, Team, User
from webapp.refusals import Invalid

Action = Literal["read", "launch", "review", "manage"]
"""``launch``: start, cancel, pause, resume, edit experiments.  ``review``: rule on alerts and quarantined trajectories.
``manage``: members, keys, the audit log."""

_ROLES: dict[Action, frozenset[str]] = {
    "read": frozenset(Role.values),
    "launch": frozenset({Role.OWNER, Role.MEMBER}),
    "review": frozenset({Role.OWNER, Role.REVIEWER}),
    "manage": frozenset({Role.OWNER}),
}
_SCOPES: dict[Action, str | None] = {
    "read": Scope.READ,
    "launch": Scope.LAUNCH,
    "review": Scope.REVIEW,
    "manage": None,
}
"""What an API key needs besides its user's role.  No key manages a team."""


def scopes_within(role: str) -> list[str]:
    """Those of a key that a member with this role may make: what the role itself may do."""
    actions = {scope: action for action, scope in _SCOPES.items() if scope is not None}
    return [scope for scope in Scope.values if role in _ROLES[actions[scope]]]


@dataclass(frozen=True)
class Caller:
    """Who asks: a user, and the key when a program asks in the user's name."""

    user: User
    key: ApiKey | None = None


Who = HttpRequest | User | Caller


def caller_of(who: Who) -> Caller:
    """Anonymous visitors are nobody: 404 for everything."""
    if isinstance(who, HttpRequest):
        authenticated = getattr(who, "auth", None)
        who = authenticated if isinstance(authenticated, Caller) else who.user  # type: ignore[assignment]
    if isinstance(who, Caller):
        return who
    if not isinstance(who, User) or not who.is_active:
        raise Http404
    return Caller(who)


def memberships_of(who: Who) -> QuerySet[Membership]:
    """The memberships that ``who`` may use: those of the user, or for a key only the one of its team."""
    caller = caller_of(who)
    memberships = Membership.objects.filter(user=caller.user)
    return memberships.filter(team=caller.key.team_id) if caller.key else memberships


def readable_memberships_of(who: Who) -> QuerySet[Membership]:
    """Those through which ``who`` may read lists.  Raises PermissionDenied for a key that may not read."""
    _refuse_scopes_without(caller_of(who).key, "read")
    return memberships_of(who)


def teams_of(who: Who) -> QuerySet[Team]:
    return Team.objects.filter(id__in=memberships_of(who).values("team_id")).order_by("name")


def allowed(who: Who, team: Team | int, action: Action) -> Membership:
    """The membership through which ``who`` may do ``action`` in ``team``; raises Http404 or PermissionDenied."""
    team_id = team.id if isinstance(team, Team) else team
    membership = memberships_of(who).select_related("team").filter(team_id=team_id).first()
    if membership is None:
        raise Http404
    if membership.role not in _ROLES[action]:
        raise PermissionDenied(f"your role in {membership.team.name} is {membership.role}, and that may not {action}")
    _refuse_scopes_without(caller_of(who).key, action)
    return membership


def allowed_somewhere(who: Who, action: Action) -> None:
    """Raises PermissionDenied for those who may do ``action`` in no team; said before a request is read any further."""
    roles = set(memberships_of(who).values_list("role", flat=True))
    if not roles & _ROLES[action]:
        raise PermissionDenied(f"your role is {' and '.join(sorted(roles)) or 'none'}, and that may not {action}")
    _refuse_scopes_without(caller_of(who).key, action)


def _refuse_scopes_without(key: ApiKey | None, action: Action) -> None:
    if key is not None and _SCOPES[action] not in key.scopes:
        raise PermissionDenied(f"this API key may not {action}; its scopes are: {', '.join(key.scopes) or 'none'}")


def may(who: Who, team: Team | int, action: Action) -> bool:
    """Say whether ``who`` may act so; pages show or hide buttons by it."""
    try:
        allowed(who, team, action)
    except (Http404, PermissionDenied):
        return False
    return True


def team_for(who: Who, slug: str, *, to: Action = "read") -> Team:
    team = None if "\0" in slug else Team.objects.filter(slug=slug).first()
    if team is None:
        raise Http404
    return allowed(who, team, to).team


def team_to_act_in(who: Who, slug: str | None, *, to: Action) -> Team:
    """The named team, or the only one that ``who`` has."""
    if slug:
        return team_for(who, slug, to=to)
    teams = list(teams_of(who)[:2])
    if len(teams) != 1:
        raise Invalid.field("team", None, "you are in more than one team, or in none", "name the team by its slug")
    return allowed(who, teams[0], to).team
