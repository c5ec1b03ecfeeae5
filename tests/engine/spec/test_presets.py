import tomllib
from pathlib import Path
from typing import Any

import pytest

import engine.spec
from engine.spec.knobs import knobs_of
from engine.spec.presets import FAMILIES, preset, preset_names
from engine.spec.recipe import Recipe
from engine.spec.run import RunSpec

WANTED = {
    "grpo", "dr-grpo", "dapo", "rloo", "reinforce-pp", "ppo", "gspo", "cispo", "topr", "gigpo",
    "dr-bot-grpo", "dr-bot-gigpo", "spear-grpo", "spear-gigpo", "spear-dr-bot-grpo", "spear-dr-bot-gigpo",
    "cleaner", "cleaner-7b", "agentevolver-attributing", "agentevolver-navigating",
    "ipa", "ipa-sequential", "sft", "sft-error-masked", "dpo-tool-calls",
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
    assert by_path["objective.dual_clip"].range == "more than 1 or absent"
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
    spear = recipe("paper-spear-webshop")
    assert spear.self_imitation is not None
    assert spear.self_imitation.covariance is not None
    assert (spear.self_imitation.covariance.low, spear.self_imitation.covariance.high) == (2, 60)
    assert (spear.self_imitation.warmup_steps, spear.reward.tool_calls_decay_steps) == (200, 200)
    assert recipe("paper-agentevolver").kl.beta == 0.001  # type: ignore[union-attr]


def test_a_part_of_a_preset_can_be_taken_away() -> None:
    assert recipe("cleaner", purification=None).purification is None


def test_every_preset_file_is_shipped_and_readable() -> None:
    folder = Path(engine.spec.__file__).parent / "presets"
    assert sorted(path.stem for path in folder.glob("*.toml")) == list(preset_names())
    assert all(tomllib.loads(path.read_text())["recipe"] for path in folder.glob("*.toml"))
