"""The backends against which every claim of this folder is tested.

A new one is an entry of ``BACKENDS``.  Where it cannot run its tests are skipped, and say why.
"""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from sandboxes.opened import opened
from sandboxes.service.tokens import Quota, Tokens
from sandboxes.spec import SandboxSpec
from tests.sandboxes.asking import opened_after_another


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
    "docker": Backend(lambda **fields: SandboxSpec(backend="docker", image="host", **fields), needs="docker_image"),
}


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


@pytest.fixture(scope="session")
def sandbox_service(tmp_path_factory) -> Iterator[None]:
    """A sandbox service in a process of its own, to which ``place = "service"`` leads."""
    tokens = tmp_path_factory.mktemp("service") / "tokens.json"
    text = Tokens(tokens).create("contract", "contract", Quota())[1]
    command = [sys.executable, "-m", "sandboxes", "serve", "--port", "0", "--tokens", str(tokens)]
    log = tokens.with_name("log")
    with (
        open(log, "w") as stderr,  # a pipe that nobody reads would stop it
        subprocess.Popen(command, stderr=stderr) as process,
        pytest.MonkeyPatch.context() as patch,
    ):
        while '"serving"' not in log.read_text():
            assert process.poll() is None, log.read_text()
            time.sleep(0.05)
        port = next(
            reported["port"] for line in log.read_text().splitlines() if "port" in (reported := json.loads(line))
        )
        patch.setenv("PALESTRA_SANDBOX_URL", f"http://127.0.0.1:{port}")
        patch.setenv("PALESTRA_SANDBOX_TOKEN", text)
        yield
        process.terminate()


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
