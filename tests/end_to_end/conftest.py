"""One running Palestra for all tests of this folder that do not end it."""

from collections.abc import Iterator

import pytest

from tests.end_to_end.stack import Stack


@pytest.fixture(scope="session")
def stack() -> Iterator[Stack]:
    running = Stack()
    try:
        running.up()
        yield running
    finally:
        running.remove()


@pytest.fixture
def empty_stack() -> Iterator[Stack]:
    """A home of the test's own, with nothing running in it yet."""
    own = Stack()
    try:
        yield own
    finally:
        own.remove()
