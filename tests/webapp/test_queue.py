"""Work is sent on commit, and a broker that is down is nobody's error."""

import json
from typing import Any

import pytest
import redis
from django.db import transaction

from webapp import queue
from webapp.accounts.models import Team, User
from webapp.runs.models import Run, RunStatus
from webapp.runs.services import submit_run

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def messages(valkey_server: str) -> Any:
    """Reads what waits in the broker."""
    server = redis.Redis.from_url(valkey_server)
    server.flushall()
    queue._broker.cache_clear()
    yield lambda: [json.loads(message)["headers"] for message in server.lrange("celery", 0, -1)]
    queue._broker.cache_clear()


def test_a_submitted_run_is_sent_when_it_is_committed(messages: Any, team: Team, alice: User, spec: Any) -> None:
    with transaction.atomic():
        run = submit_run(team, spec, acting_user=alice)
        assert messages() == []
    (header,) = messages()
    assert (header["task"], header["argsrepr"]) == ("runs.launch", f"('{run.id}',)")


def test_what_is_rolled_back_is_never_sent(messages: Any, team: Team, alice: User, spec: Any) -> None:
    with transaction.atomic():
        submit_run(team, spec, acting_user=alice)
        transaction.set_rollback(True)
    assert messages() == []
    assert Run.objects.count() == 0


def test_a_broker_that_was_restarted_is_found_again(
    messages: Any, valkey_server: str, team: Team, alice: User, spec: Any
) -> None:
    submit_run(team, spec, acting_user=alice)
    redis.Redis.from_url(valkey_server).execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    second = submit_run(team, spec, acting_user=alice)
    assert f"('{second.id}',)" in [header["argsrepr"] for header in messages()]


def test_with_the_broker_down_the_run_is_queued_all_the_same(
    valkey_server: str, settings: Any, tmp_path: Any, team: Team, alice: User, spec: Any
) -> None:
    settings.REDIS_URL = f"unix://{tmp_path}/nobody.sock"
    queue._broker.cache_clear()
    run = submit_run(team, spec, acting_user=alice)
    queue._broker.cache_clear()
    assert Run.objects.get(id=run.id).state == RunStatus.QUEUED
