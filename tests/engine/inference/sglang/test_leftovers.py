"""What a killed process leaves of exchanged weights is removed by the next one, and nothing else is."""

import subprocess
import sys
from pathlib import Path

import pytest

from engine.failures import RunFailed
from engine.inference.sglang.factory import sglang_generator
from engine.spec.model import PretrainedModel
from tests.engine.inference.sglang.conftest import resources

CLAIMS = """
import os, signal, sys
from pathlib import Path
from engine.inference.sglang.leftovers import claim
folder = Path(sys.argv[1])
claim(folder)
(folder / "v3").mkdir()
print(flush=True)
sys.stdin.read()
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_the_next_generator_removes_what_a_killed_one_left_and_spares_the_living(
    model: PretrainedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exchange = tmp_path / "exchange"
    names = ["palestra-sglang-killed", "palestra-sglang-living"]
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", CLAIMS, str(exchange / name)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        for name in names
    ]
    for name, process in zip(names, processes, strict=True):
        assert process.stdout is not None
        process.stdout.readline()
        assert (exchange / name / "v3").is_dir()
    (exchange / "palestra-sglang-unmarked").mkdir()
    (exchange / "of-somebody-else").mkdir()
    processes[0].communicate()
    # The temporary folders of this machine may hold what others left.
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    generator = sglang_generator(model, resources(exchange_folder=str(exchange)), seed=0)
    kept = {"palestra-sglang-living", "palestra-sglang-unmarked", "of-somebody-else"}
    assert {folder.name for folder in exchange.iterdir()} == kept | {generator._scratch.name}
    generator.close()
    assert {folder.name for folder in exchange.iterdir()} == kept
    processes[1].communicate()


def test_an_exchange_folder_that_cannot_be_made_is_named_with_the_reason_and_a_remedy(
    model: PretrainedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    field = "resources.sglang.exchange_folder = '/proc/palestra'"
    with pytest.raises(RunFailed, match=rf"{field}: the generator cannot write there \(No such file.*give a folder"):
        sglang_generator(model, resources(exchange_folder="/proc/palestra"), seed=0)
    assert list(tmp_path.glob("palestra-sglang-*")) == []
