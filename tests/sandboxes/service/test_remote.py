"""A sandbox of a service behind the same facade as any; ``tests/sandboxes/contract`` has what all backends promise."""

# ruff: noqa: ASYNC110, PT012  what happens at the service sets no event here, and a sandbox is used as a context

import asyncio
import contextlib
import logging

import pytest

from sandboxes.backends.remote import making, session
from sandboxes.interface import SandboxFrozen, SandboxLost, SandboxUnavailable, Snapshot, SnapshotUnavailable
from sandboxes.opened import open_sandbox, opened
from sandboxes.pool import Pool
from sandboxes.service.capacity import Capacity, demand_mib
from sandboxes.spec import SandboxSpec
from tests.sandboxes.service.cast import until
from tests.sandboxes.watched_scene import NOWHERE

AWAY = SandboxSpec(place="service", timeout_s=10)
WATCHED = AWAY.model_copy(update={"network": "watched"})
TRY = """
import socket
s = socket.socket()
s.settimeout(5)
try:
    s.connect(("198.51.100.7", {port}))
    s.recv(9)
except OSError:
    pass
"""


def hosted(service):
    return service.serving.app.state.sandboxes.all()


async def test_it_is_closed_at_the_service_however_the_caller_leaves(at_service):
    with pytest.raises(KeyError):
        async with opened(AWAY) as sandbox:
            assert (await sandbox.run_python("1 + 1")).stdout == "2\n"
            raise KeyError
    assert [item.state for item in hosted(at_service)] == ["closed"]


async def test_the_exceptions_of_the_facade_survive_the_way(at_service):
    async with opened(AWAY.model_copy(update={"snapshots": False})) as sandbox:
        with pytest.raises(FileNotFoundError) as missing:
            await sandbox.read_file("nowhere")
        assert (missing.value.errno, missing.value.filename) == (2, "nowhere")
        with pytest.raises(IsADirectoryError):
            await sandbox.read_file("/usr")
        with pytest.raises(SnapshotUnavailable, match="snapshots = true"):
            await sandbox.snapshot()
        with pytest.raises(ValueError, match="acknowledged|last number"):
            sandbox.acknowledge_egress(1)
        await sandbox.freeze("because")
        with pytest.raises(SandboxFrozen, match=r"^because$"):
            await sandbox.run_python("1")
        assert sandbox.frozen == "because"
        assert (await sandbox.inspect()).frozen == "because"
    async with opened(AWAY) as sandbox:
        with pytest.raises(ValueError, match="another sandbox"):
            await sandbox.restore(Snapshot("987654"))


async def test_a_file_that_the_service_does_not_take_costs_no_sandbox(serve, monkeypatch):
    service = await serve(body_bytes=10_000)
    monkeypatch.setenv("PALESTRA_SANDBOX_URL", service.url)
    monkeypatch.setenv("PALESTRA_SANDBOX_TOKEN", service.token("alice"))
    async with opened(SandboxSpec(place="service")) as sandbox:
        with pytest.raises(ValueError, match="more than 10000 bytes"):
            await sandbox.write_file("f", bytes(10_001))
        assert (await sandbox.run_python("1")).stdout == "1\n"


async def test_a_freeze_by_somebody_else_reaches_calls_under_way(at_service):
    async with opened(AWAY) as sandbox:
        running = asyncio.create_task(sandbox.exec(["sleep", "60"], timeout_s=60))
        await until(lambda: has_command(sandbox, "sleep"))
        sandboxes = at_service.serving.app.state.sandboxes
        await sandboxes.freeze(hosted(at_service)[0], "a miner")
        with pytest.raises(SandboxFrozen, match=r"^a miner$"):
            await running
        assert sandbox.frozen == "a miner"


async def has_command(sandbox, word):
    return any(word in process.command for process in (await sandbox.inspect()).processes)


async def test_a_service_that_dies_during_a_call_loses_the_sandbox_and_nothing_is_run_again(at_service, caplog):
    sandbox = await open_sandbox(WATCHED)
    running = asyncio.create_task(sandbox.exec(["sleep", "60"], timeout_s=60))
    await until(lambda: has_command(sandbox, "sleep"))
    at_service.serving.stop()
    at_service.serving.stop()
    with pytest.raises(SandboxLost):
        await running
    assert not sandbox.alive
    with pytest.raises(SandboxLost):
        await sandbox.run_python("1")
    with caplog.at_level(logging.WARNING):
        await sandbox.close()
    assert "not known to be closed" in caplog.text
    with pytest.raises(SandboxLost, match="records"):
        await sandbox.egress()


class OneAnswerLost:
    """A way to the service that, once told to, hangs up after a request has gone through and before its answer."""

    def __init__(self, port: int) -> None:
        self.cut: bytes | None = None
        """Hang up on a request that has this in it."""
        self.requests: list[bytes] = []
        self._port = port

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", self._port)
        with contextlib.suppress(ConnectionError):
            answering = asyncio.create_task(self._answers(there, writer))
            while data := await reader.read(65536):
                self.requests.append(data)
                if self.cut is not None and self.cut in data:
                    self.cut = None
                    answering.cancel()
                    back.write(data)
                    await there.read(65536)
                    break
                back.write(data)
        writer.close()
        back.close()

    async def _answers(self, there: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await there.read(65536):
            writer.write(data)
        writer.close()

    def count(self, word: bytes) -> int:
        return sum(word in data for data in self.requests)


@pytest.fixture
async def way(at_service, monkeypatch):
    way = OneAnswerLost(at_service.serving.port)
    server = await asyncio.start_server(way, "127.0.0.1", 0)
    monkeypatch.setenv("PALESTRA_SANDBOX_URL", f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    yield way
    server.close()


async def test_a_lost_answer_to_an_exec_is_a_lost_sandbox_and_the_code_ran_once(way, at_service):
    sandbox = await open_sandbox(AWAY)
    way.cut = b"/exec"
    with pytest.raises(SandboxLost, match="does not answer"):
        await sandbox.exec(["true"])
    assert way.count(b"/exec ") == 1
    assert [item.execs for item in hosted(at_service)] == [1]
    await sandbox.close()
    assert [item.state for item in hosted(at_service)] == ["closed"]


async def test_a_lost_answer_to_a_creation_makes_no_second_sandbox(way, at_service):
    way.cut = b"POST /v1/sandboxes HTTP"
    async with opened(AWAY) as sandbox:
        assert (await sandbox.run_python("1")).stdout == "1\n"
    assert way.count(b"POST /v1/sandboxes HTTP") == 2
    assert len(hosted(at_service)) == 1


async def test_a_cancelled_start_leaves_no_sandbox_in_the_queue(serve, monkeypatch):
    service = await serve(capacity=Capacity(1, demand_mib(AWAY)))
    monkeypatch.setenv("PALESTRA_SANDBOX_URL", service.url)
    monkeypatch.setenv("PALESTRA_SANDBOX_TOKEN", service.token("engine"))
    async with opened(AWAY) as first:
        waiting = asyncio.create_task(open_sandbox(AWAY))
        await until(lambda: asyncio.sleep(0, len(hosted(service)) == 2))
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert [item.state for item in hosted(service)] == ["open", "closed"]
        assert (await first.run_python("1")).stdout == "1\n"


async def test_a_sandbox_that_its_user_keeps_is_never_idle(at_service, monkeypatch):
    monkeypatch.setattr(making, "IDLE_S", 0.6)
    monkeypatch.setattr(session, "BEAT_S", 0.1)
    async with opened(AWAY) as sandbox:
        await asyncio.sleep(2)
        assert (await sandbox.run_python("1")).stdout == "1\n"
        sandboxes = at_service.serving.app.state.sandboxes
        await sandboxes.end(hosted(at_service)[0], "somebody closed it")
        await until(lambda: asyncio.sleep(0, not sandbox.alive))
        with pytest.raises(SandboxLost, match="somebody closed it"):
            await sandbox.run_python("1")


@pytest.mark.parametrize(
    ("url", "token", "phrase"),
    [
        ("", "t", "PALESTRA_SANDBOX_URL"),
        ("ftp://x", "t", "PALESTRA_SANDBOX_URL"),
        ("http://u:secret@127.0.0.1:9", "t", "without user"),
        ("http://127.0.0.1:99999", "t", "port is not one of 1 to 65535"),
        ("http://:8750/?key=secret", "t", "PALESTRA_SANDBOX_URL"),
        (None, "", "token create"),
        (None, "pst_00000000_wrong", "401"),
        ("http://127.0.0.1:9", "t", "does not answer"),
    ],
)
async def test_what_is_missing_for_a_service_is_reported(at_service, monkeypatch, url, token, phrase):
    monkeypatch.setattr("sandboxes.backends.remote.connection.PAUSES_S", (0.01,))
    monkeypatch.setenv("PALESTRA_SANDBOX_TOKEN", token)
    if url is not None:
        monkeypatch.setenv("PALESTRA_SANDBOX_URL", url)
    with pytest.raises(SandboxUnavailable, match=phrase) as refused:
        await open_sandbox(AWAY)
    assert "secret" not in str(refused.value)
    assert token in ("", "t") or token not in str(refused.value)


async def test_a_sandbox_that_the_host_can_never_bear_is_unavailable_with_the_field(at_service):
    with pytest.raises(SandboxUnavailable, match=r"spec.memory_mib = 65536"):
        await open_sandbox(AWAY.model_copy(update={"memory_mib": 65536, "disk_mib": 65536}))


async def test_an_upstream_of_ones_own_is_refused(at_service):
    with pytest.raises(ValueError, match="upstream"):
        await open_sandbox(AWAY, None, NOWHERE)


async def test_a_pool_of_remote_sandboxes_serves_users_in_turn(at_service):
    async with Pool(AWAY, 1) as pool:
        for number in range(3):
            async with pool.acquire() as sandbox:
                assert (await sandbox.run_python(f"'x' in globals(), {number}")).stdout == f"(False, {number})\n"
                await sandbox.run_python("x = 1")


# -- records ---------------------------------------------------------------------------------------


async def test_records_come_by_themselves_in_order_and_the_last_ones_at_close(serve, monkeypatch):
    service = await serve(upstream=NOWHERE)
    monkeypatch.setenv("PALESTRA_SANDBOX_URL", service.url)
    monkeypatch.setenv("PALESTRA_SANDBOX_TOKEN", service.token("engine"))
    records = []
    async with opened(WATCHED, records.append) as sandbox:
        first = sandbox.name
        sandbox.label("turn 1")
        await sandbox.run_python(TRY.format(port=4001))
        await until(lambda: asyncio.sleep(0, records))
        await sandbox.reset()
        sandbox.label("turn 2")
        second = sandbox.name
        await sandbox.run_python(TRY.format(port=4002))
        await sandbox.exec(["/usr/bin/python3", "-S", "-c", TRY.format(port=4003)])
    assert [(r.attempt.sandbox, r.seq, r.attempt.port, r.label) for r in records if r.attempt.protocol == "tcp"] == [
        (first, 1, 4001, "turn 1"),
        (second, 1, 4002, "turn 2"),
        (second, 2, 4003, "turn 2"),
    ]
    assert not any(record.decision.allowed for record in records)
    assert sum(item.attempts_denied for item in hosted(service)) == len(records)


async def test_a_record_that_could_not_be_delivered_comes_again(serve, monkeypatch):
    service = await serve(upstream=NOWHERE)
    monkeypatch.setenv("PALESTRA_SANDBOX_URL", service.url)
    monkeypatch.setenv("PALESTRA_SANDBOX_TOKEN", service.token("engine"))
    monkeypatch.setattr("sandboxes.backends.remote.stream.AGAIN_S", 0.01)
    tried, records, statements = [], [], []

    def deliver(record):
        tried.append(record)
        if len(tried) < 3:
            raise OSError("the disk is full")
        records.append(record)

    hooks = {"on_record": deliver, "on_statement": statements.append}
    async with Pool(WATCHED, 1, **hooks) as pool, pool.acquire() as sandbox:
        await sandbox.run_python(TRY.format(port=4001))
        await until(lambda: asyncio.sleep(0, records))
    assert [record.seq for record in records] == [1]
    assert len(tried) == 3
    assert statements == records, "whoever judges has it once"


async def test_records_that_are_not_wanted_yet_come_again_also_at_the_end(serve, monkeypatch):
    """As those of a log that takes so many at a time."""
    service = await serve(upstream=NOWHERE)
    monkeypatch.setenv("PALESTRA_SANDBOX_URL", service.url)
    monkeypatch.setenv("PALESTRA_SANDBOX_TOKEN", service.token("engine"))
    monkeypatch.setattr("sandboxes.backends.remote.stream.AGAIN_S", 0.01)
    offered, records = [], []

    def take_every_third(record):
        offered.append(record)
        if len(offered) % 3:
            return False
        records.append(record)
        return True

    async with Pool(WATCHED, 1, on_record=take_every_third) as pool, pool.acquire() as sandbox:
        for port in (4001, 4002, 4003, 4004):
            await sandbox.run_python(TRY.format(port=port))
    assert [record.attempt.port for record in records] == [4001, 4002, 4003, 4004]


async def test_records_can_be_asked_for_until_they_are_acknowledged_and_after_the_end(serve, monkeypatch):
    service = await serve(upstream=NOWHERE)
    monkeypatch.setenv("PALESTRA_SANDBOX_URL", service.url)
    monkeypatch.setenv("PALESTRA_SANDBOX_TOKEN", service.token("engine"))
    async with opened(WATCHED) as sandbox:
        for port in (4001, 4002, 4003):
            await sandbox.run_python(TRY.format(port=port))
        found = await sandbox.egress()
        assert [record.attempt.port for record in found] == [4001, 4002, 4003]
        assert [record.seq for record in await sandbox.egress(1, limit=1)] == [2]
        sandbox.acknowledge_egress(2)
        with pytest.raises(ValueError, match="acknowledged"):
            await sandbox.egress(0)
        await sandbox.run_python(TRY.format(port=4004))
    assert [record.attempt.port for record in await sandbox.egress(2)] == [4003, 4004]
