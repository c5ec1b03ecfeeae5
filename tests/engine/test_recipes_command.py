"""``python -m engine recipes`` as somebody would type it."""

import json
import subprocess
import sys
import tomllib
from pathlib import Path

from engine.spec.presets import preset_names
from engine.spec.run import RunSpec


def engine(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "engine", *words], capture_output=True, text=True, timeout=60)


def test_the_list_names_every_recipe_with_its_source() -> None:
    reported = engine("recipes").stdout
    assert all(f"  {name} " in reported for name in preset_names())
    assert "CLEANER, section 4" in reported


def test_the_list_for_programs_holds_the_recipes() -> None:
    reported = json.loads(engine("recipes", "--json").stdout)
    assert {entry["name"] for entry in reported} == set(preset_names())
    assert all(entry["recipe"]["objective"]["kind"] for entry in reported)


def test_one_recipe_is_reported_with_defaults_ranges_and_source() -> None:
    reported = engine("recipes", "show", "spear-grpo").stdout
    assert "source: SPEAR, section 4" in reported
    assert "* self_imitation.replay_buffer = 2048  (at least 0, at most 1000000)" in reported
    assert "* reward.wrong = -1.0  default 0.0  (at least -1000000, at most 1000000)" in reported


def test_one_recipe_for_programs_has_its_knobs() -> None:
    reported = json.loads(engine("recipes", "show", "ipa", "--json").stdout)
    assert {"path": "credit.gamma", "value": 0.95}.items() <= next(
        knob for knob in reported["knobs"] if knob["path"] == "credit.gamma"
    ).items()


def test_a_recipe_can_be_written_as_a_run_with_the_papers_schedule(tmp_path: Path) -> None:
    written = engine("recipes", "show", "paper-spear-math", "--run").stdout
    spec = RunSpec.model_validate(tomllib.loads(written))
    assert (spec.schedule.prompts_per_step, spec.schedule.group_size) == (128, 16)
    (tmp_path / "run.toml").write_text(written)
    assert engine("check", str(tmp_path / "run.toml")).returncode == 0


def test_an_unknown_recipe_is_refused_with_those_that_there_are() -> None:
    refused = engine("recipes", "show", "grop")
    assert refused.returncode == 2
    assert refused.stderr.startswith("preset = 'grop': there is no preset of this name; use one of: agentevolver")
    assert refused.stdout == ""


def test_a_reader_who_has_seen_enough_is_no_error() -> None:
    command = f"{sys.executable} -m engine recipes show spear-dr-bot-gigpo | head -n 1"
    done = subprocess.run(["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("spear-dr-bot-gigpo: ")
