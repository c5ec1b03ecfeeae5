"""Sandboxes at several hosts behind one address: where they go, who waits, what is asked of whom."""

import asyncio

import httpx
import pytest

from sandboxes.admin.host import Host, HostUnreachable, _client
from sandboxes.service.capacity import Capacity, Gate, Room, demand_mib
from sandboxes.service.hosted import HostedSandbox
from sandboxes.service.refusals import Unusable
from sandboxes.spec import SandboxSpec
from tests.sandboxes.admin.conftest import LOOK_S, ONE, Fleet
from tests.sandboxes.service.cast import create, until


def ids(fleet: Fleet, name: str) -> set[str]:
    return {hosted.id for hosted in fleet.hosts[name].sandboxes.living()}


def host_of(fleet: Fleet, path: str) -> str:
    return next(name for name in fleet.hosts if path.removeprefix("/v1/sandboxes/") in ids(fleet, name))


async def fill(client: httpx.AsyncClient, number: int = 8) -> list[str]:
    return [await create(client) for _ in range(number)]


async def test_sandboxes_go_where_the_load_is_least(fleet, alice):
    large = {"timeout_s": 10, "memory_mib": ONE.memory_mib + demand_mib(ONE)}
    paths = [await create(alice, spec=large), *await fill(alice, 3)]
    # The large one weighs as much as two others, and is one.
    assert [host_of(fleet, path) for path in paths] == ["a", "b", "b", "a"]


async def test_what_one_sandbox_can_do_it_can_do_through_the_admin(fleet, alice):
    path = await create(alice)
    assert (await alice.post(f"{path}/python", json={"code": "x = 40\nx + 2"})).json()["stdout"] == "42\n"
    assert (await alice.put(f"{path}/files", params={"path": "a b&c"}, content=b"\0\xff")).status_code == 204
    read = await alice.get(f"{path}/files", params={"path": "a b&c"})
    assert (read.content, read.headers["Content-Type"]) == (b"\0\xff", "application/octet-stream")
    kept = (await alice.post(f"{path}/snapshots")).json()["id"]
    await alice.post(f"{path}/python", json={"code": "x = 0"})
    assert (await alice.post(f"{path}/snapshots/{kept}/restore")).status_code == 204
    assert (await alice.post(f"{path}/python", json={"code": "x"})).json()["stdout"] == "40\n"
    missing = await alice.get(f"{path}/files", params={"path": "nowhere"})
    assert (missing.status_code, missing.json()["errno"]) == (409, 2)
    assert (await alice.get(f"{path}/inspect")).json()["execs"] == 3
    assert (await alice.delete(path)).json()["state"] == "closed"
    gone = await alice.post(f"{path}/python", json={"code": "1"})
    assert (gone.status_code, gone.json()["detail"]) == (410, "it was closed")


async def test_one_queue_stands_before_all_hosts_and_owners_take_turns(fleet, alice, bob):
    made = await fill(alice)
    assert (len(ids(fleet, "a")), len(ids(fleet, "b"))) == (4, 4)
    body = {"wait_s": 0, "spec": {"timeout_s": 10}}
    waiting = [await who.post("/v1/sandboxes", json=body) for who in (alice, alice, bob)]
    alices, alices_second, bobs = (answer.headers["Location"] for answer in waiting)
    assert [answer.status_code for answer in waiting] == [202] * 3
    assert (await bob.get(bobs)).json()["position"] == 1
    assert [(await alice.get(path)).json()["position"] for path in (alices, alices_second)] == [2, 3]
    early = await bob.post(f"{bobs}/python", json={"code": "1"})
    assert (early.status_code, "queued" in early.json()["detail"]) == (409, True)
    left = host_of(fleet, made[5])
    await alice.delete(made[5])
    assert (await bob.get(bobs, params={"wait_s": 30})).json()["state"] == "open"
    assert host_of(fleet, bobs) == left
    assert (await alice.delete(alices)).json()["state"] == "closed"
    assert (await alice.get(alices_second)).json()["position"] == 1


async def test_whoever_waits_too_long_is_refused_with_the_reason(fleet, alice):
    await fill(alice)
    answer = await alice.post("/v1/sandboxes", json={"queue_s": 0.2})
    assert (answer.status_code, "queue_s = 0.2" in answer.json()["detail"]) == (503, True)
    assert (await fleet.stats(alice))["queue"] == 0


async def test_what_no_host_can_ever_bear_is_refused_and_what_a_host_refuses_is_passed_on(fleet, alice):
    large = await alice.post("/v1/sandboxes", json={"spec": {"memory_mib": 16384}})
    assert (large.status_code, large.json()["problems"][0]["field"]) == (422, "spec.memory_mib")
    assert "largest of 2 hosts" in large.json()["problems"][0]["message"]
    rule = {"name": "r", "cidrs": ["10.0.0.0/8"], "ports": [80], "action": "allow"}
    opening = {"network": "watched", "egress": {"rules": [rule]}}
    near = await alice.post("/v1/sandboxes", json={"spec": opening})
    assert (near.status_code, near.json()["problems"][0]["field"]) == (422, "spec.egress.rules.0.cidrs")
    assert await fill(alice)


async def test_a_draining_host_gets_none_and_keeps_what_it_has(fleet, alice):
    await fill(alice, 2)
    before = ids(fleet, "a")
    assert len(before) == 1
    fleet.file.drain("a", True)
    await fleet.until_host(alice, "a", state="draining")
    await fill(alice, 3)
    assert ids(fleet, "a") == before
    kept = f"/v1/sandboxes/{before.copy().pop()}"
    assert (await alice.post(f"{kept}/python", json={"code": "1 + 1"})).json()["stdout"] == "2\n"
    waiting = await alice.post("/v1/sandboxes", json={"wait_s": 0})
    assert waiting.json()["state"] == "queued"
    fleet.file.drain("a", False)
    assert (await alice.get(waiting.headers["Location"], params={"wait_s": 30})).json()["state"] == "open"


async def test_what_others_use_at_a_host_is_no_room(fleet, alice):
    direct = {"Authorization": f"Bearer {fleet.hosts['a'].token('direct')}"}
    async with httpx.AsyncClient(base_url=fleet.hosts["a"].url, headers=direct, timeout=60) as client:
        for _ in range(3):
            await create(client)
        await fleet.until_host(alice, "a", capacity_sandboxes=1)
        mine = await fill(alice, 5)
        assert [host_of(fleet, path) for path in mine].count("a") == 1
        listed = (await alice.get("/v1/sandboxes")).json()["sandboxes"]
        assert {view["id"] for view in listed} == {path.rsplit("/")[-1] for path in mine}
        assert (await client.get(mine[0])).status_code == 404


async def test_a_sandbox_that_its_host_closes_makes_room(fleet, alice):
    made = await fill(alice, 7)
    idle = await create(alice, idle_s=0.5)
    waiting = await alice.post("/v1/sandboxes", json={"wait_s": 30, "spec": {"timeout_s": 10}})
    assert waiting.json()["state"] == "open"
    assert (await alice.get(idle)).json()["state"] == "closed"
    assert (await fleet.stats(alice))["sandboxes"]["closed"] == 1
    assert len(made) == 7


async def test_a_sandbox_that_its_host_had_no_room_for_is_made_there_once_it_has(fleet, alice, monkeypatch):
    """For the admin a sandbox that its host closes has left; to end it takes the host longer than it lets one wait."""
    monkeypatch.setattr("sandboxes.admin.routed_sandboxes.HOST_QUEUE_S", 0.05)
    close, ended = HostedSandbox.close, asyncio.Event()

    async def close_late(hosted):
        await ended.wait()
        await close(hosted)

    await only_host(fleet, alice, "c")
    await create(alice, idle_s=0.2)
    monkeypatch.setattr(HostedSandbox, "close", close_late)
    waiting = await alice.post("/v1/sandboxes", json={"wait_s": 0, "queue_s": 4, "spec": {"timeout_s": 10}})
    assert waiting.json()["state"] == "queued"

    async def refused() -> bool:
        return any(hosted.refused is not None for hosted in fleet.hosts["c"].sandboxes.all())

    await until(refused)
    ended.set()
    opened = await alice.get(waiting.headers["Location"], params={"wait_s": 30})
    assert (opened.status_code, opened.json().get("state")) == (200, "open"), opened.text
    assert ids(fleet, "c") == {opened.json()["id"]}


async def test_a_sandbox_whose_host_went_away_while_it_was_made_is_made_there_anew(fleet, alice, monkeypatch):
    """What the host has of the first try is closed there, and its closing does not reach the second one."""
    asked, closed = Host._asked, asyncio.Event()
    lost = [1]

    async def answer_lost(host, method, path, **sent):
        if method == "DELETE":
            await asyncio.sleep(0.3)  # long enough for whoever does not wait for it
        response = await asked(host, method, path, **sent)
        if method == "DELETE":
            closed.set()
        elif path == "/v1/sandboxes" and lost:
            lost.clear()
            raise HostUnreachable("it went away")
        return response

    await only_host(fleet, alice, "c")
    monkeypatch.setattr(Host, "_asked", answer_lost)
    answer = await alice.post("/v1/sandboxes", json={"spec": {"timeout_s": 10}})
    await closed.wait()
    assert (answer.status_code, answer.json()["state"]) == (201, "open"), answer.text
    there = await alice.post(f"{answer.headers['Location']}/python", json={"code": "6 * 7"})
    assert (there.status_code, there.json().get("stdout")) == (200, "42\n"), there.text
    assert (await fleet.stats(alice))["sandboxes"]["open"] == 1


async def test_an_admin_that_starts_finds_what_lives_whatever_another_host_remembers_of_it(fleet, alice, monkeypatch):
    """Host a closed what it had of the first try; b made it, and answers a new admin last."""
    asked, lost = Host._asked, [1]

    async def answer_lost(host, method, path, **sent):
        if host.name == "b" and path == "/v1/host/sandboxes":
            await asyncio.sleep(0.2)
        response = await asked(host, method, path, **sent)
        if path == "/v1/sandboxes" and lost:
            lost.clear()
            fleet.file.drain("a", True)
            await fleet.until_host(alice, "a", state="draining")
            raise HostUnreachable("it went away")
        return response

    monkeypatch.setattr(Host, "_asked", answer_lost)
    fleet.file.drain("b", True)
    await fleet.until_host(alice, "b", state="draining")
    making = asyncio.create_task(alice.post("/v1/sandboxes", json={"spec": {"timeout_s": 10}}))
    await fleet.until_host(alice, "a", state="draining")
    fleet.file.drain("b", False)
    made = (await making).json()
    while ids(fleet, "a"):  # noqa: ASYNC110  what happens at the service sets no event here
        await asyncio.sleep(0.02)
    assert (ids(fleet, "b"), made["state"]) == ({made["id"]}, "open")
    await fleet.admin.stop()
    await fleet.start_admin()
    async with httpx.AsyncClient(base_url=fleet.admin.url, headers=alice.headers, trust_env=False) as again:
        await asyncio.sleep(3 * LOOK_S)
        assert (await again.get(f"/v1/sandboxes/{made['id']}")).json()["state"] == "open"
    assert ids(fleet, "b") == {made["id"]}


async def only_host(fleet: Fleet, client: httpx.AsyncClient, name: str) -> None:
    """A host with room for one sandbox; the others take none."""
    for other in fleet.hosts:
        fleet.file.drain(other, True)
        await fleet.until_host(client, other, state="draining")
    await fleet.add_host(name, Capacity(1, demand_mib(ONE)))
    await fleet.until_host(client, name, state="up")


async def test_a_key_that_there_was_no_room_for_makes_a_sandbox_once_there_is_room(fleet, alice):
    await only_host(fleet, alice, "c")
    first, key = await create(alice), {"Idempotency-Key": "k"}
    asked = {"queue_s": 0.1, "spec": {"timeout_s": 10}}
    assert (await alice.post("/v1/sandboxes", json=asked, headers=key)).status_code == 503
    await alice.delete(first)
    made, again = [await alice.post("/v1/sandboxes", json=asked, headers=key) for _ in range(2)]
    assert (made.status_code, made.json()["id"]) == (201, again.json()["id"])


async def test_a_repeated_request_is_one_sandbox(fleet, alice, bob):
    headers = {"Idempotency-Key": "k"}
    first, again = [await alice.post("/v1/sandboxes", json={}, headers=headers) for _ in range(2)]
    assert first.json()["id"] == again.json()["id"]
    assert (await bob.post("/v1/sandboxes", json={}, headers=headers)).json()["id"] != first.json()["id"]
    other = await alice.post("/v1/sandboxes", json={"stream": True}, headers=headers)
    assert (other.status_code, "Idempotency-Key" in other.json()["detail"]) == (422, True)


async def test_gem_environments_are_made_at_hosts(fleet, alice, bob):
    made = [(await alice.post("/gem/make", json={"env_id": "python", "max_steps": 2})).json() for _ in range(2)]
    assert {host_of(fleet, answer["instance"]) for answer in made} == {"a", "b"}
    instance = made[0]["instance"]
    assert (await alice.post("/gem/reset", json={"instance": instance})).json()["info"] == {"seed": 0}
    step = await alice.post("/gem/step", json={"instance": instance, "action": "6 * 7"})
    assert step.json()["observation"] == "42\n"
    assert (await bob.post("/gem/step", json={"instance": instance, "action": "1"})).status_code == 404
    assert (await alice.post("/gem/close", json={"instance": instance})).status_code == 204
    await until(lambda: _number_is(fleet, alice, 1))
    assert (await alice.post("/gem/make", json={"env_id": "go"})).status_code == 422


async def _number_is(fleet: Fleet, client: httpx.AsyncClient, number: int) -> bool:
    return (await fleet.stats(client))["sandboxes"]["open"] == number


async def test_numbers_are_given_by_host(fleet, alice):
    await fill(alice, 3)
    stats = await fleet.stats(alice)
    assert (stats["sandboxes"]["open"], stats["capacity_sandboxes"]) == (3, 8)
    assert sorted(host["sandboxes"] for host in stats["hosts"].values()) == [1, 2]
    text = (await alice.get("/metrics")).text
    assert 'palestra_sandbox_host_up{host="a"} 1' in text
    assert 'palestra_sandbox_sandboxes{state="open"} 3' in text


async def test_an_admin_that_starts_anew_finds_every_sandbox(fleet, alice):
    headers = {"Idempotency-Key": "k"}
    path = (await alice.post("/v1/sandboxes", json={}, headers=headers)).headers["Location"]
    frozen, closed = await create(alice), await create(alice)
    await alice.post(f"{path}/python", json={"code": "x = 42"})
    await alice.post(f"{frozen}/freeze", json={"reason": "a miner"})
    await alice.delete(closed)
    port = fleet.admin.serving.port
    await fleet.admin.stop()
    await fleet.start_admin(port)
    assert (await alice.post(f"{path}/python", json={"code": "x"})).json()["stdout"] == "42\n"
    again = await alice.post("/v1/sandboxes", json={}, headers=headers)
    assert again.headers["Location"] == path
    held = await alice.post(f"{frozen}/python", json={"code": "1"})
    assert (held.status_code, held.json()["detail"]) == (423, "a miner")
    assert (await alice.get(closed)).json()["reason"] == "it was closed"
    stats = await fleet.stats(alice)
    assert (stats["sandboxes"]["open"], stats["sandboxes"]["frozen"]) == (1, 1)
    assert stats["used_memory_mib"] == 2 * demand_mib(SandboxSpec())


async def test_a_host_that_is_added_or_removed_is_so_at_once(fleet, alice):
    await fill(alice)
    waiting = await alice.post("/v1/sandboxes", json={"wait_s": 0, "spec": {"timeout_s": 10}})
    await fleet.add_host("c", Capacity(1, demand_mib(ONE)))
    path = waiting.headers["Location"]
    assert (await alice.get(path, params={"wait_s": 30})).json()["state"] == "open"
    assert host_of(fleet, path) == "c"
    fleet.file.remove("c")

    async def lost() -> bool:
        return (await alice.get(path)).json()["state"] == "lost"

    await until(lost)
    gone = await alice.post(f"{path}/python", json={"code": "1"})
    assert (gone.status_code, "'c'" in gone.json()["detail"]) == (410, True)
    assert (await alice.delete(path)).json()["state"] == "lost"


async def test_whoever_asks_while_a_host_is_taken_out_is_told_that_and_no_fault_of_ours(fleet, alice, monkeypatch):
    """Between the look at the sandbox's state and the question, its host's client is closed."""
    path = await create(alice)
    name = host_of(fleet, path)
    asked = Host._asked

    async def taken_out_first(host, *what, **sent):
        if host.name == name and not host._client.is_closed:
            await host.close()
        return await asked(host, *what, **sent)

    monkeypatch.setattr(Host, "_asked", taken_out_first)
    answer = await alice.get(path)
    assert answer.status_code == 410
    assert f"host '{name}' was taken out" in answer.json()["detail"]
    fleet.file.remove(name)

    async def lost() -> bool:
        return (await alice.get(path)).json().get("state") == "lost"

    await until(lost)


async def test_a_question_that_meets_a_move_is_asked_at_the_new_address(fleet, alice, monkeypatch):
    path = await create(alice)
    name, moves = host_of(fleet, path), [1]
    asked = Host._asked

    async def moved_first(host, *what, **sent):
        if host.name == name and moves:
            moves.clear()
            await host._client.aclose()
            former, host._client = host._client, _client(host.entry)
            monkeypatch.setattr(host, "_client", former)
            asking = asyncio.ensure_future(asked(host, *what, **sent))
            await asyncio.sleep(0)
            monkeypatch.setattr(host, "_client", _client(host.entry))
            return await asking
        return await asked(host, *what, **sent)

    monkeypatch.setattr(Host, "_asked", moved_first)
    assert (await alice.get(path)).json()["state"] == "open"
    assert not moves


# -- the gate alone --------------------------------------------------------------------------------


def rooms(*memory_mib: int) -> Gate:
    gate = Gate(None, 100)
    gate.rooms += [Room(str(place), Capacity(10, wanted)) for place, wanted in enumerate(memory_mib)]
    return gate


async def test_a_host_that_has_just_failed_comes_last_and_one_that_is_closed_not_at_all():
    wanted = demand_mib(ONE)
    gate = rooms(10 * wanted, 10 * wanted, 10 * wanted)
    gate.rooms[0].failures, gate.rooms[1].is_open = 1, False
    tickets = [gate.enter("a", "a", ONE) for _ in range(11)]
    assert [ticket.room.name for ticket in tickets] == ["2"] * 10 + ["0"]


async def test_a_large_one_waits_for_one_host_with_room_and_is_not_overtaken():
    small = demand_mib(ONE)
    large = SandboxSpec(memory_mib=ONE.memory_mib + small, timeout_s=10)
    gate = rooms(2 * small, 2 * small)
    held = [gate.enter("a", "a", ONE) for _ in range(2)]
    assert {ticket.room.name for ticket in held} == {"0", "1"}
    big, late = gate.enter("b", "b", large), gate.enter("c", "c", ONE)
    assert (gate.position(big), gate.position(late)) == (1, 2)
    gate.leave(held[0])
    assert (big.room.name, late.room.name) == ("0", "1")


async def test_what_a_host_did_not_have_after_all_is_first_again():
    gate = rooms(demand_mib(ONE))
    first = gate.enter("a", "a", ONE)
    second = gate.enter("b", "b", ONE)
    gate.rooms[0].is_open = False
    gate.wait_again(first)
    assert (gate.position(first), gate.position(second), gate.memory_mib) == (1, 2, 0)
    gate.rooms[0].is_open = True
    gate.let_in()
    assert (first.room, second.room) == (gate.rooms[0], None)


async def test_as_long_as_a_host_has_not_said_what_it_has_nothing_is_refused_for_ever():
    large = SandboxSpec(memory_mib=4096)
    gate = rooms(10)
    with pytest.raises(Unusable):
        gate.enter("a", "a", large)
    gate.rooms.append(Room("unknown", None))
    assert gate.position(gate.enter("a", "a", large)) == 1
