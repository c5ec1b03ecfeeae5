# ruff: noqa: ASYNC110, PT012  what happens in a sandbox sets no event, and a pool is used as a context

import asyncio
from contextlib import AsyncExitStack

import pytest

from sandboxes import pool as pool_module
from sandboxes.backends.namespaces.sandbox import NamespaceSandbox
from sandboxes.interface import SandboxFrozen, SandboxLost, SandboxUnavailable
from sandboxes.pool import Pool, PoolClosed
from sandboxes.spec import SandboxSpec
from sandboxes.turns import Turns

SPEC = SandboxSpec(timeout_s=10)
USED_AGAIN = SandboxSpec(timeout_s=10, reuse="reset")


@pytest.fixture(params=["never", "reset"])
async def pool(request):
    async with Pool(SPEC.model_copy(update={"reuse": request.param}), 2) as pool:
        yield pool


@pytest.fixture
async def pool_of_used():
    async with Pool(USED_AGAIN, 2) as pool:
        yield pool


async def settled(pool: Pool):
    while pool.stats().cleaning:
        await asyncio.sleep(0.005)
    return pool.stats()


async def test_sandboxes_are_made_when_first_needed_and_used_again(pool_of_used):
    for _ in range(5):
        async with pool_of_used.acquire() as sandbox:
            assert (await sandbox.run_python("1 + 1")).stdout == "2\n"
        await settled(pool_of_used)
    stats = pool_of_used.stats()
    assert (stats.started, stats.served, stats.idle) == (1, 5, 1)


async def test_without_reuse_each_user_gets_a_sandbox_of_its_own_that_was_made_ahead():
    async with Pool(SPEC, 2) as pool:
        former = []
        for served in range(1, 6):
            async with pool.acquire() as sandbox:
                assert (await sandbox.run_python("1 + 1")).stdout == "2\n"
                assert sandbox not in former
                former.append(sandbox)
            stats = await settled(pool)
            assert (stats.started, stats.served, stats.idle) == (served + 1, served, 1)
        assert (stats.lost, [sandbox.alive for sandbox in former]) == (0, [False] * 5)


async def test_what_is_made_ahead_is_made_a_few_at_a_time(monkeypatch):
    starting = most = 0

    async def counted(*arguments):
        nonlocal starting, most
        starting += 1
        most = max(most, starting)
        try:
            return await original(*arguments)
        finally:
            starting -= 1

    original = pool_module.open_sandbox
    async with Pool(SPEC, 8) as pool:
        await pool.warm()
        monkeypatch.setattr(pool_module, "open_sandbox", counted)
        async with AsyncExitStack() as users:
            for _ in range(8):
                await users.enter_async_context(pool.acquire())
        stats = await settled(pool)
        assert (stats.idle, stats.started) == (8, 16)
        assert most == pool_module.AHEAD_AT_ONCE


async def test_within_an_episode_a_sandbox_that_is_not_used_again_can_still_be_reset():
    async with Pool(SPEC, 1) as pool, pool.acquire() as sandbox:
        await sandbox.run_python("x = 1")
        await sandbox.reset()
        assert (await sandbox.run_python("'x' in globals()")).stdout == "False\n"


async def test_warm_makes_all_sandboxes_beforehand(pool):
    await pool.warm()
    await pool.warm()
    assert (pool.stats().started, pool.stats().idle) == (2, 2)


async def test_no_user_meets_anything_of_another(pool):
    async def user() -> str:
        async with pool.acquire() as sandbox:
            seen = await sandbox.run_python("import os\n'x' in globals(), os.listdir('/work')")
            await sandbox.run_python(
                "x = 1; open('/work/f', 'w').close(); os.spawnlp(os.P_NOWAIT, 'sleep', 'sleep', '60')"
            )
            return seen.stdout

    assert set(await asyncio.gather(*(user() for _ in range(20)))) == {"(False, [])\n"}


async def test_users_wait_in_order_and_never_hold_more_sandboxes_than_there_are(pool):
    await pool.warm()
    held, most, order = 0, 0, []

    async def user(number: int) -> None:
        nonlocal held, most
        async with pool.acquire() as sandbox:
            order.append(number)
            held += 1
            most = max(most, held)
            await sandbox.run_python("import time; time.sleep(0.01)")
            held -= 1

    await asyncio.gather(*(user(n) for n in range(12)))
    assert (most, order) == (2, list(range(12)))
    stats = await settled(pool)
    assert (stats.started, stats.idle) == (2 if pool.spec.reuse == "reset" else 14, 2)


async def test_users_who_wait_get_sandboxes_in_turn_however_often_each_of_them_asks(pool_of_used):
    await pool_of_used.warm()
    order = []

    async def call(user: str, number: int) -> None:
        async with pool_of_used.acquire(user):
            order.append((user, number))

    async with pool_of_used.acquire("first"), pool_of_used.acquire("first"):
        many = [asyncio.create_task(call("many", number)) for number in range(100)]
        while pool_of_used.stats().waiting < 100:
            await asyncio.sleep(0.001)
        one = asyncio.create_task(call("one", 0))
        other = [asyncio.create_task(call("other", number)) for number in range(2)]
        while pool_of_used.stats().waiting < 103:
            await asyncio.sleep(0.001)
    await asyncio.gather(one, *many, *other)
    assert order.index(("one", 0)) <= 2
    assert order.index(("other", 1)) <= 6
    for user, count in (("many", 100), ("other", 2)):
        assert [number for name, number in order if name == user] == list(range(count))


async def test_a_turn_that_comes_to_a_user_who_gives_up_goes_to_the_next():
    turns = Turns(1)
    await turns.acquire("first")
    gone, waits = (asyncio.create_task(turns.acquire(user)) for user in ("gone", "waits"))
    await asyncio.sleep(0)
    turns.release()
    gone.cancel()  # it has its turn and does not know it yet
    async with asyncio.timeout(60):
        await waits
    assert gone.cancelled()
    turns.release()
    async with asyncio.timeout(60):
        await turns.acquire("next")


async def test_a_user_who_gives_up_waiting_leaves_the_queue(pool):
    async with pool.acquire(), pool.acquire():
        waiter = asyncio.create_task(pool.acquire().__aenter__())
        await asyncio.sleep(0.01)
        assert pool.stats().waiting == 1
        waiter.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiter
        assert pool.stats().waiting == 0
    async with pool.acquire(), pool.acquire():
        assert pool.stats().busy == 2


async def test_a_lost_sandbox_is_replaced_and_its_loss_is_the_users(pool):
    with pytest.raises(SandboxLost):
        async with pool.acquire() as sandbox:
            await sandbox.close()
            await sandbox.run_python("1")
    assert (await settled(pool)).lost == 1
    async with pool.acquire() as sandbox:
        assert (await sandbox.run_python("1")).stdout == "1\n"


async def test_a_sandbox_that_dies_while_idle_is_given_to_nobody(pool):
    await pool.warm()
    await pool._idle[0].close()
    async with pool.acquire() as sandbox:
        assert (await sandbox.run_python("1")).stdout == "1\n"
    assert (await settled(pool)).lost == 1


async def test_a_sandbox_whose_reset_fails_is_replaced(pool_of_used):
    async with pool_of_used.acquire() as sandbox:
        await sandbox.run_python("import os\nfor _ in range(3000):\n  os.mkdir('dd'); os.chdir('dd')")
    stats = await settled(pool_of_used)
    assert (stats.lost, stats.idle) == (1, 1)
    async with pool_of_used.acquire() as sandbox:
        assert (await sandbox.run_python("import os; os.listdir('/work')")).stdout == "[]\n"


async def frozen_by_its_user(pool: Pool, reason: str = "it mines"):
    async with pool.acquire() as sandbox:
        await sandbox.write_file("evidence", reason.encode())
        await sandbox.freeze(reason)
        await sandbox.run_python("1")


async def test_a_frozen_sandbox_is_its_users_exception_and_kept_for_inspection(pool):
    with pytest.raises(SandboxFrozen, match="it mines"):
        await frozen_by_its_user(pool)
    stats = await settled(pool)
    assert (stats.frozen, stats.lost, stats.idle) == (1, 0, 1)
    (kept,) = pool.frozen()
    assert "/work/evidence" in [file.path for file in (await kept.inspect()).files]
    async with pool.acquire() as one, pool.acquire() as other:
        assert kept not in (one, other)
        assert (await one.run_python("import os; os.listdir('/work')")).stdout == "[]\n"
    await pool.close()
    assert pool.frozen() == []
    assert not kept.alive


async def test_a_pool_is_healthy_after_fifty_freezes(pool_of_used):
    for number in range(50):
        with pytest.raises(SandboxFrozen):
            await frozen_by_its_user(pool_of_used, f"reason {number}")
    stats = await settled(pool_of_used)
    assert (stats.frozen, stats.busy, stats.lost) == (50, 0, 0)
    assert [sandbox.frozen for sandbox in pool_of_used.frozen()] == [f"reason {number}" for number in range(46, 50)]
    async with pool_of_used.acquire() as one, pool_of_used.acquire() as other:
        assert [(await sandbox.run_python("1")).stdout for sandbox in (one, other)] == ["1\n", "1\n"]


async def test_a_frozen_sandbox_is_closed_when_its_time_is_over():
    async with Pool(SPEC, 1, keep_frozen_s=0.2) as pool:
        with pytest.raises(SandboxFrozen):
            await frozen_by_its_user(pool)
        kept = await first_kept(pool)
        while kept.alive:
            await asyncio.sleep(0.01)
        assert pool.frozen() == []
    with pytest.raises(ValueError, match="keep_frozen_s"):
        Pool(SPEC, 1, keep_frozen_s=-1)


async def first_kept(pool: Pool):
    while not pool.frozen():
        await asyncio.sleep(0.001)
    return pool.frozen()[0]


async def test_a_sandbox_that_is_frozen_while_it_is_reset_or_idle_is_given_to_nobody(pool_of_used):
    async with pool_of_used.acquire() as sandbox:
        pass
    await sandbox.freeze("a late alert")
    await settled(pool_of_used)
    async with pool_of_used.acquire() as fresh:
        assert fresh is not sandbox
    assert pool_of_used.frozen() == [sandbox]


async def test_a_user_who_leaves_a_frozen_sandbox_after_close_leaves_nothing():
    pool = Pool(SPEC, 1)
    entered = pool.acquire()
    sandbox = await entered.__aenter__()
    await sandbox.freeze("it mines")
    await pool.close()
    await entered.__aexit__(None, None, None)
    await settled(pool)
    assert (sandbox.alive, pool.frozen()) == (False, [])


async def test_whatever_goes_wrong_with_a_used_sandbox_its_place_comes_free(pool, monkeypatch, caplog):
    for fault in ("reset", "close"):
        for _ in range(3):
            async with pool.acquire() as sandbox:
                original = sandbox.close
                monkeypatch.setattr(sandbox, "reset", failing)
                if fault == "close":
                    monkeypatch.setattr(sandbox, "close", failing)
            await settled(pool)
            await original()
    assert "ZeroDivisionError" in caplog.text
    async with pool.acquire(), pool.acquire():
        assert pool.stats().busy == 2


async def failing() -> None:
    raise ZeroDivisionError


async def test_a_cancelled_user_gives_its_sandbox_back(pool):
    async def user() -> None:
        async with pool.acquire() as sandbox:
            await sandbox.run_python("import time; time.sleep(60)")

    users = [asyncio.create_task(user()) for _ in range(2)]
    while pool.stats().busy < 2:
        await asyncio.sleep(0.01)
    for task in users:
        task.cancel()
    await asyncio.gather(*users, return_exceptions=True)
    async with pool.acquire(), pool.acquire():
        assert pool.stats().busy == 2


async def test_a_failing_user_gives_its_sandbox_back(pool):
    for _ in range(5):
        with pytest.raises(KeyError):
            async with pool.acquire():
                raise KeyError
    assert (await settled(pool)).idle >= 1


async def test_close_ends_waiters_users_and_idle_sandboxes():
    pool = Pool(SPEC, 1)

    async def user() -> None:
        async with pool.acquire() as sandbox:
            await sandbox.run_python("import time; time.sleep(60)")

    busy = asyncio.create_task(user())
    while not pool.stats().busy:
        await asyncio.sleep(0.01)
    waiting = asyncio.create_task(user())
    await asyncio.sleep(0.1)
    await pool.close()
    with pytest.raises(SandboxLost):
        await busy
    with pytest.raises(PoolClosed):
        await waiting
    with pytest.raises(PoolClosed):
        async with pool.acquire():
            pass
    assert (pool.stats().idle, pool.stats().cleaning, pool.stats().busy) == (0, 0, 0)
    await pool.close()


async def test_a_sandbox_that_comes_free_while_the_pool_closes_is_closed_too(monkeypatch):
    """Its cleaner finds another idle sandbox first, and waits for its end."""
    pool, reset, close = Pool(USED_AGAIN, 2), NamespaceSandbox.reset, NamespaceSandbox.close
    closing, held = asyncio.Event(), []

    async def late_reset(sandbox):
        if held and sandbox is held[0]:
            await closing.wait()
        await reset(sandbox)

    async def slow_close(sandbox):
        first = not closing.is_set()
        closing.set()
        if first:
            await asyncio.sleep(0.2)  # the other one is reset meanwhile
        await close(sandbox)
        if not first:
            await asyncio.sleep(0.2)  # a cleaner who waits here must not have left the other one behind

    monkeypatch.setattr(NamespaceSandbox, "reset", late_reset)
    monkeypatch.setattr(NamespaceSandbox, "close", slow_close)
    async with pool.acquire() as late, pool.acquire() as early:
        held.append(late)
    while not pool.stats().idle:
        await asyncio.sleep(0.01)
    await pool.close()
    assert not early.alive
    assert not late.alive


async def test_no_sandbox_survives_a_pool_that_is_closed_while_sandboxes_start(monkeypatch):
    made = []

    async def slowly(spec, *way_out):
        await asyncio.sleep(0.1)
        made.append(await original(spec))
        return made[-1]

    original = pool_module.open_sandbox
    monkeypatch.setattr(pool_module, "open_sandbox", slowly)
    pool = Pool(SPEC, 2)
    user = asyncio.create_task(pool.acquire().__aenter__())
    await asyncio.sleep(0.05)
    await pool.close()
    with pytest.raises(PoolClosed):
        await user
    assert made
    assert not any(sandbox.alive for sandbox in made)


async def test_a_machine_without_sandboxes_is_said_to_each_user_and_leaks_no_place(pool, monkeypatch):
    async def impossible(spec, *way_out):
        raise SandboxUnavailable("bubblewrap is not installed")

    with monkeypatch.context() as patch:
        patch.setattr(pool_module, "open_sandbox", impossible)
        for _ in range(4):
            with pytest.raises(SandboxUnavailable, match="not installed"):
                async with pool.acquire():
                    pass
    async with pool.acquire(), pool.acquire():
        assert pool.stats().busy == 2


def test_a_pool_without_places_is_refused():
    with pytest.raises(ValueError, match="at least one"):
        Pool(SPEC, 0)


async def test_a_sandbox_of_another_spec_takes_a_place_and_is_closed_afterwards():
    async with Pool(SPEC, 1) as pool:
        async with pool.acquire():
            pass
        await settled(pool)
        other = SPEC.model_copy(update={"memory_mib": 64})
        async with pool.acquire_of(other) as sandbox:
            assert sandbox.spec == other
            stats = pool.stats()
            assert (stats.idle, stats.busy) == (0, 1)
        await settled(pool)
        assert not sandbox.alive
        async with pool.acquire_of(SPEC) as sandbox:
            assert sandbox.spec == SPEC
        assert (await settled(pool)).lost == 0


async def test_a_frozen_sandbox_of_another_spec_is_kept():
    async with Pool(SPEC, 1) as pool:
        async with pool.acquire_of(SPEC.model_copy(update={"memory_mib": 64})) as sandbox:
            await sandbox.freeze("looked at")
        await settled(pool)
        assert pool.frozen() == [sandbox]
