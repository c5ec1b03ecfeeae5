"""The GEM API and the numbers of the service."""

import asyncio
import re

import pytest

from sandboxes.opened import open_sandbox
from sandboxes.service.capacity import Capacity, demand_mib
from sandboxes.service.hosted import HostedSandbox
from sandboxes.spec import SandboxSpec
from tests.sandboxes.service.cast import create
from tests.sandboxes.watched_scene import NOWHERE


async def make(client, **body) -> str:
    answer = await client.post("/gem/make", json={"env_id": "python", "spec": {"timeout_s": 10}} | body)
    assert answer.status_code == 201, answer.text
    return answer.json()["instance"]


async def step(client, instance: str, action: str) -> dict:
    answer = await client.post("/gem/step", json={"instance": instance, "action": action})
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_an_episode_of_python(alice):
    instance = await make(alice, max_steps=3)
    begun = await alice.post("/gem/reset", json={"instance": instance, "seed": 7})
    assert begun.json()["info"] == {"seed": 7}
    first = await step(alice, instance, "x = 20\nprint('hello')\nx + 1")
    assert (first["observation"], first["reward"], first["terminated"], first["truncated"]) == (
        "hello\n21\n", 0.0, False, False,
    )  # fmt: skip
    second = await step(alice, instance, "1 / 0")
    assert (second["info"]["outcome"], second["info"]["exception"]) == ("error", "ZeroDivisionError")
    assert second["observation"].endswith("division by zero\n")
    assert (await step(alice, instance, "x"))["truncated"] is True
    late = await alice.post("/gem/step", json={"instance": instance, "action": "x"})
    assert (late.status_code, "max_steps = 3" in late.json()["detail"]) == (409, True)
    await alice.post("/gem/reset", json={"instance": instance, "seed": 7})
    assert (await step(alice, instance, "x"))["info"]["exception"] == "NameError", "a reset begins anew"
    for _ in range(2):
        assert (await alice.post("/gem/close", json={"instance": instance})).status_code == 204
    gone = await alice.post("/gem/step", json={"instance": instance, "action": "1"})
    assert gone.status_code == 410


@pytest.mark.parametrize(("reuse", "counts_on"), [("never", False), ("reset", True)])
async def test_a_new_episode_has_a_sandbox_of_its_own_unless_the_spec_says_otherwise(alice, reuse, counts_on):
    instance = await make(alice, spec={"timeout_s": 10, "reuse": reuse})
    numbers = []
    for _ in range(2):
        await alice.post("/gem/reset", json={"instance": instance})
        spend = "import os\nfor _ in range(20):\n  if os.fork() == 0: os._exit(0)\n  os.wait()\nos.getpid()"
        numbers.append(int((await step(alice, instance, spend))["observation"]))
    assert (numbers[1] > numbers[0] + 20) is counts_on
    assert (await alice.get(f"/v1/sandboxes/{instance}")).json()["state"] == "open"


@pytest.fixture
def made(monkeypatch):
    """Every sandbox that the service opens."""
    made = []

    async def noted(*what):
        made.append(await open_sandbox(*what))
        return made[-1]

    monkeypatch.setattr("sandboxes.service.hosted_sandboxes.open_sandbox", noted)
    return made


async def test_an_environment_that_is_closed_while_a_new_episode_begins_leaves_no_sandbox(alice, made, monkeypatch):
    """It is closed while the refusals of the former sandbox are counted: the new one is there already."""
    count, counting, closed = HostedSandbox.count_denied, asyncio.Event(), asyncio.Event()

    async def count_late(hosted):
        if not counting.is_set():
            counting.set()
            await closed.wait()
        await count(hosted)

    instance = await make(alice)
    monkeypatch.setattr(HostedSandbox, "count_denied", count_late)
    beginning = asyncio.create_task(alice.post("/gem/reset", json={"instance": instance}))
    await counting.wait()
    assert (await alice.post("/gem/close", json={"instance": instance})).status_code == 204
    closed.set()
    assert (await beginning).status_code == 410
    assert [sandbox.alive for sandbox in made] == [False, False]


async def test_an_episode_that_cannot_begin_leaves_the_environment_the_sandbox_it_had(alice, made, monkeypatch):
    async def not_counted(hosted):
        raise OSError(5, "not counted")

    instance = await make(alice)
    with monkeypatch.context() as patched:
        patched.setattr(HostedSandbox, "count_denied", not_counted)
        assert (await alice.post("/gem/reset", json={"instance": instance})).status_code == 409
    assert [sandbox.alive for sandbox in made] == [True, False]


async def test_a_seed_makes_an_episode_repeatable_after_a_time_out_too(alice):
    instance = await make(alice)
    seen = []
    for seed in (7, 7, 8):
        await alice.post("/gem/reset", json={"instance": instance, "seed": seed})
        seen.append((await step(alice, instance, "import random; random.random()"))["observation"])
        await step(alice, instance, "import os; os._exit(1)")
        again = await step(alice, instance, "import random; random.random()")
        assert again["observation"].startswith(seen[-1])
    assert seen[0] == seen[1] != seen[2]


async def test_a_step_before_a_reset_and_an_unknown_environment_are_refused(alice):
    instance = await make(alice)
    early = await alice.post("/gem/step", json={"instance": instance, "action": "1"})
    assert (early.status_code, "/gem/reset" in early.json()["detail"]) == (409, True)
    unknown = await alice.post("/gem/make", json={"env_id": "chess"})
    problem = unknown.json()["problems"][0]
    assert (unknown.status_code, problem["field"], problem["value"]) == (422, "env_id", "chess")
    assert "python" in problem["remedy"]
    assert list((await alice.get("/gem/environments")).json()) == ["python"]
    plain = (await create(alice)).rsplit("/", 1)[-1]
    assert (await alice.post("/gem/reset", json={"instance": plain})).status_code == 404


async def test_without_room_an_environment_is_not_made(serve):
    service = await serve(capacity=Capacity(1, demand_mib(SandboxSpec())))
    alice = await service.client("alice")
    await create(alice)
    answer = await alice.post("/gem/make", json={"env_id": "python", "queue_s": 0.1})
    assert answer.status_code == 503


# -- numbers ---------------------------------------------------------------------------------------

TRY = "import socket\ntry:\n  socket.create_connection(('198.51.100.7', 4444), 5).recv(9)\nexcept OSError: pass"


async def test_stats_and_metrics_count_what_happens(serve):
    service = await serve(upstream=NOWHERE)
    alice = await service.client("alice")
    watched = await create(alice, spec={"network": "watched", "timeout_s": 10})
    await alice.post(f"{watched}/python", json={"code": TRY})
    await alice.delete(watched)
    frozen, plain = await create(alice), await create(alice)
    await alice.post(f"{plain}/python", json={"code": "1"})
    await alice.post(f"{frozen}/freeze", json={"reason": "x"})
    stats = (await alice.get("/v1/stats")).json()
    assert (stats["sandboxes"]["open"], stats["sandboxes"]["frozen"], stats["sandboxes"]["closed"]) == (1, 1, 1)
    assert (stats["execs"], stats["frozen"], stats["denied"], stats["queue"], stats["refused"]) == (2, 1, 1, 0, 0)
    assert stats["used_memory_mib"] == 2 * demand_mib(SandboxSpec())
    text = (await alice.get("/metrics")).text
    values = dict(re.findall(r"^palestra_sandbox_(\S+) ([0-9.]+)$", text, re.MULTILINE))
    assert values['sandboxes{state="open"}'] == "1"
    assert values['sandboxes{state="frozen"}'] == "1"
    assert values['sandboxes_ended_total{state="closed"}'] == "1"
    assert (values["execs_total"], values["denied_attempts_total"], values["queue"]) == ("2", "1", "0")
    for line in text.splitlines():
        assert re.fullmatch(
            r"# (HELP|TYPE) palestra_sandbox_\w+ .+|palestra_sandbox_\w+(\{state=\"\w+\"\})? [0-9.]+", line
        )


async def test_attempts_are_counted_before_a_reset_forgets_them(serve):
    service = await serve(upstream=NOWHERE)
    alice = await service.client("alice")
    watched = await create(alice, spec={"network": "watched", "timeout_s": 10})
    await alice.post(f"{watched}/python", json={"code": TRY})
    await alice.post(f"{watched}/reset")
    assert (await alice.get("/v1/stats")).json()["denied"] == 1


@pytest.mark.parametrize("path", ["/v1/nothing", "/v1/sandboxes/sbx-none"])
async def test_what_is_not_there_is_a_problem_too(alice, path):
    answer = await alice.get(path)
    assert (answer.status_code, answer.headers["Content-Type"]) == (404, "application/problem+json")


async def test_a_step_alone_is_a_program_with_an_exit_code_and_ends_the_session(alice):
    instance = await make(alice)
    await alice.post("/gem/reset", json={"instance": instance, "seed": 7})
    await step(alice, instance, "x = 1\nimport os\nif os.fork() == 0:\n    while True: os.sched_yield()")
    others = "import os; print({n for n in os.listdir('/proc') if n.isdigit()} - {'1', str(os.getpid())}); exit(3)"
    reported = await alice.post("/gem/step", json={"instance": instance, "action": others, "alone": True})
    assert (reported.json()["observation"], reported.json()["info"]["exit_code"]) == ("set()\n", 3)
    assert "[fresh interpreter: " in (await step(alice, instance, "x"))["observation"]
