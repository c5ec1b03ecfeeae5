"""What an attempt that stumbles leaves for whoever starts the next one."""

import json
from typing import Any

import pytest

from engine.failures import RankLost
from engine.launch.exit_codes import ATTEMPT_FAILED, Attempt
from engine.reporting.event_writer import EventWriter
from engine.reporting.spool import Spool

FULL = "CUDA out of memory. Tried to allocate 2.00 GiB."


class Stumbling:
    """A loop that ends by an error at once."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    async def run(self) -> Any:
        raise self._error


@pytest.mark.parametrize("error", [RuntimeError(FULL), RankLost(f"rank 1 failed: {FULL}")])
def test_a_full_gpu_is_met_with_the_fields_that_may_be_smaller_when_the_run_goes_on(
    spool: Spool, error: Exception
) -> None:
    attempt = Attempt(Stumbling(error), EventWriter(spool, 1))  # type: ignore[arg-type]
    assert attempt.run({}) == ATTEMPT_FAILED
    [line] = spool.read(1, max_events=10, max_bytes=10**6)
    for words in (attempt.reason, json.loads(line)["message"]):
        assert FULL in words
        assert "model.microbatch_tokens" in words
        assert "resources.kv_slots" in words


def test_other_failures_are_reported_as_they_are(spool: Spool) -> None:
    attempt = Attempt(Stumbling(RankLost("rank 1 died")), EventWriter(spool, 1))  # type: ignore[arg-type]
    attempt.run({})
    assert attempt.reason == "rank 1 died"
