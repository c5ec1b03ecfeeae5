"""How weights travel; servers that take them are in test_servers.py."""

import base64
import pickle
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from engine.inference.sglang import weights
from engine.inference.sglang.weights import FolderExchange, NoRoomForWeights, serialized_tensors
from engine.models.folder_weights import FolderWeights
from engine.models.weights import StateDict


class Reader:
    """Stands in the place of a server: reads what it is told of, and remembers from where."""

    def __init__(self) -> None:
        self.read: dict[str, Tensor] = {}
        self.folder = Path()

    async def load_folder(self, folder: str, version: int) -> None:
        self.folder = Path(folder)
        self.read = {
            name: tensor
            for file in sorted(self.folder.glob("*.safetensors"))
            for name, tensor in FolderWeights.of_file(file).items()
        }


def source(scale: float) -> StateDict:
    return StateDict({f"w{number}": torch.full((4, 8), scale + number) for number in range(5)})


async def given(exchange: FolderExchange) -> Reader:
    reader: Any = Reader()
    await exchange.give(reader)
    return reader


async def test_a_version_is_whole_in_the_dtype_of_the_servers_and_the_one_before_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weights, "SHARD_BYTES", 2 * 4 * 8 * 2)  # two tensors each
    exchange = FolderExchange(tmp_path / "exchange", torch.bfloat16)
    for version in (1, 2):
        await exchange.take(source(10.0 * version), version)
        reader = await given(exchange)
        assert len(list(reader.folder.iterdir())) == 3
        assert {name: tensor[0, 0].item() for name, tensor in reader.read.items()} == {
            f"w{number}": 10 * version + number for number in range(5)
        }
        assert {tensor.dtype for tensor in reader.read.values()} == {torch.bfloat16}
    assert [path.name for path in (tmp_path / "exchange").iterdir()] == ["v2"]
    exchange.close()
    assert not (tmp_path / "exchange").exists()


async def test_a_disk_without_room_is_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exchange = FolderExchange(tmp_path / "exchange", torch.float32)
    await exchange.take(source(1.0), 1)
    monkeypatch.setattr(weights, "RESERVE_BYTES", 2**60)
    with pytest.raises(NoRoomForWeights, match=r"resources\.sglang\.exchange_folder.*another disk"):
        await exchange.take(source(2.0), 2)
    assert exchange.version == 1
    assert (await given(exchange)).read["w0"][0, 0] == 1
    assert [path.name for path in (tmp_path / "exchange").iterdir()] == ["v1"]


async def test_a_source_that_fails_leaves_the_older_weights(tmp_path: Path) -> None:
    class Failing:
        def tensors(self) -> Iterable[tuple[str, Tensor]]:
            yield "w0", torch.zeros(2)
            raise OSError("the learner is gone")

    exchange = FolderExchange(tmp_path, torch.float32)
    await exchange.take(source(1.0), 1)
    with pytest.raises(OSError, match="the learner is gone"):
        await exchange.take(Failing(), 2)
    assert exchange.version == 1
    assert (await given(exchange)).read["w4"][0, 0] == 5


def test_a_part_of_a_large_tensor_travels_without_the_rest_of_it() -> None:
    large = torch.arange(2.0**20)
    text = serialized_tensors({"slice": large[:4]})
    assert len(text) < 2000
    [(name, tensor)] = pickle.loads(base64.b64decode(text))
    assert (name, tensor.tolist()) == ("slice", [0, 1, 2, 3])
