"""A network's weights on their way between a folder of Hugging Face's and the ranks: one parameter at a time.

Reading, each rank opens the folder itself and keeps its own part of each tensor.  Giving out is collective: the tensor
ranks put a parameter together, the pipeline stage that has it hands it to the others, and one whole parameter stands in
memory beside the network at any time.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from engine.durable import read_back
from engine.models.folder import INDEX, WEIGHTS, ModelFolder
from engine.training.backends.megatron.layout import Grid, Shape
from engine.training.backends.megatron.names import FIRST, LAST, Parameter, parameters_of

__all__ = ["Place", "given_out", "read_into", "written_in_files"]

FILE_BYTES = 5 * 10**9
"""Weights beyond this are split into files."""

Held = dict[str, Tensor]
"""This rank's parameters by Megatron's names, without a copy."""


class Place:
    """Where this rank stands: which parameters it holds, and by which of Megatron's names."""

    def __init__(self, shape: Shape, grid: Grid, folder: ModelFolder) -> None:
        self.shape, self.grid, self.folder = shape, grid, folder
        self._layers = shape.architecture.layers // grid.pipeline
        self._experts = shape.experts.count // grid.expert if shape.experts else 0

    def stage_of(self, parameter: Parameter) -> int:
        """The pipeline stage that has it."""
        if parameter.layer == FIRST:
            return 0
        return self.grid.pipeline - 1 if parameter.layer == LAST else parameter.layer // self._layers

    def expert_part_of(self, parameter: Parameter) -> int:
        """The rank among those that share the experts that has it; 0 for what every one of them has."""
        return 0 if parameter.expert is None else parameter.expert // self._experts

    def local_name(self, parameter: Parameter) -> str:
        expert = 0 if parameter.expert is None else parameter.expert % self._experts
        return parameter.name.format(layer=parameter.layer % self._layers, expert=expert)

    def holds(self, parameter: Parameter) -> bool:
        stage: int = parallel_state.get_pipeline_model_parallel_rank()
        part: int = parallel_state.get_expert_model_parallel_rank()
        is_here = self.stage_of(parameter) == stage
        return is_here and (parameter.expert is None or self.expert_part_of(parameter) == part)

    def mark_divided(self, parameters: Mapping[str, nn.Parameter]) -> None:
        """Say, in Megatron's words, which are parts; the other tensor ranks hold the same of the rest.

        Megatron says so itself of weights that it draws, and of no others.
        """
        divided = {self.local_name(whole) for whole in parameters_of(self.shape) if whole.cut is not None}
        for name, parameter in parameters.items():
            is_head = name == "output_layer.weight"
            parameter.tensor_model_parallel = is_head or name in divided  # type: ignore[attr-defined]

    def size_of(self, parameter: Parameter) -> tuple[int, ...]:
        """The shape of the whole parameter, which this rank may not have."""
        sizes = [self.folder.tensors[name].shape for name in parameter.tensors]
        return (sum(size[0] for size in sizes), *sizes[0][1:])


@torch.no_grad()
def read_into(held: Held, place: Place) -> None:
    """Take over this rank's part of the folder's weights.  Raises DamagedFile."""
    folder, filled = place.folder, set()
    for parameter in parameters_of(place.shape):
        if place.holds(parameter):
            name = place.local_name(parameter)
            with read_back(folder.path):
                whole = parameter.joined([_read(folder, tensor) for tensor in parameter.tensors])
                held[name].copy_(_own_part(parameter, whole))
            filled.add(name)
    if place.shape.architecture.tied and parallel_state.is_pipeline_last_stage() and "output_layer.weight" in held:
        embedding = next(iter(parameters_of(place.shape)))
        with read_back(folder.path):
            held["output_layer.weight"].copy_(_own_part(embedding, _read(folder, embedding.tensors[0])))
        filled.add("output_layer.weight")
    if missing := sorted(held.keys() - filled):
        raise RuntimeError(f"Megatron's parameters {', '.join(missing[:3])} have no name in a folder")


def _read(folder: ModelFolder, name: str) -> Tensor:
    with safe_open(folder.tensors[name].file, framework="pt") as file:
        tensor: Tensor = file.get_tensor(name)
    return tensor


def _own_part(parameter: Parameter, whole: Tensor) -> Tensor:
    if parameter.cut is None:
        return whole
    group = parallel_state.get_tensor_model_parallel_group()
    parts, own = int(group.size()), int(group.rank())
    return parameter.cut.divided(whole, parts)[own]


@torch.no_grad()
def given_out(held: Held, place: Place) -> Iterator[tuple[str, Tensor]]:
    """Every whole tensor by its Hugging Face name, on every rank; all ranks must ask, to the end."""
    like = next(iter(held.values()))
    for parameter in parameters_of(place.shape):
        if place.holds(parameter):
            whole = _whole(held, place, parameter)
        else:
            whole = like.new_empty(place.size_of(parameter))
        if parameter.expert is not None:
            _share(whole, parallel_state.get_expert_model_parallel_group(), place.expert_part_of(parameter))
        _share(whole, parallel_state.get_pipeline_model_parallel_group(), place.stage_of(parameter))
        yield from zip(parameter.tensors, parameter.taken_apart(whole), strict=True)


def _whole(held: Held, place: Place, parameter: Parameter) -> Tensor:
    own = held[place.local_name(parameter)].contiguous()
    group = parallel_state.get_tensor_model_parallel_group()
    if parameter.cut is None or group.size() == 1:
        return own.clone()
    parts = [torch.empty_like(own) for _ in range(group.size())]
    dist.all_gather(parts, own, group=group)
    return parameter.cut.put_together(parts).contiguous()


def _share(whole: Tensor, group: dist.ProcessGroup, owner: int) -> None:
    if group.size() > 1:
        dist.broadcast(whole, group=group, group_src=owner)


def written_in_files(tensors: Iterator[tuple[str, Tensor]], folder: Path | None) -> None:
    """Write the stream into safetensors files of ``folder``; None: another rank does, and this one only takes part."""
    if folder is None:
        for _ in tensors:
            pass
        return
    index: dict[str, str] = {}
    total = 0
    for number, part in enumerate(_in_parts(tensors), start=1):
        file = f"model-{number:05d}.safetensors"
        save_file(part, folder / file, metadata={"format": "pt"})
        index |= dict.fromkeys(part, file)
        total += sum(map(_bytes_of, part.values()))
    if len(set(index.values())) == 1:
        (folder / "model-00001.safetensors").rename(folder / WEIGHTS)
    else:
        (folder / INDEX).write_text(json.dumps({"metadata": {"total_size": total}, "weight_map": index}, indent=2))


def _in_parts(tensors: Iterator[tuple[str, Tensor]]) -> Iterator[dict[str, Tensor]]:
    """Copies on the CPU of as many at a time as a file may hold."""
    part: dict[str, Tensor] = {}
    size = 0
    for name, tensor in tensors:
        if part and size + _bytes_of(tensor) > FILE_BYTES:
            yield part
            part, size = {}, 0
        part[name] = tensor.to("cpu", copy=True).contiguous()
        size += _bytes_of(tensor)
    if part:
        yield part


def _bytes_of(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()
