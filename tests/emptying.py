"""What a test committed leaves the database, by row and not by table.

Django's ``flush`` truncates every table, which makes a file for each of their indexes, and then makes all permissions
and content types anew.  Here rows go from tables that have some, and those two tables stay as migrations made them.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from django.db import connections, transaction
from django.test import TransactionTestCase

STAY = {"auth_permission", "django_content_type"}


@contextmanager
def in_place_of_flush() -> Iterator[None]:
    """While it lasts, tests that commit end with ``empty``."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TransactionTestCase, "_fixture_teardown", _empty_all)
        yield


def _empty_all(test: TransactionTestCase) -> None:
    for name in test._databases_names(include_mirrors=False):
        empty(name)


def empty(database: str) -> None:
    """Waits as TRUNCATE does until whoever has a transaction under way has ended it."""
    connection = connections[database]
    quoted = connection.ops.quote_name
    tables = sorted(connection.introspection.django_table_names(only_existing=True, include_views=False))
    looks = [f"SELECT '{table}' WHERE EXISTS (SELECT FROM {quoted(table)})" for table in tables if table not in STAY]
    with transaction.atomic(using=database), connection.cursor() as cursor:
        cursor.execute(f"LOCK TABLE {', '.join(map(quoted, tables))} IN ACCESS EXCLUSIVE MODE")
        cursor.execute(" UNION ALL ".join(looks))
        filled = [table for (table,) in cursor.fetchall()]
        cursor.execute("SET LOCAL session_replication_role = replica")  # no foreign key is looked up
        for table in filled:
            cursor.execute(f"DELETE FROM {quoted(table)}")
