"""Signing in with a password, and not too often with a wrong one."""

from datetime import timedelta

from django.contrib.auth import authenticate, login
from django.db import connection, transaction
from django.http import HttpRequest
from django.utils import timezone

from webapp.accounts.models import SignInFailure, User
from webapp.refusals import Invalid, TooMany

WINDOW = timedelta(minutes=15)
FAILURES_PER_ADDRESS = 10
"""For one e-mail from one address within WINDOW."""
FAILURES_PER_EMAIL = 50
"""For one e-mail from anywhere: slow enough against many addresses, and no cheap way to lock somebody out."""


def sign_in(request: HttpRequest, email: str, password: str) -> User:
    """Start a session.  Raises Invalid for a wrong pair, TooMany after too many of them.

    An attempt counts as a wrong one from before its password is looked at until it has turned out right, so that of
    many at once no more are looked at than of as many in turn.
    """
    email, address = email.strip().lower().replace("\0", "")[:254], request.META.get("REMOTE_ADDR") or None
    _count(email, address)
    user = authenticate(request, username=email, password=password)
    if not isinstance(user, User):
        raise Invalid.field(
            "password", "(hidden)", "e-mail or password is wrong", "try again, or ask an owner of your team"
        )
    SignInFailure.objects.filter(email=email, address=address).delete()
    login(request, user)
    return user


_ONE_AFTER_ANOTHER = "SELECT pg_advisory_xact_lock(hashtextextended('sign in ' || %s, 0))"
"""Until our commit nobody else counts the attempts of this e-mail."""


@transaction.atomic
def _count(email: str, address: str | None) -> None:
    """Raises TooMany."""
    with connection.cursor() as cursor:
        cursor.execute(_ONE_AFTER_ANOTHER, [email])
    recent = SignInFailure.objects.filter(email=email, at__gt=timezone.now() - WINDOW)
    if recent.filter(address=address).count() >= FAILURES_PER_ADDRESS or recent.count() >= FAILURES_PER_EMAIL:
        raise TooMany("too many wrong passwords; wait 15 minutes and try again")
    SignInFailure.objects.create(email=email, address=address)


def forget_old_failures() -> int:
    return SignInFailure.objects.filter(at__lt=timezone.now() - WINDOW).delete()[0]
