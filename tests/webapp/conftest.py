"""The cast: alice owns a team, bob is a member of it, rita reviews, victor looks, charlie is a stranger."""

# ruff: noqa: E402 - models can be imported only after the setup
import json
from collections.abc import Callable, Iterator
from typing import Any

import django
import pytest

django.setup()

from django.test import Client

from engine.spec.run import RunSpec
from tests.webapp.runs.conftest import Engine, egress_record
from webapp.accounts.access import scopes_within
from webapp.accounts.models import ApiKey, Membership, Role, Team, User
from webapp.accounts.services import create_api_key, create_team
from webapp.ingest import runs as projections
from webapp.runs.models import Run, RunStatus
from webapp.runs.services import submit_run


@pytest.fixture(autouse=True)
def _fast_passwords(settings: Any) -> None:
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]


@pytest.fixture(autouse=True)
def _no_broker(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Only tests that ask for the Valkey server send messages; the others record what they would send."""
    if "valkey_server" not in request.fixturenames:
        from webapp import queue
        from webapp.conversations import log
        from webapp.ingest import endpoint
        from webapp.security import decisions, services

        monkeypatch.setattr(queue, "_send_now", lambda *_: None)
        monkeypatch.setattr(log, "notify_group", lambda _group: None)
        monkeypatch.setattr(endpoint, "notify_run_viewers", lambda _run_id: None)
        monkeypatch.setattr(endpoint, "notify_alert_viewers", lambda: None)
        monkeypatch.setattr(services, "notify_alert_viewers", lambda: None)
        monkeypatch.setattr(decisions, "notify_alert_viewers", lambda: None)


@pytest.fixture(autouse=True)
def _forget_metric_keys() -> Iterator[None]:
    """The test database loses the rows that the process remembers."""
    yield
    projections._KEY_IDS.clear()


@pytest.fixture
def alice(db: None) -> User:
    return User.objects.create_user("alice@example.org", "correct horse battery", name="Alice")


@pytest.fixture
def team(alice: User) -> Team:
    return create_team("Blue Team", acting_user=alice)


def _member(team: Team, name: str, role: Role) -> User:
    user = User.objects.create_user(f"{name}@example.org", "correct horse battery", name=name.title())
    Membership.objects.create(team=team, user=user, role=role)
    return user


@pytest.fixture
def bob(team: Team) -> User:
    return _member(team, "bob", Role.MEMBER)


@pytest.fixture
def rita(team: Team) -> User:
    return _member(team, "rita", Role.REVIEWER)


@pytest.fixture
def victor(team: Team) -> User:
    return _member(team, "victor", Role.VIEWER)


@pytest.fixture
def charlie(db: None) -> User:
    """In another team, so that what this user may not see is not an effect of having no team at all."""
    user = User.objects.create_user("charlie@example.org", "correct horse battery")
    create_team("Red Team", acting_user=user)
    return user


@pytest.fixture
def spec() -> RunSpec:
    return RunSpec(name="tiny")


@pytest.fixture
def run(team: Team, alice: User, spec: RunSpec) -> Run:
    """Queued."""
    return submit_run(team, spec, acting_user=alice)


@pytest.fixture
def launching_run(run: Run) -> Run:
    """Attempt 1 was claimed; its engine has said nothing yet."""
    assert run.move_to(RunStatus.LAUNCHING, by="worker", attempt=1, submission_id=f"run-{run.id}-1")
    return run


class Api:
    """A program with an API key; by default it reads and launches as far as the user's role goes."""

    def __init__(self, user: User, team: Team, scopes: tuple[str, ...] | None = None) -> None:
        own = scopes_within(team.memberships.get(user=user).role)
        wanted = scopes or tuple(scope for scope in ("read", "launch") if scope in own)
        self.key = create_api_key(team, "test", ["read"], acting_user=user)
        # As of a maker whose role was higher when the key was made.
        ApiKey.objects.filter(id=self.key.key.id).update(scopes=list(wanted))
        self.client = Client(headers={"authorization": f"Bearer {self.key.text}"})

    def get(self, path: str, **query: Any) -> Any:
        return self.client.get(f"/api/v1{path}", query)

    def post(self, path: str, body: Any = None, **headers: str) -> Any:
        return self.client.post(f"/api/v1{path}", json.dumps(body), content_type="application/json", headers=headers)


@pytest.fixture
def api_of(team: Team) -> Callable[..., Api]:
    """Makes the API of a user; a stranger's key is of their own team."""

    def make(user: User, **options: Any) -> Api:
        own = Membership.objects.filter(user=user).first()
        return Api(user, own.team if own else team, **options)

    return make


@pytest.fixture
def engine_of() -> Callable[..., Engine]:
    return Engine


@pytest.fixture
def engine(launching_run: Run) -> Engine:
    return Engine(launching_run)


@pytest.fixture
def alarming_run(engine: Engine, launching_run: Run) -> Run:
    """A sandbox tried a mining pool twice in turn 1 of train-1-0, was frozen for it, and the trajectory was told."""
    records = [egress_record(1), egress_record(2, attempt={"protocol": "dns", "name": "pool.example", "port": 53})]
    events = [engine.started(), engine.egress(*records), engine.alert()]
    reported = engine.trajectory(alerts=["sandbox-1/1"], masked_because="quarantined", stop_reason="frozen")
    assert engine.post(*events, reported).status_code == 200
    launching_run.refresh_from_db()
    return launching_run
