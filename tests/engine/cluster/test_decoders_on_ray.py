"""A generator that is an actor of Ray shares its sessions among decoders, as one in the run's own process does."""

from pathlib import Path

import psutil
import pytest

from tests.engine.cluster.ray_runs import RUN, RayRun, assert_each_trained_once, enters, kill

DECODER = "engine.inference.torch.decoder_main"


def decoders_of(actor: int) -> list[psutil.Process]:
    return [child for child in psutil.Process(actor).children() if DECODER in child.cmdline()]


@pytest.mark.slow
@pytest.mark.soak  # test_decoders.py kills one of a generator in the test's own process
@pytest.mark.timeout(600)
def test_a_run_on_ray_samples_in_decoders_and_loses_nothing_with_one(tmp_path: Path) -> None:
    """Ray's event loops are those of uvloop, whose transports are of other classes than asyncio's.

    The weights that decoders read go with their generator.
    """
    run = RayRun(tmp_path, RUN + "decoders = 2\n")
    scratch = tmp_path / "tmp"
    scratch.mkdir()
    with run.started(environment={"TMPDIR": str(scratch)}) as process:
        run.wait_for(process, enters("collect", 2))
        decoders = decoders_of(run.pid_of("generator"))
        assert len(decoders) == 2
        assert list(scratch.glob("palestra-decoders-*"))
        kill(decoders[0].pid)
        assert process.wait(300) == 0, run.output
    assert_each_trained_once(run.events())
    assert not psutil.wait_procs(decoders, 10)[1]
    assert not list(scratch.glob("palestra-decoders-*"))
