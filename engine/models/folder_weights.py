"""The weights of a model folder, read from its safetensors one tensor at a time.

Nothing else is ever read as weights: pickled ones can run code.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Self

from safetensors import safe_open
from torch import Tensor

from engine.durable import DamagedFile, read_back

_WHOLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"


class FolderWeights(Mapping[str, Tensor]):
    """A ``WeightSource`` (engine/models/weights.py) over a folder: ``model.safetensors``, or shards with an index.

    Raises DamagedFile, which names the file, for what is missing, cut or not safetensors.
    """

    def __init__(self, folder: Path) -> None:
        self._open(_shards(folder))

    @classmethod
    def of_file(cls, file: Path) -> Self:
        """The weights in one file of whatever name."""
        weights = cls.__new__(cls)
        weights._open({file: None})
        return weights

    def _open(self, shards: Mapping[Path, set[str] | None]) -> None:
        self._files: dict[Path, Any] = {}
        self._file_of: dict[str, Any] = {}
        for path, names in shards.items():
            with read_back(path):
                self._files[path] = safe_open(path, framework="pt")
            held = set(self._files[path].keys())
            if names is not None and (absent := sorted(names - held)):
                raise DamagedFile(f"{path} lacks {absent[0]!r}, which {_INDEX} says it holds")
            self._file_of |= dict.fromkeys(held if names is None else names, path)

    def __getitem__(self, name: str) -> Tensor:
        path = self._file_of[name]
        with read_back(path):
            tensor: Tensor = self._files[path].get_tensor(name)
        return tensor

    def __contains__(self, name: object) -> bool:
        return name in self._file_of

    def __iter__(self) -> Iterator[str]:
        return iter(self._file_of)

    def __len__(self) -> int:
        return len(self._file_of)

    def tensors(self) -> Iterable[tuple[str, Tensor]]:
        return self.items()


def _shards(folder: Path) -> dict[Path, set[str] | None]:
    """The files, and what the index says each holds; None where there is no index."""
    whole, index = folder / _WHOLE, folder / _INDEX
    if whole.exists():
        return {whole: None}
    if not index.exists():
        raise DamagedFile(f"{folder} holds neither {_WHOLE} nor {_INDEX}: save the model as safetensors")
    with read_back(index):
        weight_map: dict[str, str] = json.loads(index.read_text())["weight_map"]
        shards: dict[Path, set[str] | None] = {}
        for name, file in weight_map.items():
            if Path(file).name != file:
                raise ValueError(f"{file!r} is no file of this folder")
            shards.setdefault(folder / file, set()).add(name)  # type: ignore[union-attr]
    return shards
