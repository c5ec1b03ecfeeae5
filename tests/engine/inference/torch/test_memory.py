"""What the generator says that it takes, held against what torch allocates."""

import gc

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from engine.inference.torch.decoder import Decoder
from engine.inference.torch.factory import generator_for_folder
from engine.inference.torch.generator import TorchGenerator
from engine.inference.torch.memory import LOGITS_BYTES, PREFILL_BYTES, Layout, lacking_memory, memory_of, slots_within
from engine.inference.torch.prompts import Prompts
from engine.models.architecture import Architecture
from engine.spec.generation import Truncation
from tests.engine.inference.torch.cast import turn
from tests.engine.inference.torch.test_families import written_folder

GIB = 2**30
SMALL = {
    "model_type": "qwen2",
    "vocab_size": 300,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 40_000,
}
QWEN3_4B = {
    "model_type": "qwen3",
    "vocab_size": 151_936,
    "hidden_size": 2560,
    "intermediate_size": 9728,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 40_960,
    "tie_word_embeddings": True,
}


def allocated(action):
    """Bytes that stand after ``action`` and at its highest, and what it returned."""
    gc.collect()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        result = action()
    events = [event for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]"]
    held = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        held += event.nbytes()
        peak = max(peak, held)
    return held, peak, result


def weights_of(architecture, dtype=torch.float32):
    return {name: torch.randn(shape).to(dtype) * 0.05 for name, shape in architecture.weights()}


LONG = (
    {"num_hidden_layers": 2, "num_attention_heads": 64, "num_key_value_heads": 64, "head_dim": 64},
    4_500,
    2,
    "bfloat16",
)
"""It has few rows in which prompts are read."""
SHAPES = [
    ({}, 200, 5, "float32"),
    ({"tie_word_embeddings": True}, 200, 40, "bfloat16"),
    ({"vocab_size": 151_936}, 64, 60, "float32"),  # logits in several blocks
]


@pytest.mark.parametrize(("changes", "context", "slots", "dtype"), [*SHAPES, LONG])
def test_what_is_kept_is_what_was_said_to_the_byte(changes, context, slots, dtype):
    architecture = Architecture.of_config({**SMALL, **changes})
    phrase = memory_of(architecture, context_tokens=context, slots=slots, dtype=dtype)
    held, _, decoder = allocated(
        lambda: Decoder(architecture, context_tokens=context, slots=slots, device="cpu", dtype=dtype)
    )
    rows = decoder.layout.prefill_rows * decoder.layout.row_bytes
    tables = decoder._cos_WE.nbytes + decoder._sin_WE.nbytes + decoder._column_W.nbytes
    assert held == phrase.weights + phrase.kv_cache + rows + tables
    assert tables <= phrase.scratch


def test_kept_prompts_stay_within_what_was_reported():
    architecture = Architecture.of_config(SMALL)
    decoder = Decoder(architecture, context_tokens=32, slots=20, device="cpu")
    decoder.load(weights_of(architecture))
    prompts, most = Prompts(decoder), decoder.layout.kept_prompt_tokens * decoder.layout.bytes_per_token
    kept = []
    for number in range(24):
        prompts.read([(number, *range(30))])
        kept.append(sum(p.keys_LKEP.nbytes + p.values_LKPE.nbytes for p in prompts._kept.values()))
    assert max(kept) <= most < kept[0] * 20  # by their tokens, before there are as many as slots


@pytest.mark.parametrize(
    ("changes", "context", "slots", "dtype"), [*SHAPES, pytest.param(*LONG, marks=pytest.mark.soak)]
)
async def test_a_pass_takes_no_more_than_its_scratch(changes, context, slots, dtype):
    architecture = Architecture.of_config({**SMALL, **changes})
    phrase = memory_of(architecture, context_tokens=context, slots=slots, dtype=dtype)
    generator = TorchGenerator(
        architecture, context_tokens=context, slots=slots, threads=1, initial=weights_of(architecture), dtype=dtype
    )
    truncation = Truncation(top_k=50_000, top_p=0.999, min_p=1e-9)  # a flat policy: whole rows are sorted
    ids = [7 * i % 300 for i in range(60)]
    await generator.generate(turn("first", ids, max_new_tokens=2))
    generator.close()
    generator._closing = False  # the passes below are run here, where they can be measured
    from engine.inference.torch.session import Reply, Turn

    generator._begin(
        Turn.begun(
            turn("s", ids, max_new_tokens=2, truncation=truncation, logprobs_truncated=True), Reply.of_running_loop()
        )
    )
    _, peak, _ = allocated(lambda: [generator._pass() for _ in range(2)])
    kept = 60 * generator._layout.bytes_per_token
    assert 0 < peak - kept <= phrase.scratch


def test_logits_stand_in_blocks_within_their_bound():
    architecture = Architecture.of_config(QWEN3_4B)
    for slots in (1, 7, 64, 1000):
        layout = Layout(architecture, 4096, slots, "bfloat16")
        assert layout.logit_rows * architecture.vocab_size * 64 <= LOGITS_BYTES
        assert 1 <= layout.logit_rows <= slots


def test_long_rows_of_prompts_are_few():
    architecture = Architecture.of_config(QWEN3_4B)
    layout = Layout(architecture, 16_384, 8, "bfloat16")
    assert layout.prefill_rows == 2
    assert layout.prefill_rows * layout.row_bytes > PREFILL_BYTES
    assert layout.prefill_rows * layout.prefill_tokens == 128
    memory = memory_of(architecture, context_tokens=16_384, slots=8, dtype="bfloat16")
    assert memory.weights == architecture.parameters * 2
    assert memory.kv_cache == 8 * 16_392 * 36 * 8 * 128 * 2 * 2
    assert memory.total == memory.weights + memory.kv_cache + memory.prompts + memory.scratch


@pytest.mark.parametrize("free_gib", [9, 12, 20, 40])
def test_what_does_not_fit_is_refused_with_the_numbers_and_what_would_fit(free_gib):
    architecture = Architecture.of_config(QWEN3_4B)

    def problem(slots, context_tokens):
        return lacking_memory(
            architecture, context_tokens=context_tokens, slots=slots, dtype="bfloat16", free_bytes=free_gib * GIB
        )

    refused = problem(64, 16_384)
    assert refused.field == "resources.kv_slots"
    assert "weights 7.5 GiB + kv cache 144.1 GiB" in refused.message
    assert f"this machine has {free_gib}.0 GiB free" in refused.message
    words = refused.remedy.split()
    numbers = {words[i - 2]: int(words[i]) for i, word in enumerate(words) if word.isdigit()}
    if "resources.kv_slots" in numbers:
        slots = numbers["resources.kv_slots"]
        assert problem(slots, 16_384) is None
        assert problem(slots + 1, 16_384) is not None
    if "model.context_tokens" in numbers:
        assert problem(64, numbers["model.context_tokens"]) is None
    assert numbers or free_gib == 9


def test_weights_that_do_not_fit_are_no_matter_of_slots():
    architecture = Architecture.of_config(QWEN3_4B)
    refused = lacking_memory(architecture, context_tokens=4096, slots=2, dtype="float32", free_bytes=8 * GIB)
    assert refused.remedy == "use a smaller model, or more memory"


async def test_a_budget_in_bytes_makes_as_many_slots_as_fit(tmp_path):
    written_folder(tmp_path, "qwen2", {})
    architecture = Architecture.of_config({**SMALL, "num_hidden_layers": 2})
    row = Layout(architecture, 100, 1).row_bytes
    for budget, slots in ((row, 1), (3 * row - 1, 2), (3 * row, 3)):
        assert slots_within(architecture, context_tokens=100, dtype="float32", budget_bytes=budget) == slots
        generator = generator_for_folder(tmp_path, context_tokens=100, kv_budget_bytes=budget)
        assert generator._layout.slots == slots
        cache = generator._decoder._cache
        assert cache.keys_LSKEW.nbytes + cache.values_LSKWE.nbytes <= budget
        generator.close()
    with pytest.raises(ValueError, match="kv_budget_bytes"):
        generator_for_folder(tmp_path, context_tokens=100, kv_budget_bytes=row - 1)
    for neither in ({}, {"slots": 1, "kv_budget_bytes": row}):
        with pytest.raises(ValueError, match="either slots or kv_budget_bytes"):
            generator_for_folder(tmp_path, context_tokens=100, **neither)
