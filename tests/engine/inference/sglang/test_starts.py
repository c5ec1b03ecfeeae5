"""What becomes of a server between its first answer and its first request."""

import sys
from pathlib import Path

import pytest

from engine.inference.sglang.client import ServerGone, SglangClient
from engine.inference.sglang.process import ServerFailed, ServerProcess
from engine.inference.sglang.servers import Fleet, Server, Timings


class Late:
    """An ``Expectation`` that a busy machine does not meet at once."""

    def __init__(self, misses: int) -> None:
        self.misses = misses

    async def identify(self, client: SglangClient) -> None:
        raise AssertionError("the engine started it")

    async def check(self, client: SglangClient) -> None:
        self.misses -= 1
        if self.misses >= 0:
            raise ServerGone("no answer within 30 s")


def fleet(expected: Late) -> Fleet:
    return Fleet([], None, expected, Timings(60.0, 1.0, 3, 0))


async def test_a_started_server_is_asked_again_as_long_as_its_process_lives(tmp_path: Path) -> None:
    process = ServerProcess(lambda *_: [sys.executable, "-c", "import time; time.sleep(300)"], {}, tmp_path / "log")
    process.start()
    try:
        server = Server(0, process, SglangClient("http://127.0.0.1:1"))
        await fleet(expected := Late(2))._checked(server)
        assert expected.misses == -1
    finally:
        process.stop()
    ended = ServerProcess(lambda *_: [sys.executable, "-c", "raise SystemExit(3)"], {}, tmp_path / "ended")
    ended.start()
    with pytest.raises(ServerFailed, match="ended with code 3"):
        await fleet(Late(10**6))._checked(Server(0, ended, SglangClient("http://127.0.0.1:1")))
    ended.stop()


async def test_a_server_of_somebody_elses_that_does_not_answer_is_gone() -> None:
    with pytest.raises(ServerGone):
        await fleet(Late(1))._checked(Server(0, None, SglangClient("http://127.0.0.1:1")))
