import tomllib
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

import engine.spec
from engine.spec.annotations import models_in
from engine.spec.docstrings import descriptions_of
from engine.spec.knobs import knobs_of
from engine.spec.presets import FAMILIES, preset, preset_names
from engine.spec.recipe import Recipe
from engine.spec.run import RunSpec

WANTED = {
    "grpo", "dr-grpo", "dapo", "rloo", "reinforce-pp", "ppo", "gspo", "cispo", "topr", "gigpo",
    "dr-bot-grpo", "dr-bot-gigpo", "spear-grpo", "spear-gigpo", "spear-dr-bot-grpo", "spear-dr-bot-gigpo",
    "cleaner", "cleaner-7b", "agentevolver-attributing", "agentevolver-navigating",
    "ipa", "ipa-sequential", "sft", "sft-error-masked", "sft-chat", "sft-two-stage", "cpt", "cpt-two-stage",
    "dpo-tool-calls", "cleaner-dpo", "evaluate",
}  # fmt: skip


def recipe(name: str, **more: Any) -> Recipe:
    return Recipe.model_validate({"preset": name, **more})


def test_every_named_method_has_a_preset() -> None:
    assert set(preset_names()) >= WANTED


@pytest.mark.parametrize("name", preset_names())
def test_a_preset_makes_a_whole_run_that_survives_being_written_down(name: str) -> None:
    spec = RunSpec.model_validate({"name": "one", "recipe": {"preset": name}})
    assert RunSpec.model_validate_json(spec.model_dump_json()) == spec
    assert spec.recipe.preset == name


@pytest.mark.parametrize("name", preset_names())
def test_a_preset_names_its_source_and_family(name: str) -> None:
    assert preset(name).about
    assert preset(name).source
    assert preset(name).family in FAMILIES


@pytest.mark.parametrize("name", preset_names())
def test_every_knob_has_a_range_and_its_own_words(name: str) -> None:
    knobs = knobs_of(preset(name))
    assert [knob.path for knob in knobs if not knob.range] == []
    assert [knob.path for knob in knobs if knob.path.endswith("kind") and not knob.help] == []
    assert {knob.path for knob in knobs} >= {"credit.kind", "objective.kind", "optimizer.learning_rate"}


def test_what_a_preset_sets_is_told_apart_from_defaults() -> None:
    by_path = {knob.path: knob for knob in knobs_of(preset("dr-bot-grpo"))}
    assert by_path["objective.dual_clip"].is_set
    assert (by_path["objective.dual_clip"].value, by_path["objective.dual_clip"].default) == (10.0, None)
    assert by_path["objective.dual_clip"].range == "more than 1, at most 1e+30 or absent"
    assert not by_path["optimizer.learning_rate"].is_set
    assert "gigpo" in by_path["credit.kind"].range


def test_presets_that_differ_in_one_idea_differ_in_that_alone() -> None:
    dapo = recipe("dapo", objective={"dual_clip": 10.0}, purification=recipe("cleaner").purification)
    assert dapo.model_dump(exclude={"preset"}) == recipe("cleaner").model_dump(exclude={"preset"})
    assert recipe("spear-grpo").self_imitation == recipe("spear-dr-bot-gigpo").self_imitation
    assert recipe("dr-bot-gigpo").selection == recipe("spear-dr-bot-grpo").selection


def test_cleaner_7b_is_cleaner_on_seven_tenths_of_the_trajectories() -> None:
    seven, four = recipe("cleaner-7b"), recipe("cleaner")
    assert (four.purification.share, seven.purification.share) == (1.0, 0.7)  # type: ignore[union-attr]
    same = {"preset", "purification"}
    assert seven.model_dump(exclude=same) == four.model_dump(exclude=same)


def test_the_papers_tables_are_as_printed() -> None:
    cleaner = preset("paper-cleaner-4b")
    assert recipe("paper-cleaner-4b").optimizer.learning_rate == 2e-6
    assert recipe("paper-cleaner-4b").optimizer.warmup_steps == 20
    assert (cleaner.paper_schedule["prompts_per_step"], cleaner.paper_schedule["group_size"]) == (128, 16)
    assert cleaner.paper_evaluation == {"temperature": 1.0, "top_p": 0.6, "top_k": 0}
    spear = recipe("paper-spear-webshop")
    assert spear.self_imitation is not None
    assert spear.self_imitation.covariance is not None
    assert (spear.self_imitation.covariance.low, spear.self_imitation.covariance.high) == (2, 60)
    assert (spear.self_imitation.warmup_steps, spear.reward.tool_calls_decay_steps) == (200, 200)
    assert recipe("paper-agentevolver").kl.beta == 0.001  # type: ignore[union-attr]


# task: prompts, group, trajectories per minibatch, steps, temperature, top_p, turns, prompt and response tokens,
# T_warm-up, omega_lb, omega_ub
TABLE_8 = {
    "alfworld": (32, 8, 256, 200, 0.4, 1, 50, 2048, 512, 100, 2, 60),
    "webshop": (32, 8, 256, 350, 0.4, 1, 15, 4096, 1024, 200, 2, 60),
    "math": (128, 16, 32 * 16, 300, 1.0, 0.6, 8, 2048, 16384, 300, 1, 40),
    "sokoban": (32, 8, 64, 200, 0.4, 1, 15, 1024, 1024, 100, 2, 60),
    "searchr1": (128, 16, 32 * 16, 300, 1.0, 0.6, 32, 2048, 30000, 300, 1, 40),
}


@pytest.mark.parametrize("task", TABLE_8)
def test_spears_table_8_is_as_printed(task: str) -> None:
    reported, made = preset(f"paper-spear-{task}").paper, recipe(f"paper-spear-{task}")
    imitation = made.self_imitation
    assert imitation is not None
    assert imitation.covariance is not None
    schedule = [
        reported["schedule"][key] for key in ("prompts_per_step", "group_size", "minibatch_trajectories", "steps")
    ]
    beside = [
        reported["schedule"]["temperature"],
        reported["schedule"]["top_p"],
        reported["turns"],
        reported["prompt_tokens"],
    ]
    bounds = [imitation.warmup_steps, imitation.covariance.low, imitation.covariance.high]
    assert (*schedule, *beside, reported["response_tokens"], *bounds) == TABLE_8[task]
    same = (made.optimizer.learning_rate, made.reward.tool_calls_decay_steps, made.kl, made.selection.keep_groups)
    assert same == (1e-6, 200, None, 0.75)
    buffers = (imitation.replay_buffer, imitation.baseline_buffer, imitation.covariance.share)
    assert buffers == (2048, 10240, 0.02)
    objective = made.objective.model_dump(include={"clip_low", "clip_high", "dual_clip", "aggregation"})
    assert list(objective.values()) == [0.2, 0.28, 10, "seq-mean-token-sum-norm"]
    assert made.credit.model_dump() in ({"kind": "dr-grpo"}, {**made.credit.model_dump(), "scale_by_std": False})


def test_a_part_that_is_absent_says_of_which_kinds_it_may_be() -> None:
    by_path = {knob.path: knob for knob in knobs_of(preset("grpo"))}
    assert by_path["objective.covariance"].range == "a table of kind clip or kl or absent"
    assert by_path["purification"].range == "a table or absent"


@pytest.mark.parametrize(
    ("name", "path", "kinds"),
    [
        ("spear-grpo", "self_imitation.covariance.kind", "clip"),
        ("ipa", "expert_starts.how.kind", "sequential, parallel"),
        ("agentevolver-attributing", "credit.judge.kind", "rules, llm"),
    ],
)
def test_of_a_kind_only_those_are_reported_that_are_taken_there(name: str, path: str, kinds: str) -> None:
    [knob] = [item for item in knobs_of(preset(name)) if item.path == path]
    assert knob.range == f"one of: {kinds}"
    part, table = path.split(".")[:2]
    for kind in kinds.split(", "):
        needs = {"endpoint": "http://judge/v1", "model": "m"} if kind == "llm" else {}
        assert recipe(name, **{part: {table: {"kind": kind, **needs}}})


def test_every_field_of_a_recipe_says_what_it_does() -> None:
    reported: set[type[BaseModel]] = set()

    def silent(model: type[BaseModel]) -> list[str]:
        if model in reported:
            return []
        reported.add(model)
        fields, described = model.model_fields.items(), descriptions_of(model)
        here = [f"{model.__name__}.{name}" for name, _ in fields if name != "kind" and not described.get(name)]
        return [*here, *(item for _, info in fields for inner in models_in(info.annotation) for item in silent(inner))]

    assert silent(Recipe) == []
    assert all(model.__doc__ for model in reported)


def test_a_part_of_a_preset_can_be_taken_away() -> None:
    assert recipe("cleaner", purification=None).purification is None


def test_every_preset_file_is_shipped_and_readable() -> None:
    folder = Path(engine.spec.__file__).parent / "presets"
    assert sorted(path.stem for path in folder.glob("*.toml")) == list(preset_names())
    assert all(tomllib.loads(path.read_text())["recipe"] for path in folder.glob("*.toml"))
