"""The database after a test that commits: no rows but those of migrations, and nobody's transaction is cut."""

import time
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import pytest
from django.apps import apps
from django.contrib.auth.models import Group, Permission
from django.contrib.contenttypes.models import ContentType
from django.db import connection, transaction

from tests.emptying import empty
from webapp.accounts.models import User
from webapp.experiments.sample import ensure_sample

STAY = {Permission, ContentType}
WAITS_FOR_A_LOCK = "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
seen = list[tuple[set[int], set[int]]]()


def ids() -> tuple[set[int], set[int]]:
    """Those of permissions and of content types."""
    return set(Permission.objects.values_list("id", flat=True)), set(ContentType.objects.values_list("id", flat=True))


def filled() -> set[type]:
    return {model for model in apps.get_models(include_auto_created=True) if model._default_manager.exists()}


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("turn", ["first", "second"])
def test_a_test_that_commits_begins_without_rows_and_with_the_same_permissions(turn: str) -> None:
    assert filled() == STAY
    seen.append(ids())
    assert all(of_each == seen[0] for of_each in seen)
    assert seen[0][0]
    ensure_sample()


@pytest.mark.django_db(transaction=True)
def test_rows_that_refer_to_each_other_go_at_once() -> None:
    ensure_sample()
    Group.objects.create(name="readers").permissions.add(*Permission.objects.all()[:2])
    before = ids()
    assert len(filled()) > 6
    empty("default")
    assert filled() == STAY
    assert ids() == before


@pytest.mark.django_db(transaction=True)
def test_a_transaction_under_way_is_waited_for() -> None:
    made, goes_on = Event(), Event()

    def hold() -> None:
        try:
            with transaction.atomic():
                User.objects.create_user("late@palestra.local", "a password of some length", name="Late")
                made.set()
                goes_on.wait(60)
        finally:
            connection.close()

    def clear() -> None:
        try:
            empty("default")
        finally:
            connection.close()

    with ThreadPoolExecutor(2) as threads:
        holding = threads.submit(hold)
        assert made.wait(60)
        clearing = threads.submit(clear)
        while not waits_for_a_lock():
            assert not clearing.done()
            time.sleep(0.01)
        goes_on.set()
        holding.result()
        clearing.result()
    assert filled() == STAY


def waits_for_a_lock() -> bool:
    with connection.cursor() as cursor:
        cursor.execute(WAITS_FOR_A_LOCK)
        return cursor.fetchone() is not None
