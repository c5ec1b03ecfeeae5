"""The backends against which every claim of this folder is tested.

A new one is an entry of ``BACKENDS``.  Where it cannot run its tests are skipped, and say why.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from sandboxes.opened import opened
from sandboxes.service.tokens import Quota, Tokens
from sandboxes.spec import SandboxSpec
from tests.sandboxes.asking import opened_after_another
from tests.sandboxes.processes import started


@dataclass(frozen=True)
class Backend:
    """``spec`` takes fields of ``SandboxSpec`` beyond those that this backend needs."""

    spec: Callable[..., SandboxSpec]
    missing: Callable[[], str | None] = lambda: None
    """What this machine lacks for it."""
    snapshots: bool = True
    needs: str | None = None
    """A fixture that provides what it runs on, or skips and says why it cannot."""
    observed: bool = False
    """Whether ``sandbox`` is one whose processes are observed."""
    zygote: bool = False
    """Whether ``sandbox`` is the second one that a zygote makes, as in a pool."""


BACKENDS = {
    "namespaces": Backend(SandboxSpec),
    "zygote": Backend(SandboxSpec, zygote=True),
    "watched": Backend(lambda **fields: SandboxSpec(network="watched", **fields)),
    "observed": Backend(lambda **fields: SandboxSpec(network="watched", **fields), observed=True),
    "remote": Backend(lambda **fields: SandboxSpec(place="service", **fields), needs="sandbox_service"),
    "admin": Backend(lambda **fields: SandboxSpec(place="service", **fields), needs="sandbox_admin"),
    "docker": Backend(lambda **fields: SandboxSpec(backend="docker", image="host", **fields), needs="docker_image"),
}


SOAKED = {"watched", "remote"}
"""Every claim is tested of these through others too: of what is observed, which is watched, and of an admin's hosts,
which are services."""
OF_WALLS = {"test_alone", "test_limits", "test_reuse", "test_scoring", "test_walls", "test_weakening"}
"""What holds a policy back is tested of each backend whenever everything is."""
BY_WALLS = {"docker", "namespaces"}
"""The rest is soaked of these.  Docker's containers take two seconds a claim, and have tests of their own in
``tests/sandboxes/docker``; of namespaces it is tested through a zygote."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        here = isinstance(item, pytest.Function) and item.path.parent == Path(__file__).parent
        if here and "backend" in item.fixturenames:
            name = item.callspec.params["backend"]
            if name in SOAKED or (name in BY_WALLS and item.path.stem not in OF_WALLS):
                item.add_marker(pytest.mark.soak)


@pytest.fixture(params=BACKENDS)
def backend(request) -> Backend:
    chosen = BACKENDS[request.param]
    if missing := chosen.missing():
        pytest.skip(missing)
    if chosen.needs:
        request.getfixturevalue(chosen.needs)
    if not chosen.snapshots and "test_snapshots" in request.node.nodeid:
        pytest.skip(f"sandboxes of {request.param} keep no snapshots")
    return chosen


@pytest.fixture
def sandbox_service(monkeypatch, service_address) -> None:
    """A sandbox service in a process of its own, to which ``place = "service"`` leads."""
    _lead_to(monkeypatch, *service_address)


@pytest.fixture
def sandbox_admin(monkeypatch, admin_address) -> None:
    """An admin and two hosts in processes of their own, to which ``place = "service"`` leads."""
    _lead_to(monkeypatch, *admin_address)


def _lead_to(monkeypatch, url: str, token: str) -> None:
    monkeypatch.setenv("PALESTRA_SANDBOX_URL", url)
    monkeypatch.setenv("PALESTRA_SANDBOX_TOKEN", token)


@pytest.fixture(scope="module")
def service_address(tmp_path_factory) -> Iterator[tuple[str, str]]:
    """The address of a service that ends with its file, and a token."""
    tokens = tmp_path_factory.mktemp("service") / "tokens.json"
    text = Tokens(tokens).create("contract", "contract", Quota())[1]
    with started(tokens.with_name("log"), "serve", "--tokens", str(tokens)) as service:
        yield service.url, text


@pytest.fixture(scope="module")
def admin_address(tmp_path_factory) -> Iterator[tuple[str, str]]:
    """The address of an admin of two hosts that have registered themselves, and a token.

    They end with their file: an admin asks its hosts twice a second for as long as it lives.
    """
    folder = tmp_path_factory.mktemp("admin")
    tokens, join = Tokens(folder / "tokens.json"), folder / "join"
    join.write_text(tokens.create("hosts", "hosts", Quota(), "host")[1])
    text = tokens.create("contract", "contract", Quota())[1]
    with ExitStack() as processes:
        files = ("--tokens", str(tokens.path), "--hosts-file", str(folder / "hosts.json"))
        admin = processes.enter_context(started(folder / "admin.log", "admin", *files))
        for name in ("a", "b"):
            registered = ("--admin", admin.url, "--admin-token-file", str(join), "--name", name)
            own = ("--tokens", str(folder / f"{name}.json"), "--memory-mib", "4000")
            processes.enter_context(started(folder / f"{name}.log", "serve", *own, *registered))
        yield admin.url, text


@pytest.fixture
def make_spec(backend) -> Callable[..., SandboxSpec]:
    return lambda **fields: backend.spec(**({"timeout_s": 10} | fields))


@pytest.fixture
def spec(make_spec) -> SandboxSpec:
    return make_spec()


@pytest.fixture
async def sandbox(spec, backend):
    on_action = (lambda _: None) if backend.observed else None
    async with opened_after_another(spec) if backend.zygote else opened(spec, on_action=on_action) as sandbox:
        yield sandbox
