"""The documents of the repository are valid, and a spec survives the ways it travels."""

import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from engine.loop.state import RunState
from engine.spec.impossible import AS_STORED
from engine.spec.launch import Launch
from engine.spec.model import BuiltinModel
from engine.spec.problems import problems_in
from engine.spec.recipe import Recipe
from engine.spec.run import RunSpec

ROOT = Path(__file__).parents[3]
TOMLS = sorted(path for folder in ("engine", "webapp", "docs") for path in (ROOT / folder).rglob("*.toml"))


@pytest.mark.parametrize("path", TOMLS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_toml_of_the_repository_is_a_valid_run_or_recipe(path: Path) -> None:
    document = tomllib.loads(path.read_text())
    if "name" in document:
        RunSpec.model_validate(document)
    else:
        Recipe.model_validate(document["recipe"])


def test_what_is_given_beside_a_preset_overrides_it() -> None:
    recipe = Recipe.model_validate({"preset": "rloo", "objective": {"clip_high": 0.3}, "credit": {"kind": "dr-grpo"}})
    assert (recipe.objective.clip_high, recipe.objective.clip_low) == (0.3, 0.2)
    assert recipe.objective.aggregation == "seq-mean-token-sum"
    assert recipe.credit.kind == "dr-grpo"


def test_a_spec_that_travelled_as_json_is_the_same_spec() -> None:
    spec = RunSpec.model_validate({"name": "there and back", "recipe": {"preset": "dr-grpo"}, "seed": 7})
    assert RunSpec.model_validate_json(spec.model_dump_json()) == spec


def test_a_spec_that_was_taken_once_is_not_asked_again_by_what_it_is_put_into() -> None:
    document = {"name": "taken once", "schedule": {"minibatch_trajectories": 7}}
    with pytest.raises(ValidationError, match="do not divide into minibatches of 7"):
        RunSpec.model_validate(document)
    spec = RunSpec.model_validate(document, context=AS_STORED)
    launch = Launch(run_id="r", attempt=2, spec=spec, ingest_url="u", token="t", run_dir="d")
    assert launch.spec is RunState(spec=spec).spec is spec
    with pytest.raises(ValidationError, match="do not divide into minibatches of 7"):
        Launch.model_validate(launch.model_dump())


def test_a_spec_cannot_be_changed() -> None:
    with pytest.raises(ValidationError):
        RunSpec(name="fixed").seed = 3  # type: ignore[misc]


ENDPOINT = {"endpoint": "http://127.0.0.1:30000/v1", "model": "judge"}
REQUIRED: dict[str, dict[str, Any]] = {
    "RunSpec": {"name": "n"},
    "Recordings": {"file": "recorded.jsonl"},
    "Chat": {"file": "chat.jsonl"},
    "Text": {"file": "text.jsonl"},
    "Revisiting": {"stage": 1},
    "Rule": {"name": "r", "action": "deny", "hosts": ("a.example.org",)},
    "LlmJudge": ENDPOINT,
    "JudgeServers": {"path": "judge"},
    "ChatEndpoint": ENDPOINT,
    "Rubric": {"rubric": "10 points for a right answer", "judge": ENDPOINT},
    "PythonFunction": {"source": "def verify(result, row): return True"},
    "McpServer": {"name": "calc", "command": ["python3", "calc.py"]},
    "SandboxFile": {"path": "calc.py", "content": ""},
    "Component": {"name": "brief"},
    "ComponentSchedule": {"component": "brief", "last_step": 100},
    "Experience": {"pool": [{"when_to_use": "always", "content": "look first"}]},
    "Imported": {"path": "package.module:Name"},
    "Package": {"path": "package"},
    "Gem": {"env_id": "game:Sokoban-v0-easy", "python": "/opt/gem/bin/python"},
    "VerifiersTaskset": {"taskset": "package.taskset:Taskset", "python": "/opt/verifiers/bin/python"},
    "OpenEnv": {"url": "http://127.0.0.1:8000"},
    "Terminal": {"tasks": "tasks"},
    "Mixture": {"parts": [{"name": "a"}, {"name": "b"}]},
    "MixturePart": {"name": "a"},
    "Agent": {"agent": {"command": ["true"]}},
    "AgentProgram": {"command": ["true"]},
    "AgentFile": {"path": "agent.py", "content": ""},
    "AgentFolder": {"path": "agent"},
    "AgentVariable": {"name": "DEBUG", "value": "1"},
    "PretrainedModel": {"path": "models/tiny"},
    "CheckpointModel": {"run": "another run"},
    "PinnedFile": {"file": "table.jsonl"},
    "ExperienceItem": {"when_to_use": "always", "content": "look first"},
}
"""What has no default because only its author can know it."""


def nested_models(model: type[BaseModel]) -> set[type[BaseModel]]:
    found = {model}
    for field in model.model_fields.values():
        for inner in (field.annotation, *getattr(field.annotation, "__args__", ())):
            if isinstance(inner, type) and issubclass(inner, BaseModel):
                found |= nested_models(inner)
    return found


@pytest.mark.parametrize("model", sorted(nested_models(RunSpec), key=lambda model: model.__name__))
def test_every_table_of_a_spec_rejects_unknown_fields_and_has_defaults_in_range(model: type[BaseModel]) -> None:
    assert model.model_config["extra"] == "forbid"
    defaults = {name: field.default for name, field in model.model_fields.items() if not field.is_required()}
    required = REQUIRED.get(model.__name__, {})
    model.model_validate(
        {name: value for name, value in defaults.items() if not isinstance(value, BaseModel)} | required
    )


def test_supervised_steps_are_those_of_all_stages_or_depend_on_the_data() -> None:
    assert Recipe(stages=[]).supervised_steps == 0
    assert Recipe(stages=[{"steps": 3}, {"steps": 4}]).supervised_steps == 7
    assert Recipe(stages=[{"steps": 3}, {"epochs": 2}]).supervised_steps is None


HUGE = 10**31


def _numbers(document: dict[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for key, value in document.items():
        if isinstance(value, dict):
            yield from _numbers(value, (*path, key))
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            yield (*path, key)


def _with(document: dict[str, Any], path: tuple[str, ...], value: Any) -> dict[str, Any]:
    if not path:
        return value
    return {**document, path[0]: _with(document[path[0]], path[1:], value)}


@pytest.mark.parametrize("preset", ["grpo", "ppo", "spear-gigpo", "cleaner", "ipa", "agentevolver-attributing"])
def test_no_number_may_be_beyond_all_measure(preset: str) -> None:
    document = RunSpec.model_validate({"name": "huge", "recipe": {"preset": preset}}).model_dump(mode="json")
    paths = list(_numbers(document))
    assert ("schedule", "steps") in paths
    for path in paths:
        with pytest.raises(ValidationError):
            RunSpec.model_validate(_with(document, path, HUGE))


def test_a_step_of_more_rollouts_than_fit_anywhere_is_refused() -> None:
    schedule = {"prompts_per_step": 10**6, "group_size": 2, "minibatch_trajectories": 2}
    with pytest.raises(ValidationError, match="more than 1000000"):
        RunSpec.model_validate({"name": "wide", "schedule": schedule})


def test_intrinsic_rewards_of_a_recipe_that_pays_no_call_are_refused() -> None:
    credit = {"kind": "chunk-return", "intrinsic": True}
    with pytest.raises(ValidationError) as refused:
        Recipe.model_validate({"credit": credit})
    [problem] = problems_in(refused.value, Recipe)
    assert (problem.field, problem.value) == ("credit.intrinsic", True)
    assert "set reward.tool_error or reward.tool_calls" in problem.remedy
    for reward in ({"tool_error": -0.1}, {"tool_calls": 0.5}):
        Recipe.model_validate({"credit": credit, "reward": reward})


@pytest.mark.parametrize(
    ("environment", "vocabulary"),
    [({}, "characters"), ({"id": "python-math"}, "characters"), ({"id": "household"}, "household")],
)
def test_a_spec_that_names_no_vocabulary_gets_the_one_that_suits_its_environment(
    environment: dict[str, Any], vocabulary: str
) -> None:
    context = {"context_tokens": 1024}
    document: dict[str, Any] = {"name": "x", "environment": environment, "model": context}
    assert RunSpec.model_validate(document).model.vocabulary == vocabulary
    assert RunSpec.model_validate(document | {"model": BuiltinModel(**context)}).model.vocabulary == vocabulary  # type: ignore[arg-type]
    named = RunSpec.model_validate(document | {"model": context | {"vocabulary": "sokoban"}})
    assert named.model.vocabulary == "sokoban"
    assert RunSpec.model_validate_json(named.model_dump_json()) == named


@pytest.mark.parametrize(
    ("schedule", "recipe", "field", "remedy"),
    [
        (
            {"async_ratio": 1},
            {"preset": "ipa", "expert_starts": {"how": {"kind": "sequential"}}},
            "schedule.async_ratio",
            'use async_ratio = 0, or recipe.expert_starts.how.kind = "parallel"',
        ),
        (
            {"async_ratio": 4},
            {"preset": "spear-grpo", "self_imitation": {"max_age_steps": 3}},
            "recipe.self_imitation.max_age_steps",
            "use a max_age_steps of at least 4, or a smaller async_ratio",
        ),
        ({"redundant_groups": 33}, {"preset": "grpo"}, "schedule.redundant_groups", "use at most 32"),
        (
            {"async_ratio": 16, "prompts_per_step": 10_000, "minibatch_trajectories": 8},
            {"preset": "grpo"},
            "schedule.async_ratio",
            "use a smaller async_ratio, prompts_per_step or redundancy",
        ),
    ],
)
def test_a_ratio_that_a_recipe_or_a_machine_cannot_have_is_refused_with_its_remedy(
    schedule: dict[str, Any], recipe: dict[str, Any], field: str, remedy: str
) -> None:
    document = {"name": "x", "environment": {"id": "household"}, "schedule": schedule, "recipe": recipe}
    with pytest.raises(ValidationError) as refused:
        RunSpec.model_validate(document)
    [problem] = problems_in(refused.value, RunSpec)
    assert (problem.field, problem.remedy) == (field, remedy)
    fits = schedule | {"async_ratio": 0, "redundant_groups": 0}
    RunSpec.model_validate(document | {"schedule": fits})
