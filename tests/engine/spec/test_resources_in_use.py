"""What an engineer with a few GPUs may write into a run's resources and schedule, and what comes back."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from engine.launch.preflight import differing_fields
from engine.loop.requirements import lacking
from engine.spec.problems import Problem, problems_in
from engine.spec.run import RunSpec
from tests.engine.models.folders import folder_of, other_folder

URL = "http://10.0.0.5:30000"
MODEL = {"kind": "pretrained", "path": "tiny"}
ADAPTED = MODEL | {"lora": {"rank": 4}}
INTERNAL = re.compile(r"pydantic|Traceback|validation error|\^https\?|\\[wA-Z]")
"""What a person who writes a spec should never have to read."""


def resources(**given: Any) -> dict[str, Any]:
    return {"resources": given}


def schedule(**given: Any) -> dict[str, Any]:
    return {"schedule": given}


def servers(sglang: dict[str, Any] | None = None, *, model: Any = MODEL, **tables: Any) -> dict[str, Any]:
    """A run on SGLang, with ``more`` in its resources."""
    more = tables.pop("more", {})
    return {"model": model, "resources": {"generator": "sglang", "sglang": sglang or {}} | more} | tables


def named(urls: Any, **sglang: Any) -> dict[str, Any]:
    return servers({"urls": urls, "weights": "tensor"} | sglang)


def ranks(number: int, layout: dict[str, Any] | None = None, *, model: Any = MODEL, **more: Any) -> dict[str, Any]:
    trainer = {"trainer": "megatron", "trainer_ranks": number, "megatron": layout or {}}
    return {"model": model, "resources": trainer | more}


def found_in(document: dict[str, Any]) -> list[Problem]:
    try:
        RunSpec.model_validate({"name": "x"} | document)
    except ValidationError as refused:
        return problems_in(refused, RunSpec)
    return []


def only_problem(document: dict[str, Any]) -> Problem:
    problems = found_in(document)
    assert problems, "it is taken without a word"
    assert len(problems) == 1, [str(problem) for problem in problems]
    return problems[0]


def assert_refused(document: dict[str, Any], field: str, *words: str) -> None:
    problem = only_problem(document)
    assert problem.field == field, str(problem)
    assert problem.remedy, str(problem)
    for word in words:
        assert word in str(problem), f"{word!r} is not in: {problem}"


NUMBERS = [
    ("resources", "trainer_ranks"),
    ("resources", "generators"),
    ("resources", "threads"),
    ("resources", "decoders"),
    ("resources", "kv_slots"),
    ("resources", "sandboxes"),
    ("schedule", "async_ratio"),
    ("schedule", "redundant_members"),
    ("schedule", "redundant_groups"),
]


@pytest.mark.parametrize(("table", "field"), NUMBERS)
@pytest.mark.parametrize(
    ("value", "remedy"),
    [
        (-1, "at least"),
        (10**30, "at most"),
        (1.5, "whole number"),
        (float("nan"), "finite number"),
        (float("inf"), "finite number"),
        (None, "whole number"),
        ("two", "whole number"),
        ([2], "whole number"),
        ({}, "whole number"),
    ],
)
def test_what_is_no_sensible_count_is_refused_by_its_full_path(table: str, field: str, value: Any, remedy: str) -> None:
    assert_refused({table: {field: value}}, f"{table}.{field}", remedy)


@pytest.mark.parametrize(("table", "field"), NUMBERS)
def test_true_is_no_count(table: str, field: str) -> None:
    assert_refused({table: {field: True}}, f"{table}.{field}", "whole number")


def test_a_count_of_a_template_in_quotes_is_read_as_its_number() -> None:
    spec = RunSpec.model_validate({"name": "x", "resources": {"trainer_ranks": "8"}})
    assert spec.resources.trainer_ranks == 8


@pytest.mark.parametrize(
    ("document", "field", "word"),
    [
        (resources(batch_delay_ms=-0.5), "resources.batch_delay_ms", "at least 0"),
        (resources(batch_delay_ms=60_000), "resources.batch_delay_ms", "at most 1000"),
        (resources(batch_delay_ms=float("nan")), "resources.batch_delay_ms", "finite"),
        (schedule(multiplexing=True, async_ratio=1, multiplexing_hold_s=-1), "schedule.multiplexing_hold_s", "least 0"),
        (schedule(stall_timeout_s=0), "schedule.stall_timeout_s", "greater than 0"),
        (schedule(max_attempts=0), "schedule.max_attempts", "at least 1"),
        (servers({"start_timeout_s": 0}), "resources.sglang.start_timeout_s", "greater than 0"),
        (servers({"start_timeout_s": float("inf")}), "resources.sglang.start_timeout_s", "finite"),
        (servers({"health_every_s": 0}), "resources.sglang.health_every_s", "greater than 0"),
        (servers({"health_misses": 0}), "resources.sglang.health_misses", "at least 1"),
        (servers({"restarts": -1}), "resources.sglang.restarts", "at least 0"),
        (servers({"memory_fraction": 1}), "resources.sglang.memory_fraction", "at most 0.98"),
        (servers({"memory_fraction": 90}), "resources.sglang.memory_fraction", "at most 0.98"),
        (servers({"servers": 0}), "resources.sglang.servers", "at least 1"),
        (servers({"tensor_parallel": 0}), "resources.sglang.tensor_parallel", "at least 1"),
        (resources(judge={"path": "a-judge", "servers": 0}), "resources.judge.servers", "at least 1"),
        (resources(placement={"rollout_cpus": float("nan")}), "resources.placement.rollout_cpus", "finite"),
        (resources(placement={"rollout_memory_gib": -1}), "resources.placement.rollout_memory_gib", "at least 0"),
        (resources(placement={"reserve_threads": 2}), "resources.placement.reserve_threads", "true or false"),
        (resources(device="cuda:1"), "resources.device", "'cpu' or 'cuda'"),
        (resources(generator="vllm"), "resources.generator", "'torch' or 'sglang'"),
        (resources(trainer="deepspeed"), "resources.trainer", "'torch' or 'megatron'"),
        (ranks(1, {"recompute": "full"}), "resources.megatron.recompute", "'layers'"),
        ({"model": MODEL | {"lora": {"rank": 0}}}, "model.lora.rank", "at least 1"),
        ({"model": MODEL | {"lora": {"rank": 8.5}}}, "model.lora.rank", "whole number"),
    ],
)
def test_what_is_out_of_its_range_is_refused_with_the_bound(document: dict[str, Any], field: str, word: str) -> None:
    assert_refused(document, field, word)


@pytest.mark.parametrize(
    ("document", "field"),
    [
        (resources(sglang=None), "resources.sglang"),
        (resources(megatron=False), "resources.megatron"),
        (resources(placement="apart"), "resources.placement"),
        (resources(judge=[]), "resources.judge"),
        ({"resources": [{"threads": 2}]}, "resources"),
        ({"schedule": None}, "schedule"),
    ],
)
def test_what_is_no_table_is_refused_by_its_path(document: dict[str, Any], field: str) -> None:
    assert_refused(document, field, "give a table")


def test_empty_tables_are_their_defaults() -> None:
    empty = {"resources": {"sglang": {}, "megatron": {}, "placement": {}}, "schedule": {}, "evaluation": {}}
    assert RunSpec.model_validate({"name": "x"} | empty) == RunSpec(name="x")


def test_names_of_runs_may_be_of_any_script() -> None:
    assert found_in({"name": "Übung 学习 1"}) == []


@pytest.mark.parametrize(
    ("document", "field", "meant"),
    [
        (resources(trainer_rank=2), "resources.trainer_rank", "trainer_ranks"),
        (resources(sgalng={}), "resources.sgalng", "sglang"),
        (resources(decoder=2), "resources.decoder", "decoders"),
        (resources(trainer_ränks=2), "resources.trainer_ränks", "trainer_ranks"),
        (schedule(asynch_ratio=2), "schedule.asynch_ratio", "async_ratio"),
        (schedule(multiplex=True), "schedule.multiplex", "multiplexing"),
        (servers({"url": [URL]}), "resources.sglang.url", "urls"),
        (resources(placement={"generators": "apart"}), "resources.placement.generators", "generator"),
        (ranks(2, {"tensor_parallel": 2}), "resources.megatron.tensor_parallel", "tensor"),
        (ranks(2, {"pipeline_parallel": 2}), "resources.megatron.pipeline_parallel", "pipeline"),
        (ranks(2, {"context_parallel": 2}), "resources.megatron.context_parallel", "context"),
        (ranks(2, {"expert_parallel": 2}), "resources.megatron.expert_parallel", "expert"),
        (servers({"tensor": 2}), "resources.sglang.tensor", "tensor_parallel"),
    ],
)
def test_a_typo_is_met_with_the_name_that_was_meant(document: dict[str, Any], field: str, meant: str) -> None:
    assert_refused(document, field, f"'{meant}'")


@pytest.mark.parametrize(
    ("document", "field", "place"),
    [
        (resources(async_ratio=2), "resources.async_ratio", "schedule"),
        (resources(multiplexing=True), "resources.multiplexing", "schedule"),
        (schedule(kv_slots=8), "schedule.kv_slots", "resources"),
        (schedule(trainer_ranks=8), "schedule.trainer_ranks", "resources"),
        ({"async_ratio": 2}, "async_ratio", "schedule"),
        ({"sglang": {"servers": 2}}, "sglang", "resources"),
        ({"megatron": {"tensor": 2}}, "megatron", "resources"),
        (resources(tensor_parallel=2), "resources.tensor_parallel", "sglang"),
    ],
)
def test_a_key_in_a_wrong_table_is_met_with_the_table_where_it_belongs(
    document: dict[str, Any], field: str, place: str
) -> None:
    problem = only_problem(document)
    assert problem.field == field
    assert place in problem.remedy.split("; known here")[0], str(problem)


@pytest.mark.parametrize(
    ("document", "field", "words"),
    [
        (ranks(4, {"tensor": 3}), "resources.trainer_ranks", ["= 4", "3 ranks", "multiple of 3"]),
        (
            ranks(12, {"tensor": 2, "pipeline": 2, "context": 2}),
            "resources.trainer_ranks",
            ["8 ranks", "multiple of 8"],
        ),
        (ranks(1, {"tensor": 2}), "resources.trainer_ranks", ["= 1", "2 ranks"]),
        (ranks(8, {"expert": 3}), "resources.megatron.expert", ["8 ranks", "divisor"]),
        (ranks(4, {"expert": 8}), "resources.megatron.expert", ["4 ranks"]),
        (ranks(8, {"pipeline": 2, "expert": 8}), "resources.megatron.expert", ["4 ranks"]),
        (ranks(4, {"sequence_parallel": True}), "resources.megatron.sequence_parallel", ["there is one"]),
        (resources(trainer_ranks=4, megatron={"tensor": 4}), "resources.megatron", ['trainer = "megatron"']),
        (resources(megatron={"recompute": "layers"}), "resources.megatron", ['trainer = "megatron"']),
        (ranks(2, recompute="layers"), "resources.recompute", ["remove it"]),
        (ranks(2, share_prefixes=True), "resources.share_prefixes", ["torch"]),
        (
            ranks(2, {}) | {"recipe": {"preset": "ppo"}},
            "resources.trainer",
            ["critic", "gae", "torch"],
        ),
    ],
)
def test_layouts_that_do_not_divide_are_refused_with_the_sum(
    document: dict[str, Any], field: str, words: list[str]
) -> None:
    assert_refused(document, field, *words)


def test_a_replica_larger_than_all_ranks_there_may_be_is_told_what_to_make_smaller() -> None:
    problem = only_problem(ranks(256, {"tensor": 64, "pipeline": 64, "context": 2}))
    numbers = [int(number) for number in re.findall(r"\d+", problem.remedy)]
    assert all(number <= 256 for number in numbers), f"no run can have so many ranks: {problem.remedy}"


@pytest.mark.parametrize(
    "document",
    [
        ranks(64) | schedule(prompts_per_step=4, group_size=4, minibatch_trajectories=16),
        resources(trainer_ranks=64) | schedule(prompts_per_step=1, group_size=8, minibatch_trajectories=8),
    ],
    ids=["64 replicas of 16", "64 torch ranks of 8"],
)
def test_more_replicas_than_an_update_has_trajectories_are_refused(document: dict[str, Any]) -> None:
    problem = only_problem(document)
    assert problem.field in {"resources.trainer_ranks", "schedule.minibatch_trajectories"}


TINY = {"context_tokens": 1024, "microbatch_tokens": 1024}


def lacks(
    monkeypatch: pytest.MonkeyPatch, document: dict[str, Any], *, family: str = "qwen3", **model: Any
) -> list[Problem]:
    """What preflight says of the tiny model on a machine that has both backends."""
    monkeypatch.setattr("engine.loop.generator_requirements._has_sglang", lambda _: True)
    folder = other_folder("qwen3-moe") if family == "qwen3-moe" else folder_of(family)  # type: ignore[arg-type]
    given = MODEL | {"path": str(folder)} | TINY | model
    small = {"id": "python-math", "levels": [1], "max_turn_tokens": 16}
    document = {"name": "x", "environment": small} | document | {"model": given}
    document["resources"] = {"kv_slots": 2} | document.get("resources", {})
    found = lacking(RunSpec.model_validate(document), {})
    return [problem for problem in found if "not installed" not in problem.message]


@pytest.mark.parametrize(
    ("family", "layout", "number", "field", "sum_of"),
    [
        ("qwen3", {"tensor": 8}, 8, "resources.megatron.tensor", "num_attention_heads = 4"),
        ("qwen3", {"tensor": 4}, 4, "resources.megatron.tensor", "num_key_value_heads = 2"),
        ("qwen3", {"pipeline": 3}, 3, "resources.megatron.pipeline", "num_hidden_layers = 2"),
        ("qwen3", {"pipeline": 64}, 64, "resources.megatron.pipeline", "num_hidden_layers = 2"),
        ("qwen3", {"expert": 2}, 2, "resources.megatron.expert", "no mixture"),
        ("qwen3-moe", {"expert": 8}, 8, "resources.megatron.expert", "num_experts = 4"),
        ("qwen3-moe", {"expert": 3}, 3, "resources.megatron.expert", "num_experts = 4"),
    ],
)
def test_a_model_that_a_layout_cannot_cut_is_refused_in_preflight(
    monkeypatch: pytest.MonkeyPatch, family: str, layout: dict[str, int], number: int, field: str, sum_of: str
) -> None:
    found = lacks(monkeypatch, ranks(number, layout), family=family)
    assert {problem.field for problem in found} == {field}
    assert any(sum_of in problem.message for problem in found)
    assert all(problem.remedy for problem in found)


def test_each_remedy_for_a_layout_fits_all_that_must_divide(monkeypatch: pytest.MonkeyPatch) -> None:
    found = lacks(monkeypatch, ranks(9, {"tensor": 3, "pipeline": 3}))
    of_tensor = [problem for problem in found if problem.field == "resources.megatron.tensor"]
    assert of_tensor
    for problem in of_tensor:
        sizes = {int(number) for number in re.findall(r"\d+", problem.remedy)}
        assert sizes <= {1, 2}, f"of 4 heads, 2 for keys and values: {problem}"


@pytest.mark.parametrize(
    ("document", "model", "field"),
    [
        (ranks(1), {"lora": {"rank": 4}}, "model.lora"),
        (ranks(1), {"dtype": "float16"}, "model.dtype"),
        (servers({"tensor_parallel": 3}), {}, "resources.sglang.tensor_parallel"),
        (servers({"exchange_folder": "weights"}), {}, "resources.sglang.exchange_folder"),
        (servers({"exchange_folder": "~/weights"}), {}, "resources.sglang.exchange_folder"),
        (servers({"exchange_folder": "/etc/hostname"}), {}, "resources.sglang.exchange_folder"),
        (servers({"exchange_folder": "/tmp/a\0b"}), {}, "resources.sglang.exchange_folder"),  # noqa: S108
        ({}, {"lora": {"rank": 512}}, "model.lora.rank"),
        ({}, {"lora": {"rank": 4, "targets": ["wq"]}}, "model.lora.targets"),
        ({}, {"attention": "flash"}, "model.attention"),
        ({}, {"context_tokens": 1 << 20}, "model.context_tokens"),
    ],
)
def test_what_model_and_backend_cannot_do_together_is_refused_in_preflight(
    monkeypatch: pytest.MonkeyPatch, document: dict[str, Any], model: dict[str, Any], field: str
) -> None:
    fields = [problem.field for problem in found_in(document | {"model": MODEL | model})]
    fields = fields or [problem.field for problem in lacks(monkeypatch, document, **model)]
    assert field in fields


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_bfloat16_trains_on_processors_too(monkeypatch: pytest.MonkeyPatch, dtype: str) -> None:
    assert lacks(monkeypatch, {}, dtype=dtype) == []
    assert lacks(monkeypatch, {}, dtype=dtype, gradient_checkpointing=True) == []
    assert lacks(monkeypatch, ranks(1, {"recompute": "attention"}), dtype=dtype) == []


def test_all_that_preflight_finds_of_both_backends_is_shown_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    both = {"generator": "sglang", "sglang": {"tensor_parallel": 3, "exchange_folder": "weights"}}
    found = lacks(monkeypatch, ranks(9, {"tensor": 3, "pipeline": 3}, **both), dtype="float16")
    assert {problem.field for problem in found} >= {
        "resources.megatron.tensor",
        "resources.megatron.pipeline",
        "resources.sglang.tensor_parallel",
        "resources.sglang.exchange_folder",
        "model.dtype",
    }


@pytest.mark.parametrize(
    "url",
    [
        "http://10.0.0.5:99999",
        "http://10.0.0.5:0",
        "http://host:abc",
        "http://host:",
        "http://:30000",
        "http://...",
        "http://[fd00::5:30000",
        "http://fd00::5:30000",
        "http://]:[",
        "http://a:1:2",
        "ftp://host:1",
        "10.0.0.5:30000",
        "host",
        "",
        " http://host:1",
        "http://host:1?key=x",
    ],
)
def test_what_is_no_address_of_a_server_is_refused(url: str) -> None:
    assert_refused(named([url]), "resources.sglang.urls.0")


@pytest.mark.parametrize("url", [URL, "https://gpu-7.cluster.local:443", "http://[fd00::5]:30000", "http://localhost"])
def test_addresses_that_clusters_have_are_taken(url: str) -> None:
    assert found_in(named([url])) == []


@pytest.mark.parametrize("url", [URL + "/v1", URL + "/", "10.0.0.5:30000", "http://10.0.0.5:30000?x=1"])
def test_the_remedy_for_an_address_says_what_an_address_looks_like(url: str) -> None:
    problem = only_problem(named([url]))
    assert "http://" in problem.remedy, str(problem)
    assert not INTERNAL.search(str(problem)), str(problem)


def test_a_password_in_an_address_is_not_shown_again_and_the_keys_have_their_place() -> None:
    problem = only_problem(named(["http://me:geheim@10.0.0.5:30000"]))
    assert problem.field == "resources.sglang.urls.0"
    assert "geheim" not in str(problem)
    assert "PALESTRA_SGLANG_KEYS" in problem.remedy


@pytest.mark.parametrize(
    "urls",
    [
        [URL, URL],
        ["http://gpu-7:30000", "http://GPU-7:30000"],
        ["http://gpu-7", "http://gpu-7:80"],
        ["https://gpu-7", "https://gpu-7:443"],
    ],
)
def test_the_same_server_twice_is_refused(urls: list[str]) -> None:
    assert_refused(named(urls), "resources.sglang.urls", "twice")


def test_servers_by_one_address_that_is_no_list_are_refused() -> None:
    assert_refused(named(URL), "resources.sglang.urls", "list")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("servers", 2),
        ("tensor_parallel", 2),
        ("flags", ["page-size=16"]),
        ("memory_fraction", 0.5),
        ("restarts", 9),
    ],
)
def test_what_only_started_servers_have_is_refused_beside_urls(field: str, value: Any) -> None:
    assert_refused(named([URL], **{field: value}), f"resources.sglang.{field}", "urls")


def test_a_run_on_named_servers_is_read_again_as_it_was_written() -> None:
    spec = RunSpec.model_validate({"name": "x"} | named([URL]))
    assert RunSpec.model_validate_json(spec.model_dump_json()) == spec


@pytest.mark.parametrize("sglang", [{"servers": 4}, {"tensor_parallel": 2}, {"urls": [URL], "weights": "tensor"}])
def test_servers_that_a_run_of_torch_would_never_start_or_ask_are_refused(sglang: dict[str, Any]) -> None:
    problem = only_problem(resources(sglang=sglang))
    assert problem.field in {"resources.sglang", "resources.generator"}
    assert 'generator = "sglang"' in problem.remedy


@pytest.mark.parametrize("flag", ["--page-size=16", "--disable-radix-cache", "page-size 16"])
def test_the_remedy_for_a_flag_says_how_flags_are_written(flag: str) -> None:
    problem = only_problem(servers({"flags": [flag]}))
    assert problem.field == "resources.sglang.flags.0"
    assert "letters, digits, spaces" not in problem.remedy, problem.remedy
    assert not INTERNAL.search(str(problem)), str(problem)


@pytest.mark.parametrize("flag", ["tp-size=8", "model-path=x", "trust-remote-code", "mem-fraction-static=0.5"])
def test_a_flag_that_a_run_may_not_set_is_refused_with_those_that_it_may(flag: str) -> None:
    assert_refused(servers({"flags": [flag]}), "resources.sglang.flags.0", "max-running-requests")


@pytest.mark.parametrize(
    ("document", "field", "word"),
    [
        (servers(more={"decoders": 4}), "resources.decoders", "torch"),
        (servers(more={"batch_delay_ms": 5}), "resources.batch_delay_ms", "torch"),
        (servers(more={"generators": 2}), "resources.generators", "servers"),
        (servers({"weights": "broadcast"}, model=ADAPTED), "resources.sglang.weights", "merged"),
        (servers(model={"kind": "builtin"}), "resources.generator", "pretrained"),
        (servers({"urls": [URL]}), "resources.sglang.exchange_folder", "tensor"),
        (servers() | schedule(async_ratio=1, multiplexing=True), "schedule.multiplexing", "nothing to share"),
        (resources(decoders=2, device="cuda"), "resources.decoders", 'device = "cpu"'),
        (resources(decoders=8, kv_slots=4), "resources.decoders", "at most 4"),
        (resources(threads_share="micro-batches", trainer_ranks=2), "resources.threads_share", "one rank"),
        (resources(threads_share="micro-batches", device="cuda"), "resources.threads_share", "operations"),
        (ranks(1, threads_share="micro-batches"), "resources.threads_share", "torch"),
        ({"model": {"kind": "builtin", "lora": {"rank": 4}}}, "model.lora", "remove it"),
        ({"model": MODEL | {"lora": {"targets": []}}}, "model.lora.targets", "all-linear"),
    ],
)
def test_settings_of_one_backend_are_refused_with_another(document: dict[str, Any], field: str, word: str) -> None:
    assert_refused(document, field, word)


@pytest.mark.parametrize(
    "document",
    [
        resources(threads=1, threads_share="micro-batches"),
        resources(decoders=3, kv_slots=64, threads=8),
        resources(kv_slots=2),
        schedule(async_ratio=2) | {"evaluation": {"every": 0}},
        schedule(async_ratio=2) | {"recipe": {"preset": "spear-grpo"}},
        schedule(async_ratio=1) | {"recipe": {"preset": "ppo"}},
        schedule(async_ratio=16, steps=2),
        schedule(redundant_members=2, redundant_groups=2),
        schedule(async_ratio=1, weight_exchange="episode-borders"),
        schedule(async_ratio=1, multiplexing=True, multiplexing_hold_s=0),
        schedule(group_size=1, minibatch_trajectories=32, redundant_members=3, async_ratio=1)
        | {"recipe": {"preset": "ppo"}},
        ranks(8, {"tensor": 2, "pipeline": 2, "distributed_optimizer": True}, threads=8),
        ranks(3) | schedule(prompts_per_step=4, group_size=4, minibatch_trajectories=16),
        named([URL], start_timeout_s=60),
        ranks(2, {"tensor": 2}, generator="sglang", device="cuda", sglang={"servers": 2}),
    ],
)
def test_what_is_unusual_and_works_is_taken(document: dict[str, Any]) -> None:
    assert [str(problem) for problem in found_in(document)] == []


@pytest.mark.parametrize(
    ("document", "field", "word"),
    [
        (
            schedule(async_ratio=2) | {"recipe": {"expert_starts": {"how": {"kind": "sequential"}}}},
            "schedule.async_ratio",
            "async_ratio = 0",
        ),
        *(
            (
                schedule(**{name: 1}) | {"recipe": {"expert_starts": {"how": {"kind": "sequential"}}}},
                f"schedule.{name}",
                f"use {name} = 0",
            )
            for name in ("redundant_members", "redundant_groups")
        ),
        (
            schedule(async_ratio=4) | {"recipe": {"preset": "spear-grpo", "self_imitation": {"max_age_steps": 2}}},
            "recipe.self_imitation.max_age_steps",
            "at least 4",
        ),
        (
            schedule(async_ratio=4) | {"environment": {"response": {"release_within_steps": 2}}},
            "environment.response.release_within_steps",
            "async_ratio",
        ),
        (schedule(async_ratio=2) | {"recipe": {"preset": "sft"}}, "schedule.async_ratio", "0"),
        (schedule(async_ratio=2) | {"recipe": {"preset": "evaluate"}}, "schedule.async_ratio", "0"),
        (schedule(redundant_members=2) | {"recipe": {"preset": "sft"}}, "schedule.redundant_members", "0"),
        (schedule(redundant_groups=2) | {"recipe": {"preset": "evaluate"}}, "schedule.redundant_groups", "0"),
        (schedule(async_ratio=17), "schedule.async_ratio", "at most 16"),
        (schedule(redundant_groups=33), "schedule.redundant_groups", "at most 32"),
        (schedule(redundant_members=5000), "schedule.redundant_members", "at most 1024"),
        (
            schedule(group_size=1, minibatch_trajectories=32, redundant_members=7),
            "schedule.group_size",
            "at least 2",
        ),
        (schedule(multiplexing=True), "schedule.multiplexing", "async_ratio of at least 1"),
        (
            schedule(multiplexing=True, async_ratio=1, weight_exchange="episode-borders"),
            "schedule.multiplexing",
            "in-flight",
        ),
        (
            schedule(multiplexing=True, async_ratio=1, multiplexing_hold_s=300),
            "schedule.multiplexing_hold_s",
            "stall_timeout_s = 300",
        ),
        (
            schedule(multiplexing=True, async_ratio=1, multiplexing_hold_s=200) | resources(generators=2),
            "schedule.multiplexing_hold_s",
            "stall_timeout_s = 300",
        ),
        (
            schedule(multiplexing=True, async_ratio=1)
            | resources(device="cuda", generators=2, placement={"generator": "apart"}),
            "schedule.multiplexing",
            "nothing to share",
        ),
    ],
)
def test_a_schedule_that_cannot_hold_is_refused_with_the_remedy(
    document: dict[str, Any], field: str, word: str
) -> None:
    assert_refused(document, field, word)


def judged(endpoint: str) -> dict[str, Any]:
    judge = {"kind": "llm", "endpoint": endpoint, "model": "m"}
    return {"recipe": {"credit": {"kind": "attribution", "judge": judge}}}


def test_a_judge_on_the_very_server_whose_weights_are_exchanged_is_refused() -> None:
    problem = only_problem(named([URL]) | judged(URL + "/v1"))
    assert problem.field in {"recipe.credit.judge.endpoint", "resources.sglang.urls"}
    assert "resources.judge" in problem.remedy


def test_a_judge_elsewhere_or_of_its_own_stands_beside_servers_that_are_named() -> None:
    assert found_in(named([URL]) | judged("http://10.0.0.9:30000/v1")) == []
    own = servers({"urls": [URL], "weights": "tensor"}, more={"judge": {"path": "a-judge"}})
    assert found_in(own | judged("resources.judge")) == []


@pytest.mark.parametrize(
    ("document", "fields"),
    [
        (
            resources(threads=0, decoders=0, placement={"rollout_cpus": -1}) | schedule(async_ratio=-1),
            {
                "resources.threads",
                "resources.decoders",
                "resources.placement.rollout_cpus",
                "schedule.async_ratio",
            },
        ),
        (
            resources(decoders=8, kv_slots=4, trainer_ranks=2, threads_share="micro-batches"),
            {"resources.decoders", "resources.threads_share"},
        ),
        (
            schedule(multiplexing=True, minibatch_trajectories=7),
            {"schedule.multiplexing", "schedule.minibatch_trajectories"},
        ),
        (
            servers({"urls": [URL, URL], "servers": 3, "weights": "tensor"}),
            {"resources.sglang.urls", "resources.sglang.servers"},
        ),
        (
            ranks(6, {"tensor": 4}) | schedule(prompts_per_step=5, minibatch_trajectories=7),
            {"resources.trainer_ranks", "schedule.minibatch_trajectories"},
        ),
        (
            ranks(6, {"tensor": 4}) | {"recipe": {"preset": "ppo"}},
            {"resources.trainer_ranks", "resources.trainer"},
        ),
    ],
    ids=["ranges", "two of resources", "two of schedule", "two of sglang", "two tables", "ranks and critic"],
)
def test_of_several_mistakes_all_are_shown(document: dict[str, Any], fields: set[str]) -> None:
    assert {problem.field for problem in found_in(document)} >= fields


def test_a_long_key_does_not_flood_the_log() -> None:
    assert len(str(only_problem(resources(**{"x" * 5000: 1})))) < 1000


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("resources.sglang.servers = 1e1", "resources.sglang.servers"),
        ("resources.trainer_ranks = 2024-01-01", "resources.trainer_ranks"),
        ("[[resources]]\nthreads = 2", "resources"),
        ("resources.kv_slots = 0x0", "resources.kv_slots"),
        ("resources.batch_delay_ms = inf", "resources.batch_delay_ms"),
    ],
)
def test_what_toml_allows_and_no_run_can_have_is_named_by_its_field(text: str, field: str) -> None:
    document = tomllib.loads(text)
    if field == "resources.sglang.servers":
        document["resources"] |= {"generator": "sglang"}
        assert found_in(document | {"model": MODEL}) == [], "10.0 is a whole number"
    else:
        assert_refused(document, field)


def changed(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    old, new = (RunSpec.model_validate({"name": "x"} | document) for document in (before, after))
    return [problem.field for problem in differing_fields(old, new)]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (resources(trainer_ranks=1), resources(trainer_ranks=8)),
        (resources(), resources(generators=4)),
        (resources(), resources(placement={"generator": "apart", "rollout_cpus": 4})),
        (ranks(4, {"tensor": 2}), ranks(8, {"pipeline": 2, "distributed_optimizer": True})),
        (named([URL]), named(["http://10.0.0.9:30000"])),
        (servers({"servers": 2}), servers({"servers": 4, "start_timeout_s": 1200.0})),
        (resources(kv_slots=64), resources(kv_slots=32)),
        ({"model": MODEL | {"microbatch_tokens": 16384}}, {"model": MODEL | {"microbatch_tokens": 8192}}),
        ({"model": MODEL}, {"model": MODEL | {"gradient_checkpointing": True}}),
        (schedule(stall_timeout_s=300), schedule(stall_timeout_s=3000)),
        (schedule(max_attempts=10), schedule(max_attempts=20)),
        (resources(rollout_workers=8), resources(rollout_workers=4)),
    ],
    ids=[
        "ranks",
        "generators",
        "placement",
        "layout",
        "addresses of servers",
        "number of servers",
        "fewer slots",
        "smaller micro-batches",
        "recomputed activations",
        "stall timeout",
        "attempts",
        "rollout workers",
    ],
)
def test_a_run_is_resumed_on_other_machines_and_smaller(before: dict[str, Any], after: dict[str, Any]) -> None:
    assert changed(before, after) == []


@pytest.mark.parametrize(
    ("before", "after", "field"),
    [
        ({"model": MODEL}, ranks(1), "resources.trainer"),
        ({"model": ADAPTED}, {"model": MODEL | {"lora": {"rank": 8}}}, "model.lora.rank"),
        ({"model": MODEL}, {"model": MODEL | {"dtype": "bfloat16"}}, "model.dtype"),
        ({}, schedule(async_ratio=2), "schedule.async_ratio"),
        (schedule(async_ratio=2), {}, "schedule.async_ratio"),
        ({}, schedule(redundant_members=2), "schedule.redundant_members"),
        ({}, {"seed": 7}, "seed"),
    ],
)
def test_what_a_run_learns_by_stays_when_it_is_resumed(before: Any, after: Any, field: str) -> None:
    assert changed(before, after) == [field]


def test_all_that_differs_from_the_checkpoint_is_shown() -> None:
    assert set(changed({}, schedule(async_ratio=2) | {"seed": 7})) == {"schedule.async_ratio", "seed"}


def test_a_folder_of_another_path_is_no_other_layout(tmp_path: Path) -> None:
    here = servers({"exchange_folder": str(tmp_path / "a")})
    assert changed(here, servers({"exchange_folder": str(tmp_path / "b")})) == []
