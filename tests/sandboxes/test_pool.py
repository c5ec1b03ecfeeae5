# ruff: noqa: ASYNC110, PT012  what happens in a box sets no event, and a pool is used as a context

import asyncio

import pytest

from sandboxes import pool as pool_module
from sandboxes.interface import SandboxLost, SandboxUnavailable
from sandboxes.pool import Pool, PoolClosed
from sandboxes.spec import SandboxSpec

SPEC = SandboxSpec(timeout_s=10)


@pytest.fixture
async def pool():
    async with Pool(SPEC, 2) as pool:
        yield pool


async def settled(pool: Pool):
    while pool.stats().cleaning:
        await asyncio.sleep(0.005)
    return pool.stats()


async def test_boxes_are_made_when_first_needed_and_used_again(pool):
    for _ in range(5):
        async with pool.acquire() as box:
            assert (await box.run_python("1 + 1")).stdout == "2\n"
        await settled(pool)
    assert (pool.stats().started, pool.stats().served, pool.stats().idle) == (1, 5, 1)


async def test_warm_makes_all_boxes_beforehand(pool):
    await pool.warm()
    await pool.warm()
    assert (pool.stats().started, pool.stats().idle) == (2, 2)


async def test_no_user_meets_anything_of_another(pool):
    async def user() -> str:
        async with pool.acquire() as box:
            seen = await box.run_python("import os\n'x' in globals(), os.listdir('/work')")
            await box.run_python("x = 1; open('/work/f', 'w').close(); os.spawnlp(os.P_NOWAIT, 'sleep', 'sleep', '60')")
            return seen.stdout

    assert set(await asyncio.gather(*(user() for _ in range(20)))) == {"(False, [])\n"}


async def test_users_wait_in_order_and_never_hold_more_boxes_than_there_are(pool):
    await pool.warm()
    held, most, order = 0, 0, []

    async def user(number: int) -> None:
        nonlocal held, most
        async with pool.acquire() as box:
            order.append(number)
            held += 1
            most = max(most, held)
            await box.run_python("import time; time.sleep(0.01)")
            held -= 1

    await asyncio.gather(*(user(n) for n in range(12)))
    assert (most, order) == (2, list(range(12)))
    assert (await settled(pool)).started == 2


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


async def test_a_lost_box_is_replaced_and_its_loss_is_the_users(pool):
    with pytest.raises(SandboxLost):
        async with pool.acquire() as box:
            await box.close()
            await box.run_python("1")
    assert (await settled(pool)).lost == 1
    async with pool.acquire() as box:
        assert (await box.run_python("1")).stdout == "1\n"


async def test_a_box_that_dies_while_idle_is_given_to_nobody(pool):
    await pool.warm()
    await pool._idle[0].close()
    async with pool.acquire() as box:
        assert (await box.run_python("1")).stdout == "1\n"
    assert (await settled(pool)).lost == 1


async def test_a_box_whose_reset_fails_is_replaced(pool):
    async with pool.acquire() as box:
        await box.run_python("import os\nfor _ in range(3000):\n  os.mkdir('dd'); os.chdir('dd')")
    stats = await settled(pool)
    assert (stats.lost, stats.idle) == (1, 1)
    async with pool.acquire() as box:
        assert (await box.run_python("import os; os.listdir('/work')")).stdout == "[]\n"


async def test_a_cancelled_user_gives_his_box_back(pool):
    async def user() -> None:
        async with pool.acquire() as box:
            await box.run_python("import time; time.sleep(60)")

    users = [asyncio.create_task(user()) for _ in range(2)]
    while pool.stats().busy < 2:
        await asyncio.sleep(0.01)
    for task in users:
        task.cancel()
    await asyncio.gather(*users, return_exceptions=True)
    async with pool.acquire(), pool.acquire():
        assert pool.stats().busy == 2


async def test_a_failing_user_gives_his_box_back(pool):
    for _ in range(5):
        with pytest.raises(KeyError):
            async with pool.acquire():
                raise KeyError
    assert (await settled(pool)).idle >= 1


async def test_close_ends_waiters_users_and_idle_boxes():
    pool = Pool(SPEC, 1)

    async def user() -> None:
        async with pool.acquire() as box:
            await box.run_python("import time; time.sleep(60)")

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


async def test_no_box_survives_a_pool_that_is_closed_while_boxes_start(monkeypatch):
    made = []

    async def slowly(spec, *way_out):
        await asyncio.sleep(0.1)
        made.append(await original(spec))
        return made[-1]

    original = pool_module.open_box
    monkeypatch.setattr(pool_module, "open_box", slowly)
    pool = Pool(SPEC, 2)
    user = asyncio.create_task(pool.acquire().__aenter__())
    await asyncio.sleep(0.05)
    await pool.close()
    with pytest.raises(PoolClosed):
        await user
    assert made
    assert not any(box.alive for box in made)


async def test_a_machine_without_boxes_is_said_to_each_user_and_leaks_no_place(pool, monkeypatch):
    async def impossible(spec, *way_out):
        raise SandboxUnavailable("bubblewrap is not installed")

    with monkeypatch.context() as patch:
        patch.setattr(pool_module, "open_box", impossible)
        for _ in range(4):
            with pytest.raises(SandboxUnavailable, match="not installed"):
                async with pool.acquire():
                    pass
    async with pool.acquire(), pool.acquire():
        assert pool.stats().busy == 2


def test_a_pool_without_places_is_refused():
    with pytest.raises(ValueError, match="at least one"):
        Pool(SPEC, 0)
