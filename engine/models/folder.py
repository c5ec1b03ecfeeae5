"""What stands in a pretrained model's folder, read without torch and without running anything of it.

``config.json`` and the headers of the safetensors files are read, never the weights: a model of any size is looked at
in milliseconds.  What cannot be trusted or trained is refused here: pickled weights, code that comes with the model,
files that are cut or whose header does not fit them.
"""

import json
import math
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from engine.models.refusal import ModelFolderRefused
from engine.spec.problems import Problem

CONFIG, INDEX, WEIGHTS = "config.json", "model.safetensors.index.json", "model.safetensors"
PICKLED = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")
"""Unpickling runs whatever code the file names, so these are never opened."""
LONGEST_HEADER_BYTES = 100 * 2**20
"""As safetensors itself has it; no config or index is longer either."""
MOST_DIMENSIONS, LARGEST_SIZE = 64, 2**63 - 1
"""The limits of a tensor, as torch has them.  A product of more and larger numbers would take hours."""
BYTES_OF_DTYPE = {
    "F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1,
    "F8_E4M3": 1, "F8_E5M2": 1,
}  # fmt: skip
FLOATS = frozenset({"F64", "F32", "F16", "BF16"})
TEXT_FILES = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json",
    "merges.txt", "tokenizer.model", "chat_template.jinja", "chat_template.json", "generation_config.json",
)  # fmt: skip
"""What belongs to a model beside its config and weights, and is copied with it."""


@dataclass(frozen=True, slots=True)
class TensorHeader:
    shape: tuple[int, ...]
    dtype: str
    """As safetensors spells it, e.g. ``BF16``."""
    file: Path
    begins: int
    """Where its first byte stands in the file."""

    @property
    def elements(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True)
class ModelFolder:
    path: Path
    config: Mapping[str, Any]
    tensors: Mapping[str, TensorHeader]
    """By their Hugging Face names."""

    @cached_property
    def text_config(self) -> Mapping[str, Any]:
        """The part of the config that is about the language model."""
        inner = self.config.get("text_config")
        return inner if isinstance(inner, Mapping) else self.config

    @property
    def model_type(self) -> str:
        return str(self.config.get("model_type", ""))

    @property
    def parameters(self) -> int:
        return sum(tensor.elements for tensor in self.tensors.values())

    @property
    def vocab_size(self) -> int:
        return int(self.text_config["vocab_size"])

    @property
    def longest_context(self) -> int | None:
        """The positions that the model was made for; None where its config does not say."""
        longest = self.text_config.get("max_position_embeddings")
        return int(longest) if isinstance(longest, int) else None

    def linear_modules(self) -> list[str]:
        """The names of the modules that hold a matrix, embeddings included."""
        return [
            name.removesuffix(".weight")
            for name, tensor in self.tensors.items()
            if name.endswith(".weight") and len(tensor.shape) == 2
        ]


def opened_folder(path: Path, *, field: str = "model.path") -> ModelFolder:
    """The folder, looked through.  Raises ModelFolderRefused, which names ``field``."""
    try:
        if not path.is_dir():
            raise _unusable(
                field, path, "there is no such folder", "give the folder that holds the model's config.json"
            )
        config = _config(path, field)
        return ModelFolder(path, config, dict(_tensors(path, field)))
    except OSError as error:
        raise _unusable(field, path, f"cannot be read: {error.strerror}", "give a folder that may be read") from error


def write_config(source: Path, folder: Path, *, dtype: str) -> None:
    """The config of ``source`` as it came, but for the dtype of the weights that are written beside it."""
    config = json.loads((source / CONFIG).read_text())
    for key in ("dtype", "torch_dtype"):
        config.pop(key, None)
    (folder / CONFIG).write_text(json.dumps({**config, "dtype": dtype}, indent=2))


def copy_texts(source: Path, folder: Path) -> None:
    """Tokenizer and template of ``source``, as they came."""
    for name in TEXT_FILES:
        if (source / name).is_file():
            shutil.copyfile(source / name, folder / name)


def _config(path: Path, field: str) -> Mapping[str, Any]:
    file = path / CONFIG
    if not file.is_file():
        raise _unusable(
            field, path, f"is no model folder: it has no {CONFIG}", f"give the folder that holds the model's {CONFIG}"
        )
    config = _json(file, field)
    if "auto_map" in config or any(path.glob("modeling_*.py")):
        raise _unusable(
            field,
            path,
            "the model comes with code of its own (auto_map), which is never run",
            "use a model whose architecture transformers knows by itself",
        )
    if not isinstance(config.get("model_type"), str):
        raise _in_file(field, file, "has no model_type", "give a model in the form of Hugging Face")
    text = config.get("text_config", config)
    if not isinstance(text, Mapping) or not isinstance(text.get("vocab_size"), int):
        raise _in_file(field, file, "has no vocab_size", "give a decoder-only language model")
    if config.get("quantization_config"):
        raise _in_file(
            field, file, "the weights are quantised, and gradients need them whole", "use the model's unquantised form"
        )
    return config


def _tensors(path: Path, field: str) -> Iterator[tuple[str, TensorHeader]]:
    for file, names in _weight_files(path, field).items():
        held = dict(_headers(file, field))
        if names is not None and (absent := sorted(names - held.keys())):
            raise _in_file(field, file, f"lacks {absent[0]}, which {INDEX} says it holds", "download the file again")
        yield from ((name, header) for name, header in held.items() if names is None or name in names)


def _weight_files(path: Path, field: str) -> dict[Path, set[str] | None]:
    """The files, and what the index says each holds; None where there is no index."""
    if (path / WEIGHTS).is_file():  # first, as those who load it have it: an index beside it is not looked at
        return {path / WEIGHTS: None}
    index = path / INDEX
    if index.is_file():
        named = _json(index, field).get("weight_map")
        if not isinstance(named, Mapping) or not all(isinstance(name, str) for name in named.values()):
            raise _in_file(field, index, "has no weight_map", "download the model again")
        files = [path / name for name in sorted(set(named.values()))]
        if outside := [file for file in files if file.parent != path]:
            raise _in_file(field, index, f"names a file outside of the folder: {outside[0]}", "mend the index")
        if missing := [file for file in files if not file.is_file()]:
            raise _in_file(field, missing[0], f"is named by {INDEX} and missing", "download the model again")
        return {file: {name for name, named_file in named.items() if named_file == file.name} for file in files}
    pickled = sorted(file.name for pattern in PICKLED for file in path.glob(pattern))
    if pickled:
        raise _in_file(
            field,
            path / pickled[0],
            "the weights are pickled, and unpickling runs whatever code the file names",
            "convert them to safetensors, in a place where nothing can be lost: "
            "AutoModelForCausalLM.from_pretrained(folder).save_pretrained(folder)",
        )
    raise _unusable(field, path, f"holds no weights: neither {WEIGHTS} nor {INDEX}", "download the model again")


def _headers(file: Path, field: str) -> Iterator[tuple[str, TensorHeader]]:
    """Raises ModelFolderRefused for a file that is cut, or whose header does not describe it."""
    remedy = "download the file again"
    size = file.stat().st_size
    with file.open("rb") as opened:
        length = int.from_bytes(opened.read(8), "little")
        if size < 8 or not 0 < length <= min(size - 8, LONGEST_HEADER_BYTES):
            raise _in_file(field, file, f"is damaged: {size} bytes, and its header cannot be read", remedy)
        try:
            header = json.loads(opened.read(length))
            described = {name: _described(entry) for name, entry in header.items() if name != "__metadata__"}
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise _in_file(field, file, f"is damaged: its header is no safetensors header ({error})", remedy) from None
    end = 0
    for name, (_, _, start, stop) in sorted(described.items(), key=lambda entry: entry[1][2:]):
        if start != end:
            message = f"is damaged: {name} does not begin where the tensor before it ends"
            raise _in_file(field, file, message, remedy)
        end = stop
    if size - 8 - length != end:
        raise _in_file(
            field, file, f"is damaged: its header describes {8 + length + end} bytes, and it has {size}", remedy
        )
    for name, (shape, dtype, start, stop) in described.items():
        held = BYTES_OF_DTYPE.get(dtype)
        if held is None or math.prod(shape) * held != stop - start:
            raise _in_file(field, file, f"is damaged: {name} is not the {dtype} of {shape} that it says", remedy)
        if dtype not in FLOATS:
            raise _in_file(
                field,
                file,
                f"{name} is {dtype}, and only floating-point weights are trained",
                "use an unquantised model",
            )
        yield name, TensorHeader(shape, dtype, file, 8 + length + start)


def _described(entry: Any) -> tuple[tuple[int, ...], str, int, int]:
    """Shape, dtype, and where the tensor begins and ends.  Raises ValueError, KeyError or TypeError."""
    shape, dtype, (start, stop) = entry["shape"], entry["dtype"], entry["data_offsets"]
    if not isinstance(shape, list) or len(shape) > MOST_DIMENSIONS:
        raise ValueError(f"a shape is a list of {MOST_DIMENSIONS} sizes at most")
    for size in (*shape, start, stop):
        if type(size) is not int or not 0 <= size <= LARGEST_SIZE:
            raise ValueError("a size or an offset is no whole number from 0 to 2**63 - 1")
    return tuple(shape), str(dtype), start, stop


def _json(file: Path, field: str) -> Mapping[str, Any]:
    if (size := file.stat().st_size) > LONGEST_HEADER_BYTES:
        raise _in_file(field, file, f"is {size} bytes long", "download the file again")
    try:
        content = json.loads(file.read_text())
    except (ValueError, RecursionError) as error:
        raise _in_file(field, file, f"is not JSON: {str(error)[:200]}", "download the file again") from None
    if not isinstance(content, dict):
        raise _in_file(field, file, "is no JSON object", "download the file again")
    return content


def _in_file(field: str, file: Path, message: str, remedy: str) -> ModelFolderRefused:
    """The file is named in the message too: a long path is cut where it is the value."""
    return _unusable(field, file, f"{file.name}: {message}", remedy)


def _unusable(field: str, value: object, message: str, remedy: str) -> ModelFolderRefused:
    return ModelFolderRefused(Problem(field, str(value), message, remedy))
