"""People, teams, keys and signing in."""

from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from django.core.exceptions import PermissionDenied
from django.http import Http404
from django.test import Client, RequestFactory
from django.utils import timezone

from tests.webapp.at_once import at_once
from webapp.accounts import services
from webapp.accounts.access import allowed, may, team_for, team_to_act_in
from webapp.accounts.models import ApiKey, AuditEntry, Membership, Role, Scope, SignInFailure, Team, User
from webapp.accounts.sign_in import FAILURES_PER_ADDRESS, FAILURES_PER_EMAIL, forget_old_failures, sign_in
from webapp.refusals import Invalid, Refused, TooMany

pytestmark = pytest.mark.django_db
PASSWORD = "correct horse battery"


@pytest.mark.parametrize(
    ("role", "actions"),
    [
        (Role.OWNER, {"read", "launch", "manage"}),
        (Role.MEMBER, {"read", "launch"}),
        (Role.REVIEWER, {"read"}),
        (Role.VIEWER, {"read"}),
    ],
)
def test_a_role_allows_what_the_table_says(team: Team, alice: User, role: str, actions: set[str]) -> None:
    Membership.objects.update(role=role)
    assert {action for action in ("read", "launch", "manage") if may(alice, team, action)} == actions


def test_strangers_get_404_and_low_roles_403(team: Team, victor: User, charlie: User) -> None:
    with pytest.raises(Http404):
        allowed(charlie, team, "read")
    with pytest.raises(PermissionDenied):
        allowed(victor, team, "launch")
    with pytest.raises(Http404):
        team_for(charlie, team.slug)
    with pytest.raises(Http404):
        team_for(charlie, "no-such-team")


def test_somebody_who_was_deactivated_is_a_stranger(team: Team, alice: User) -> None:
    alice.is_active = False
    with pytest.raises(Http404):
        allowed(alice, team, "read")


def test_with_two_teams_one_must_be_named(team: Team, alice: User) -> None:
    assert team_to_act_in(alice, None, to="launch") == team
    services.create_team("Other", acting_user=alice)
    with pytest.raises(Invalid) as refusal:
        team_to_act_in(alice, None, to="launch")
    assert refusal.value.problems[0].field == "team"


def test_teams_of_equal_name_get_different_slugs(alice: User) -> None:
    slugs = [services.create_team("Blue Team!", acting_user=alice).slug for _ in range(3)]
    assert slugs == ["blue-team", "blue-team-2", "blue-team-3"]


def test_a_new_member_gets_a_password_once_and_a_known_one_does_not(team: Team, alice: User, charlie: User) -> None:
    added = services.add_member(team, " New@Example.org ", Role.MEMBER, acting_user=alice)
    assert added.password is not None
    user = User.objects.get(email="new@example.org")
    assert user.check_password(added.password)
    assert user.must_change_password
    assert services.add_member(team, charlie.email, Role.VIEWER, acting_user=alice).password is None
    with pytest.raises(Refused, match="already"):
        services.add_member(team, charlie.email, Role.VIEWER, acting_user=alice)


@pytest.mark.django_db(transaction=True)
def test_owners_who_add_the_same_person_at_once_make_one_account(team: Team, alice: User) -> None:
    def add() -> str:
        try:
            services.add_member(team, "new@example.org", Role.VIEWER, acting_user=alice)
        except Refused:
            return "refused"
        return "added"

    assert sorted(at_once(*[add] * 4)) == ["added", "refused", "refused", "refused"]


@pytest.mark.parametrize(("email", "role", "field"), [
    ("nobody", "member", "email"), ("a@b.org", "king", "role"), (f"a@{'b.' * 130}org", "member", "email"),
])  # fmt: skip
def test_a_bad_member_is_named(team: Team, alice: User, email: str, role: str, field: str) -> None:
    with pytest.raises(Invalid) as refusal:
        services.add_member(team, email, role, acting_user=alice)
    assert refusal.value.problems[0].field == field
    assert team.memberships.count() == 1


def test_a_team_keeps_an_owner(team: Team, alice: User, bob: User) -> None:
    alices, bobs = team.memberships.get(user=alice), team.memberships.get(user=bob)
    with pytest.raises(Refused, match="owner"):
        services.remove_member(alices, acting_user=alice)
    with pytest.raises(Refused, match="owner"):
        services.change_role(alices, Role.VIEWER, acting_user=alice)
    services.change_role(bobs, Role.OWNER, acting_user=alice)
    services.remove_member(alices, acting_user=bob)
    assert [m.user for m in team.memberships.all()] == [bob]


@pytest.mark.django_db(transaction=True)
def test_two_owners_who_remove_each_other_leave_one(team: Team, alice: User, bob: User) -> None:
    team.memberships.update(role=Role.OWNER)
    alices, bobs = (Membership.objects.get(user=user) for user in (alice, bob))

    def remove(victim: Membership, by: User) -> None:
        with suppress(Refused):
            services.remove_member(victim, acting_user=by)

    at_once(partial(remove, alices, by=bob), partial(remove, bobs, by=alice))
    assert team.memberships.filter(role=Role.OWNER).count() == 1


def test_removing_a_member_ends_their_keys(team: Team, alice: User, bob: User) -> None:
    services.create_api_key(team, "ci", ["read"], acting_user=bob)
    services.remove_member(team.memberships.get(user=bob), acting_user=alice)
    assert ApiKey.objects.get().revoked_at is not None


def test_revoking_twice_is_revoking_once(team: Team, alice: User) -> None:
    key = services.create_api_key(team, "ci", ["read"], acting_user=alice).key
    services.revoke_api_key(key, acting_user=alice)
    first = ApiKey.objects.get().revoked_at
    services.revoke_api_key(key, acting_user=alice)
    assert ApiKey.objects.get().revoked_at == first
    assert AuditEntry.objects.filter(verb="key.revoke").count() == 1


@pytest.mark.parametrize(
    ("name", "scopes", "field"),
    [("", ["read"], "name"), ("a\0b", ["read"], "name"), ("x", [], "scopes"), ("x", ["root"], "scopes")],
)
def test_a_bad_key_is_named(team: Team, alice: User, name: str, scopes: list[str], field: str) -> None:
    with pytest.raises(Invalid) as refusal:
        services.create_api_key(team, name, scopes, acting_user=alice)
    assert refusal.value.problems[0].field == field


@pytest.mark.parametrize(
    ("current", "new", "field"), [("wrong", "a long new password", "current"), (PASSWORD, "xyz!", "new")]
)
def test_a_password_changes_only_with_the_old_one_and_to_a_good_one(
    alice: User, current: str, new: str, field: str
) -> None:
    with pytest.raises(Invalid) as refusal:
        services.change_password(alice, current, new)
    assert refusal.value.problems[0].field == field
    assert new not in str(refusal.value.problems[0])
    assert User.objects.get(id=alice.id).check_password(PASSWORD)


def test_a_changed_password_is_a_persons_own(alice: User) -> None:
    alice.must_change_password = True
    services.change_password(alice, PASSWORD, "an entirely new phrase")
    fresh = User.objects.get(id=alice.id)
    assert fresh.check_password("an entirely new phrase")
    assert not fresh.must_change_password


def _request(address: str = "192.0.2.1") -> Any:
    from django.contrib.sessions.backends.db import SessionStore

    request = RequestFactory().post("/sign-in", REMOTE_ADDR=address)
    request.session = SessionStore()
    return request


def test_the_right_password_signs_in_whatever_the_case_of_the_address(alice: User) -> None:
    assert sign_in(_request(), "Alice@Example.org", PASSWORD) == alice


def test_wrong_passwords_are_counted_per_address_and_forgotten_in_time(alice: User) -> None:
    for _ in range(FAILURES_PER_ADDRESS):
        with pytest.raises(Invalid):
            sign_in(_request(), alice.email, "wrong")
    with pytest.raises(TooMany):
        sign_in(_request(), alice.email, PASSWORD)
    assert sign_in(_request("192.0.2.2"), alice.email, PASSWORD) == alice
    SignInFailure.objects.update(at=timezone.now() - timedelta(minutes=16))
    assert sign_in(_request(), alice.email, PASSWORD) == alice
    assert forget_old_failures() == 0  # signing in forgot them


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("of_its_own", [False, True])
def test_wrong_passwords_at_once_are_counted_like_those_in_turn(alice: User, of_its_own: bool) -> None:
    """From one address, or each from one of its own."""
    most = FAILURES_PER_EMAIL if of_its_own else FAILURES_PER_ADDRESS
    before = most - 10

    def attempt(number: int) -> str:
        try:
            sign_in(_request(f"198.51.100.{number if of_its_own else 7}"), alice.email, "wrong")
        except (Invalid, TooMany) as refusal:
            return type(refusal).__name__
        return "signed in"

    SignInFailure.objects.bulk_create(
        SignInFailure(email=alice.email, address=f"192.0.2.{number}") for number in range(before)
    )
    refusals = at_once(*[partial(attempt, number) for number in range(30)])
    assert (refusals.count("Invalid"), refusals.count("TooMany")) == (10, 20)
    assert SignInFailure.objects.count() == most


def test_many_addresses_together_are_too_many_too(alice: User) -> None:
    SignInFailure.objects.bulk_create(
        SignInFailure(email=alice.email, address=f"198.51.100.{number}") for number in range(FAILURES_PER_EMAIL)
    )
    with pytest.raises(TooMany):
        sign_in(_request(), alice.email, PASSWORD)


def test_an_unknown_address_and_a_wrong_password_look_the_same(alice: User) -> None:
    reported = []
    for email in (alice.email, "nobody@example.org"):
        with pytest.raises(Invalid) as refusal:
            sign_in(_request(), email, "wrong")
        reported.append(refusal.value.problems)
    assert reported[0] == reported[1]


@pytest.mark.parametrize(
    ("role", "may_have"),
    [
        (Role.OWNER, {"read", "launch", "review"}),
        (Role.MEMBER, {"read", "launch"}),
        (Role.REVIEWER, {"read", "review"}),
        (Role.VIEWER, {"read"}),
    ],
)
def test_everybody_makes_keys_of_their_own_scopes_and_no_others(
    team: Team, bob: User, role: str, may_have: set
) -> None:
    team.memberships.filter(user=bob).update(role=role)
    client = Client()
    client.force_login(bob)
    page = client.get(f"/teams/{team.slug}/").content.decode()
    assert {scope for scope in Scope.values if f'name="scopes" value="{scope}"' in page} == may_have
    made = client.post(f"/teams/{team.slug}/keys", {"name": "own", "scopes": sorted(may_have)})
    assert made.status_code == 200
    assert set(ApiKey.objects.get(name="own").scopes) == may_have
    for scope in set(Scope.values) - may_have:
        with pytest.raises(Invalid, match="(?i)cannot be used") as refusal:
            services.create_api_key(team, "too much", ["read", scope], acting_user=bob)
        assert (refusal.value.problems[0].field, refusal.value.problems[0].value) == ("scopes", [scope])
    assert ApiKey.objects.count() == 1


def test_a_key_sinks_with_its_makers_role(team: Team, bob: User, run) -> None:
    text = services.create_api_key(team, "ci", ["read", "launch"], acting_user=bob).text
    team.memberships.filter(user=bob).update(role=Role.VIEWER)
    program = Client(headers={"authorization": f"Bearer {text}"})
    assert program.post(f"/api/v1/runs/{run.id}/cancel").status_code == 403
    assert program.get(f"/api/v1/runs/{run.id}").status_code == 200
