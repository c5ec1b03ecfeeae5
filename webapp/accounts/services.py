"""What can be done to people, teams and keys.

Callers have been through the door (``access.py``); each verb writes its row and its audit row in
one transaction.  One-time passwords and key texts are returned once and never stored.
"""

import secrets
from collections.abc import Iterator
from dataclasses import dataclass

from django.contrib.auth.hashers import make_password
from django.contrib.auth.password_validation import validate_password
from django.core.exceptions import ValidationError
from django.core.validators import MaxLengthValidator, validate_email
from django.db import transaction
from django.utils import timezone
from django.utils.text import slugify

from webapp.accounts.access import scopes_within
from webapp.accounts.audit import record
from webapp.accounts.models import ApiKey, Membership, Role, Scope, Team, User
from webapp.refusals import Invalid, Refused


@transaction.atomic
def create_team(name: str, *, acting_user: User) -> Team:
    """A team whose owner is ``acting_user``."""
    name = name.strip()
    if not 1 <= len(name) <= 100:
        raise Invalid.field("name", name, "a team needs a name of 1 to 100 characters", "give it one")
    team = Team.objects.create(name=name, slug=_free_slug(name))
    Membership.objects.create(team=team, user=acting_user, role=Role.OWNER)
    record(team, acting_user, "team.create", f"team {team.slug}")
    return team


def _free_slug(name: str) -> str:
    stem = slugify(name)[:50] or "team"
    taken = set(Team.objects.filter(slug__startswith=stem).values_list("slug", flat=True))
    return next(slug for slug in _slugs(stem) if slug not in taken)


def _slugs(stem: str) -> Iterator[str]:
    yield stem
    number = 2
    while True:
        yield f"{stem}-{number}"
        number += 1


@dataclass(frozen=True)
class AddedMember:
    membership: Membership
    password: str | None
    """It is a new user's, shown once; None when the person had an account."""


@transaction.atomic
def add_member(team: Team, email: str, role: str, *, acting_user: User) -> AddedMember:
    """Put a person into the team, with a new account if there is none.  Raises Invalid, Refused."""
    email = _clean_email(email)
    _check_role(role)
    password = one_time_password()
    fresh = {"password": make_password(password), "must_change_password": True}
    user, is_new = User.objects.get_or_create(email=email, defaults=fresh)  # two owners may add the same person at once
    membership, added = Membership.objects.get_or_create(team=team, user=user, defaults={"role": role})
    if not added:
        raise Refused(f"{email} is in this team already, as {membership.role}")
    record(team, acting_user, "member.add", f"user {email}", role=role)
    return AddedMember(membership, password if is_new else None)


@transaction.atomic
def change_role(membership: Membership, role: str, *, acting_user: User) -> Membership:
    """Raises Refused when it would leave the team without an owner."""
    _check_role(role)
    membership = _locked(membership)
    if role == membership.role:
        return membership
    if role != Role.OWNER:
        _refuse_losing_last_owner(membership)
    before, membership.role = membership.role, role
    membership.save(update_fields=["role"])
    record(membership.team, acting_user, "member.role", f"user {membership.user.email}", before=before, after=role)
    return membership


@transaction.atomic
def remove_member(membership: Membership, *, acting_user: User) -> None:
    """The person's keys for this team end with it.  Raises Refused for the last owner."""
    membership = _locked(membership)
    _refuse_losing_last_owner(membership)
    keys = ApiKey.objects.filter(team=membership.team, user=membership.user, revoked_at=None)
    keys.update(revoked_at=timezone.now())
    record(membership.team, acting_user, "member.remove", f"user {membership.user.email}", role=membership.role)
    membership.delete()


def _locked(membership: Membership) -> Membership:
    """The membership as it is now, under the team's lock: two owners who remove each other must not both succeed."""
    Team.objects.select_for_update().get(id=membership.team_id)
    fresh = Membership.objects.select_related("team", "user").filter(id=membership.id).first()
    if fresh is None:
        raise Refused("this person has left the team already")
    return fresh


def _refuse_losing_last_owner(membership: Membership) -> None:
    others = Membership.objects.filter(team=membership.team, role=Role.OWNER).exclude(id=membership.id)
    if membership.role == Role.OWNER and not others.exists():
        raise Refused("a team needs an owner; make somebody else owner first")


@dataclass(frozen=True)
class CreatedKey:
    key: ApiKey
    text: str
    """The whole key, shown once."""


@transaction.atomic
def create_api_key(team: Team, name: str, scopes: list[str], *, acting_user: User) -> CreatedKey:
    """A key that acts for ``acting_user``, with no scope beyond the user's role.  Raises Invalid."""
    name = name.strip()
    if not 1 <= len(name) <= 100:
        raise Invalid.field("name", name, "a key needs a name of 1 to 100 characters", "say what will use it")
    if "\0" in name:
        raise Invalid.field("name", name, "it has a NUL character, which the database cannot keep", "leave it out")
    if not scopes or not set(scopes) <= set(Scope.values):
        raise Invalid.field("scopes", scopes, "unknown or no scopes", f"use some of: {', '.join(Scope.values)}")
    role = Membership.objects.values_list("role", flat=True).get(team=team, user=acting_user)
    if beyond := sorted(set(scopes) - set(scopes_within(role))):
        raise Invalid.field(
            "scopes", beyond, f"your role here is {role}, and a key cannot do more than its maker",
            f"use some of: {', '.join(scopes_within(role))}",
        )  # fmt: skip
    prefix, digest, text = ApiKey.generate()
    key = ApiKey.objects.create(
        team=team, user=acting_user, name=name, prefix=prefix, digest=digest, scopes=sorted(set(scopes))
    )
    record(team, acting_user, "key.create", f"key {prefix}", name=name, scopes=key.scopes)
    return CreatedKey(key, text)


@transaction.atomic
def revoke_api_key(key: ApiKey, *, acting_user: User) -> None:
    """Revoking a revoked key changes nothing."""
    if ApiKey.objects.filter(id=key.id, revoked_at=None).update(revoked_at=timezone.now()):
        record(key.team, acting_user, "key.revoke", f"key {key.prefix}", name=key.name)


@transaction.atomic
def change_password(user: User, current: str, new: str) -> None:
    """Raises Invalid.  The caller keeps this session alive (``update_session_auth_hash``); all others end."""
    if not user.check_password(current):
        raise Invalid.field("current", "(hidden)", "that is not your current password", "type it again")
    try:
        validate_password(new, user)
    except ValidationError as error:
        raise Invalid.field("new", "(hidden)", " ".join(error.messages), "choose another one") from None
    user.set_password(new)
    user.must_change_password = False
    user.save(update_fields=["password", "must_change_password"])
    for membership in user.memberships.select_related("team"):
        record(membership.team, user, "password.change", f"user {user.email}")


def one_time_password() -> str:
    """About 100 bits, in groups that can be typed."""
    alphabet = "abcdefghijkmnpqrstuvwxyz23456789"
    return "-".join("".join(secrets.choice(alphabet) for _ in range(5)) for _ in range(4))


def _clean_email(email: str) -> str:
    email = email.strip().lower()
    try:
        validate_email(email)
        MaxLengthValidator(User._meta.get_field("email").max_length)(email)
    except ValidationError:
        raise Invalid.field("email", email, "this is not an e-mail address", "write it as name@example.org") from None
    return email


def _check_role(role: str) -> None:
    if role not in Role.values:
        raise Invalid.field("role", role, "there is no such role", f"use one of: {', '.join(Role.values)}")
