"""What things cost in the simulation of scale.py, and how that is known.

``measured`` constants were taken by this repository's own programs; ``cited`` ones by somebody else, at the address;
``assumed`` ones by nobody: they are where to doubt first.  docs/scale.md has the table.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from benchmarks.scale_simulation import Machine, Workload

RECORDED = Path(__file__).parent / "results" / "scale_constants.json"
"""Written by ``./dev bench scale --measure``."""


@dataclass(frozen=True)
class Constant:
    value: float
    unit: str
    known: Literal["measured", "cited", "assumed"]
    source: str


GPU_SPEED = "https://github.com/tgarg01/silybench-data, derived/csv/capacity.csv: Qwen3-8B, bf16, one H100 80 GB"


def constants() -> dict[str, Constant]:
    """Raises FileNotFoundError where nothing was recorded."""
    recorded: dict[str, Any] = json.loads(RECORDED.read_text())
    here = "./dev bench scale --measure"
    return {
        "ray_round_trip_s": Constant(recorded["ray_round_trip_s"], "s", "measured", here),
        "ray_call_s": Constant(recorded["ray_call_s"], "s", "measured", f"{here}: one of 400 calls under way"),
        "ray_byte_s": Constant(recorded["ray_byte_s"], "s/B", "measured", f"{here}: 64 MiB, put and read on one node"),
        "event_s": Constant(recorded["event_s"], "s", "measured", f"{here}: 4 kB into the run's log, fsynced"),
        "sandbox_cpu_s": Constant(3.2e-3, "s", "measured", "./dev bench step, docs/benchmarks.md: made by a zygote"),
        "exec_cpu_s": Constant(1.1e-3, "s", "measured", "./dev bench sandbox, docs/benchmarks.md: pooled, 8 runs"),
        "sandbox_bytes": Constant(5.1 * 2**20, "B", "measured", "./dev bench sandbox, docs/benchmarks.md: 1,000 alive"),
        "tiny_step_s": Constant(1.27e-3, "s", "measured", "./dev bench throughput: 64 x 0.633 ms / 32 tokens"),
        "tiny_update_s": Constant(8.86e-4, "s", "measured", "./dev bench throughput: score and update of a trajectory"),
        "step_s": Constant(12.47e-3, "s", "cited", f"{GPU_SPEED}; 40 and 396 users, a line through both"),
        "row_s": Constant(43.6e-6, "s", "cited", "the same line"),
        "rows_per_gpu": Constant(92, "rows", "cited", f"{GPU_SPEED}; KV cache, at 4,096 tokens each"),
        "parameters": Constant(8.2e9, "", "cited", "https://huggingface.co/Qwen/Qwen3-8B"),
        "peak_flops": Constant(989e12, "1/s", "cited", "NVIDIA H100 SXM datasheet: bfloat16, dense"),
        "flops_per_parameter": Constant(8, "", "assumed", "6 for forward and backward, 2 for the log-probs before"),
        "utilisation": Constant(0.35, "", "assumed", "below the 0.41 to 0.47 of Megatron-LM's README (pre-training)"),
        "weights_bytes_per_s": Constant(25e9, "B/s", "assumed", "broadcast at half of one 400 Gbit/s port"),
        "move_s": Constant(4.0, "s", "assumed", "optimiser and cache in and out: 100 GB over PCIe 5, and a restart"),
        "cores_per_gpu": Constant(16, "cores", "assumed", "of the hosts of sandboxes"),
    }


AGENTIC = Workload(
    turns_mean=10,
    turns_max=60,
    tokens_median=150,
    tokens_sigma=0.8,
    observation_tokens=200,
    prompt_tokens=600,
    tool_tail=1.5,
    tool_s=(1.0, 120.0),
)
"""Episodes of seconds to twenty minutes: assumed, after the lengths that ROLL's section 2.1 speaks of."""
COMPLETIONS = Workload(1, 1, 32, 0.0, 0, 15, 1.5, (0.0, 0.0))
"""The setting ``completions`` of ./dev bench throughput."""


def this_machine(known: dict[str, Constant]) -> Machine:
    """One device that decodes and trains in turn: two cores, and the tiny model that is the default.

    In one process and without a log, as ./dev bench throughput runs it: what comes out can be held against it.
    """
    value = {name: constant.value for name, constant in known.items()}
    tokens = COMPLETIONS.prompt_tokens + COMPLETIONS.tokens_median
    return Machine(
        gpus=1,
        cores=2,
        rows_per_gpu=64,
        step_s=value["tiny_step_s"],
        row_s=0.0,
        train_token_gpu_s=value["tiny_update_s"] / tokens,
        weights_s=0.0,
        move_s=0.0,
        sandbox_cpu_s=0.0,
        exec_cpu_s=0.0,
        call_cpu_s=0.0,
        event_cpu_s=0.0,
    )


def cluster(known: dict[str, Constant], *, gpus: int, weights: Literal["broadcast", "ray"] = "broadcast") -> Machine:
    value = {name: constant.value for name, constant in known.items()}
    weights_bytes = 2 * value["parameters"]
    by_way = {"broadcast": 1 / value["weights_bytes_per_s"], "ray": value["ray_byte_s"]}
    flops = value["flops_per_parameter"] * value["parameters"]
    return Machine(
        gpus=gpus,
        cores=round(value["cores_per_gpu"] * gpus),
        rows_per_gpu=round(value["rows_per_gpu"]),
        step_s=value["step_s"],
        row_s=value["row_s"],
        train_token_gpu_s=flops / (value["utilisation"] * value["peak_flops"]),
        weights_s=weights_bytes * by_way[weights],
        move_s=value["move_s"],
        sandbox_cpu_s=value["sandbox_cpu_s"],
        exec_cpu_s=value["exec_cpu_s"],
        call_cpu_s=2 * value["ray_call_s"],  # submit and replies
        event_cpu_s=value["event_s"],
    )
