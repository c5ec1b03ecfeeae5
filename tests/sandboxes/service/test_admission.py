"""Who is let in, in which order, and who never."""

import asyncio

import pytest

from sandboxes.service.capacity import Capacity, Gate, demand_mib
from sandboxes.service.refusals import Busy, Unusable
from sandboxes.spec import SandboxSpec
from tests.sandboxes.service.cast import create, until

ONE = SandboxSpec(timeout_s=10)


def gate(sandboxes: int = 1, memory_mib: int = 10**6, most_waiting: int = 100) -> Gate:
    return Gate(Capacity(sandboxes, memory_mib), most_waiting)


async def let_in_order(gate: Gate, tickets: dict) -> list[str]:
    """The names of the tickets as they are let in, each leaving at once."""
    order = []
    while len(order) < len(tickets):
        name = next(name for name, t in tickets.items() if t.admitted.done() and name not in order)
        order.append(name)
        gate.leave(tickets[name])
    return order


async def test_users_take_turns_whoever_asks_most():
    line = gate()
    holder = line.enter("x", "x", ONE)
    tickets = {f"a{n}": line.enter("team", "a", ONE) for n in range(3)}
    tickets |= {f"b{n}": line.enter("team", "b", ONE) for n in range(2)}
    assert [line.position(tickets[name]) for name in ("a0", "b0", "a1", "b1", "a2")] == [1, 2, 3, 4, 5]
    line.leave(holder)
    assert await let_in_order(line, tickets) == ["a0", "b0", "a1", "b1", "a2"]


async def test_an_owner_gets_no_more_turns_by_naming_many_users():
    line = gate()
    holder = line.enter("x", "x", ONE)
    tickets = {f"m{n}": line.enter("many", f"user {n}", ONE) for n in range(4)}
    tickets |= {f"o{n}": line.enter("one", "o", ONE) for n in range(2)}
    line.leave(holder)
    assert await let_in_order(line, tickets) == ["m0", "o0", "m1", "o1", "m2", "m3"]


async def test_whoever_was_let_in_longest_ago_is_next():
    line = gate()
    first = line.enter("a", "a", ONE)
    again, other = line.enter("a", "a", ONE), line.enter("b", "b", ONE)
    assert (line.position(again), line.position(other)) == (2, 1)
    line.leave(first)
    assert (other.admitted.done(), again.admitted.done()) == (True, False)


async def test_a_large_sandbox_is_not_overtaken_for_ever():
    small, large = SandboxSpec(memory_mib=32, disk_mib=1), SandboxSpec(memory_mib=256, disk_mib=1)
    line = gate(10, demand_mib(large))
    holder = line.enter("a", "a", small)
    big = line.enter("b", "b", large)
    late = line.enter("c", "c", small)
    assert (line.position(big), line.position(late)) == (1, 2)
    line.leave(holder)
    assert (big.admitted.done(), late.admitted.done()) == (True, False)
    line.leave(big)
    assert late.admitted.done()


async def test_memory_and_sandboxes_are_never_exceeded_and_all_is_given_back():
    spec = SandboxSpec()
    line = gate(3, 2 * demand_mib(spec) + 1)
    tickets = [line.enter("a", str(n), spec) for n in range(6)]
    assert (line.sandboxes, line.memory_mib, line.waiting) == (2, 2 * demand_mib(spec), 4)
    line.leave(tickets[5])
    for ticket in (*tickets, *tickets):
        line.leave(ticket)
    assert (line.sandboxes, line.memory_mib, line.waiting) == (0, 0, 0)


async def test_what_never_fits_is_refused_with_the_field_and_a_full_line_is_busy():
    with pytest.raises(Unusable) as refused:
        gate(1, 100).enter("a", "a", SandboxSpec(memory_mib=128))
    assert (refused.value.problems[0].field, refused.value.problems[0].value) == ("spec.memory_mib", 128)
    assert "--memory-mib" in refused.value.problems[0].remedy
    line = gate(1, most_waiting=1)
    line.enter("a", "a", ONE)
    line.enter("a", "a", ONE)
    with pytest.raises(Busy):
        line.enter("a", "a", ONE)


async def test_whoever_has_given_up_and_not_left_yet_is_passed_over():
    line = gate()
    holder, given_up, late = (line.enter("a", "a", ONE) for _ in range(3))
    given_up.admitted.cancel()
    assert (line.position(given_up), line.position(late)) == (None, 1)
    line.leave(holder)
    assert (given_up.room, late.room) == (None, line.rooms[0])
    for ticket in (given_up, late):
        line.leave(ticket)
    assert (line.sandboxes, line.memory_mib, line.waiting) == (0, 0, 0)


# -- over HTTP -------------------------------------------------------------------------------------


@pytest.fixture
async def narrow(serve):
    """A service with room for one sandbox."""
    return await serve(capacity=Capacity(1, demand_mib(ONE)))


async def test_a_sandbox_that_does_not_fit_now_waits_and_is_told_its_place(narrow):
    alice, bob = await narrow.client("alice"), await narrow.client("bob")
    first = await create(alice)
    waiting = [
        await who.post("/v1/sandboxes", json={"wait_s": 0, "spec": {"timeout_s": 10}}) for who in (bob, alice, bob)
    ]
    assert [answer.status_code for answer in waiting] == [202, 202, 202]
    assert [answer.json()["state"] for answer in waiting] == ["queued"] * 3
    bobs, alices, bobs_second = (answer.headers["Location"] for answer in waiting)
    assert (await bob.get(bobs)).json()["position"] == 1
    assert (await alice.get(alices)).json()["position"] == 2
    assert (await bob.get(bobs_second)).json()["position"] == 3
    early = await bob.post(f"{bobs}/python", json={"code": "1"})
    assert (early.status_code, "queued" in early.json()["detail"]) == (409, True)
    cancelled = await alice.delete(alices)
    assert cancelled.json()["state"] == "closed"
    assert (await bob.get(bobs_second)).json()["position"] == 2
    looking = asyncio.create_task(bob.get(bobs, params={"wait_s": 30}))
    await alice.delete(first)
    assert (await looking).json()["state"] == "open"
    assert (await bob.post(f"{bobs}/python", json={"code": "1 + 1"})).json()["stdout"] == "2\n"


async def test_waiting_ends_with_its_time_out(narrow):
    alice = await narrow.client("alice")
    first = await create(alice)
    answer = await alice.post("/v1/sandboxes", json={"queue_s": 0.2, "wait_s": 30})
    assert (answer.status_code, "queue_s = 0.2" in answer.json()["detail"]) == (503, True)
    assert int(answer.headers["Retry-After"]) > 0
    stats = (await alice.get("/v1/stats")).json()
    assert (stats["queue"], stats["used_memory_mib"]) == (0, demand_mib(ONE))
    await alice.delete(first)
    await create(alice)


async def test_a_key_that_there_was_no_room_for_makes_a_sandbox_once_there_is_room(narrow):
    alice, key = await narrow.client("alice"), {"Idempotency-Key": "k"}
    first, asked = await create(alice), {"queue_s": 0.1}
    for _ in range(2):
        assert (await alice.post("/v1/sandboxes", json=asked, headers=key)).status_code == 503
    await alice.delete(first)
    made, again = await asyncio.gather(*(alice.post("/v1/sandboxes", json=asked, headers=key) for _ in range(2)))
    assert (made.status_code, made.json()["id"]) == (201, again.json()["id"])
    await alice.delete(made.headers["Location"])
    after = (await alice.post("/v1/sandboxes", json=asked, headers=key)).json()
    assert (after["id"], after["state"]) == (made.json()["id"], "closed"), "what was open is not made twice"


async def test_several_that_wait_are_closed_at_once_and_leave_nothing(serve):
    small, large = {"timeout_s": 10}, {"timeout_s": 10, "memory_mib": 1024}
    service = await serve(capacity=Capacity(10, demand_mib(SandboxSpec(**large))))
    alice, sandboxes = await service.client("alice"), service.serving.app.state.sandboxes
    path = await create(alice)
    for spec in (large, small):  # the second has room as soon as the first has left
        assert (await alice.post("/v1/sandboxes", json={"wait_s": 0, "spec": spec})).status_code == 202
    waiting = [hosted for hosted in sandboxes.all() if hosted.state == "queued"]
    await asyncio.gather(*(sandboxes.end(hosted, "it was closed") for hosted in waiting))
    await alice.delete(path)
    stats = (await alice.get("/v1/stats")).json()
    assert (stats["sandboxes"]["closed"], stats["queue"], stats["used_memory_mib"]) == (3, 0, 0)


async def test_what_never_fits_is_422_over_http(narrow):
    alice = await narrow.client("alice")
    answer = await alice.post("/v1/sandboxes", json={"spec": {"memory_mib": 4096}})
    assert answer.status_code == 422
    assert answer.json()["problems"][0]["field"] == "spec.memory_mib"
    assert (await alice.get("/v1/sandboxes")).json()["sandboxes"] == []


async def test_who_waits_when_the_service_stops_is_answered(narrow):
    alice = await narrow.client("alice")
    await create(alice)
    waiting = asyncio.create_task(alice.post("/v1/sandboxes", json={"wait_s": 30}))
    await until(lambda: asyncio.sleep(0, narrow.serving.app.state.sandboxes.gate.waiting))
    narrow.serving.stop()
    assert (await waiting).json()["reason"] == "the service was stopped"
