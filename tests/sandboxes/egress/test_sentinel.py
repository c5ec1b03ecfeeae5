"""When the detectors' thread is done, whoever waits for it knows all that it found."""

import asyncio
import threading

from sandboxes.egress.detectors.exec_event import ExecEvent
from sandboxes.egress.detectors.finding import DetectorEvent, Finding
from sandboxes.egress.sentinel import DETECTOR_FAILED, Sentinel


class Blind:
    """Detectors that fail at everything, which is a finding."""

    def feed(self, event: DetectorEvent) -> list[Finding]:
        raise ValueError("shown something")


def event() -> ExecEvent:
    return ExecEvent(sandbox="sandbox-1", at=0.0, code="1 + 1")


def test_whoever_waits_after_the_thread_is_done_still_gets_what_it_sent_to_the_event_loop() -> None:
    async def found() -> list[str]:
        loop, reported, heard, delivered = asyncio.get_running_loop(), threading.Event(), [], []

        def on_finding(finding: Finding) -> None:
            loop.call_soon_threadsafe(delivered.append, finding.rule)
            heard.append(finding.rule)
            if len(heard) == 2:
                reported.set()

        sentinel = Sentinel(Blind, on_finding)  # type: ignore[arg-type]
        try:
            sentinel.feed(event())
            sentinel.feed(event())
            reported.wait()  # the loop stands still: nothing that was sent to it has run
            assert delivered == []
            await sentinel.settled()
            assert delivered == [DETECTOR_FAILED.id] * 2
            await sentinel.settled()
        finally:
            sentinel.close()
        return heard

    assert asyncio.run(found()) == [DETECTOR_FAILED.id] * 2


def test_whoever_waits_before_the_thread_is_done_waits_for_it() -> None:
    async def waited() -> bool:
        begun, go_on = threading.Event(), threading.Event()

        def on_finding(_: Finding) -> None:
            begun.set()
            go_on.wait()

        sentinel = Sentinel(Blind, on_finding)  # type: ignore[arg-type]
        try:
            sentinel.feed(event())
            begun.wait()
            settled = asyncio.ensure_future(sentinel.settled())
            for _ in range(20):
                await asyncio.sleep(0)
            early = settled.done()
            go_on.set()
            await settled
            return early
        finally:
            go_on.set()
            sentinel.close()

    assert asyncio.run(waited()) is False
