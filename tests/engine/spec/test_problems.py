"""Whoever writes a spec that cannot work is told which field, which value, and what to do."""

import re
from typing import Any

import pytest
from pydantic import ValidationError

from engine.spec.problems import Problem, problems_in
from engine.spec.run import RunSpec


def problems(**given: Any) -> list[Problem]:
    with pytest.raises(ValidationError) as caught:
        RunSpec.model_validate({"name": "bad", **given})
    return problems_in(caught.value, RunSpec)


def problem(**given: Any) -> Problem:
    [one] = problems(**given)
    return one


CASES: list[tuple[dict[str, Any], str, Any, str, str]] = [
    ({"schedul": {}}, "schedul", {}, "not permitted", "did you mean 'schedule'?"),
    ({"schedule": {"group_sizes": 8}}, "schedule.group_sizes", 8, "not permitted", "did you mean 'group_size'?"),
    ({"environment": {"sandbox": {"memory": 5}}}, "environment.sandbox.memory", 5, "not permitted", "'memory_mib'"),
    ({"recipe": {"objective": {"clip_lo": 1}}}, "recipe.objective.clip_lo", 1, "not permitted", "'clip_low'"),
    ({"model": {"zzz": 1}}, "model.zzz", 1, "not permitted", "known here: architecture, context_tokens"),
    ({"schedule": {"steps": "many"}}, "schedule.steps", "many", "valid integer", "give a whole number"),
    ({"seed": 1.5}, "seed", 1.5, "valid integer", "give a whole number"),
    ({"seed": -1}, "seed", -1, "greater than or equal to 0", "at least 0"),
    ({"model": 5}, "model", 5, "dictionary", "give a table"),
    ({"environment": None}, "environment", None, "dictionary", "give a table"),
    ({"environment": {"levels": "all"}}, "environment.levels", "all", "list", "give a list"),
    ({"environment": {"levels": [5]}}, "environment.levels.0", 5, "less than or equal to 4", "at most 4"),
    ({"environment": {"id": "chess"}}, "environment.id", "chess", "'python-math'", "use one of: 'python-math'"),
    ({"resources": {"device": "tpu"}}, "resources.device", "tpu", "'cpu' or 'cuda'", "use one of"),
    ({"recipe": {"credit": {"kind": "a2c"}}}, "recipe.credit.kind", "a2c", "'a2c'", "'grpo', 'dr-grpo', 'rloo'"),
    ({"recipe": {"credit": {}}}, "recipe.credit.kind", "(missing)", "kind", "add 'kind'"),
    ({"recipe": {"preset": "best"}}, "recipe.preset", "best", "no preset 'best'", "dr-grpo, evaluate, gigpo, grpo"),
    (
        {"schedule": {"group_size": 1, "minibatch_trajectories": 32}},
        "schedule.group_size",
        1,
        "nothing to compare",
        "use at least 2",
    ),
    (
        {
            "recipe": {"credit": {"kind": "reinforce-pp", "group_baseline": True}},
            "schedule": {"group_size": 1, "minibatch_trajectories": 32},
        },
        "schedule.group_size",
        1,
        "nothing to compare",
        "use at least 2",
    ),
    ({"recipe": {"reward": {"wrong": 1.5}}}, "recipe.reward.wrong", 1.5, "paid more than success", "use at most 1"),
    (
        {"recipe": {"preset": "dpo-tool-calls", "purification": {"share": 0}}},
        "recipe.purification.share",
        0.0,
        "there are none",
        "greater than 0",
    ),
    (
        {"schedule": {"minibatch_trajectories": 7}},
        "schedule.minibatch_trajectories",
        7,
        "256 trajectories",
        "use a divisor of 256",
    ),
    ({"model": {"heads": 4, "kv_heads": 3}}, "model.kv_heads", 3, "share", "choose a divisor of 4"),
    ({"model": {"head_dim": 25}}, "model.head_dim", 25, "even", "use 26"),
    ({"evaluation": {"tasks": 600}}, "evaluation.tasks", 600, "only 510", "use at most 510"),
    (
        {"dataset": {"heldout_tasks": 80}, "evaluation": {"tasks": 80}},
        "evaluation.interim_tasks",
        90,
        "only 80",
        "use at most 80",
    ),
    (
        {"recipe": {"optimizer": {"learning_rate": float("inf")}}},
        "recipe.optimizer.learning_rate",
        float("inf"),
        "finite",
        "finite number",
    ),
    (
        {"environment": {"max_turns": 1}, "recipe": {"preset": "gigpo"}},
        "recipe.credit.kind",
        "gigpo",
        "needs observations",
        "max_turns of at least 2",
    ),
    (
        {"environment": {"sandbox": {"snapshots": False}}, "recipe": {"preset": "cleaner"}},
        "recipe.purification",
        "set",
        "keeps no snapshots",
        "snapshots = true",
    ),
    (
        {
            "recipe": {
                "credit": {
                    "kind": "attribution",
                    "judge": {"kind": "llm", "model": "m", "endpoint": "http://user:word@judge/v1"},
                }
            }
        },
        "recipe.credit.judge.endpoint",
        "http://***@judge/v1",
        "match pattern",
        "without user and query",
    ),
    (
        {
            "recipe": {
                "credit": {"kind": "attribution", "judge": {"kind": "llm", "model": "m", "endpoint": "http://[::1"}}
            }
        },
        "recipe.credit.judge.endpoint",
        "http://[::1",
        "match pattern",
        "without user and query",
    ),
    (
        {
            "recipe": {
                "credit": {"kind": "attribution", "judge": {"kind": "llm", "model": "m", "endpoint": "http:///v1"}}
            }
        },
        "recipe.credit.judge.endpoint",
        "http:///v1",
        "match pattern",
        "without user and query",
    ),
    (
        {
            "recipe": {
                "credit": {
                    "kind": "attribution",
                    "judge": {"kind": "llm", "model": "m", "endpoint": "http://judge:80000000"},
                }
            }
        },
        "recipe.credit.judge.endpoint",
        "http://judge:80000000",
        "match pattern",
        "without user and query",
    ),
    (
        {"recipe": {"credit": {"kind": "attribution", "judge": {"kind": "llm", "model": "m"}}}},
        "recipe.credit.judge.endpoint",
        "(missing)",
        "Field required",
        "add it",
    ),
    (
        {"recipe": {"credit": {"kind": "attribution", "alpha": 2}}},
        "recipe.credit.alpha",
        2,
        "less than or equal to 1",
        "at most 1",
    ),
    ({"recipe": {"objective": {"kind": "ipa"}}}, "recipe.credit.kind", "grpo", "chunk returns", "chunk-return"),
    (
        {"recipe": {"preset": "sft"}, "schedule": {"logprobs_at": "sampling"}},
        "schedule.logprobs_at",
        "sampling",
        "none has no RL",
        'use "one"',
    ),
    (
        {
            "recipe": {"preset": "dpo-tool-calls"},
            "schedule": {"logprobs_at": "sampling"},
            "environment": {"sandbox": {"snapshots": True}},
        },
        "schedule.logprobs_at",
        "sampling",
        "compares two answers",
        'use "one"',
    ),
    (
        {"schedule": {"logprobs_at": "sampling", "temperature": 0.001}},
        "schedule.temperature",
        0.001,
        "greedy policy",
        "at least 0.01",
    ),
    ({"schedule": {"logprobs_at": "two"}}, "schedule.logprobs_at", "two", "'one', 'sampling' or 'truncated'", "one"),
    (
        {"recipe": {"preset": "ipa", "reward": {"correct": 0.0}}},
        "recipe.reward.correct",
        0.0,
        "it would learn nothing",
        "more than 0",
    ),
    ({"recipe": {"objective": {"kind": "dpo"}}}, "recipe.purification", None, "corrected tool calls", "purification"),
    (
        {"recipe": {"objective": {"kind": "none"}, "stages": []}},
        "recipe.stages",
        (),
        "nothing to train",
        "give a stage",
    ),
    (
        {"recipe": {"objective": {"kind": "evaluation"}}},
        "recipe.stages",
        "set",
        "an evaluation trains nothing, and has no supervised stages",
        "set stages = []",
    ),
    (
        {"recipe": {"preset": "evaluate", "credit": {"kind": "gae"}}},
        "recipe.credit",
        "set",
        "credit says how to train",
        "remove credit",
    ),
    (
        {"recipe": {"preset": "evaluate", "self_imitation": {}}},
        "recipe.self_imitation",
        "set",
        "self_imitation says how to train",
        "remove self_imitation",
    ),
    (
        {"recipe": {"preset": "evaluate", "kl": {}}},
        "recipe.kl",
        "set",
        "none and evaluation have no RL",
        "remove kl",
    ),
    (
        {"recipe": {"preset": "evaluate", "selection": {"masks": ["overlong"]}}},
        "recipe.selection",
        "set",
        "selection says how to train",
        "remove selection",
    ),
    (
        {
            "recipe": {"preset": "evaluate", "purification": {"in_evaluation": False}},
            "environment": {"sandbox": {"snapshots": True}},
        },
        "recipe.purification.in_evaluation",
        False,
        "purification is of training alone",
        "set purification.in_evaluation",
    ),
    (
        {"recipe": {"preset": "evaluate"}, "schedule": {"logprobs_at": "sampling"}},
        "schedule.logprobs_at",
        "sampling",
        "takes its log-probs at temperature 1",
        'use "one"',
    ),
    (
        {"dataset": {"heldout_tasks": 5000}, "evaluation": {"tasks": 5000, "samples": 500}},
        "evaluation.samples",
        500,
        "2500000 tries (tasks x samples) are more than 1000000",
        "use at most 200",
    ),
    (
        {"recipe": {"objective": {"kind": "topr"}, "self_imitation": {}}},
        "recipe.self_imitation",
        "set",
        "beside which topr is not defined",
        "clipped",
    ),
    (
        {"recipe": {"preset": "ppo", "selection": {"dynamic_sampling": {}}}},
        "recipe.selection.dynamic_sampling",
        "set",
        "gae also learns from all others",
        "remove dynamic_sampling",
    ),
    (
        {"recipe": {"preset": "dpo-tool-calls", "credit": {"kind": "attribution"}}},
        "recipe.credit.kind",
        "attribution",
        "would never ask the judge of attribution",
        "grpo",
    ),
    (
        {"recipe": {"preset": "sft", "expert_starts": {}}},
        "recipe.expert_starts",
        "set",
        "no rollouts that could begin",
        "remove expert_starts",
    ),
    (
        {"recipe": {"preset": "sft", "selection": {"masks": ["overlong"]}}},
        "recipe.selection",
        "set",
        "no rollouts to select from",
        "remove selection",
    ),
    (
        {
            "recipe": {
                "preset": "agentevolver-navigating",
                "objective": {"dual_clip": False, "covariance": {"kind": "kl"}},
            }
        },
        "recipe.experience",
        "set",
        "takes the place of all clips",
        "keep",
    ),
    (
        {"recipe": {"preset": "agentevolver-navigating", "objective": {"clip_high": 0.7}}},
        "recipe.experience.boosted_clip_high",
        0.6,
        "more narrowly than the rest, at 0.7",
        "at least 0.7",
    ),
    (
        {"recipe": {"objective": {"covariance": {"kind": "clip", "low_share": 0.0001}}}},
        "recipe.objective.covariance.low_share",
        0.0001,
        "no lower bound",
        "low_share > high_share",
    ),
    (
        {"recipe": {"stages": [{"data": {"kind": "recordings", "file": "../x"}}]}},
        "recipe.stages.0.data.file",
        "../x",
        "pattern",
        "relative",
    ),
    ({"name": "-x"}, "name", "-x", "pattern", "begin with a letter or digit"),
]


@pytest.mark.parametrize(
    ("given", "field", "value", "message", "remedy"), CASES, ids=[case[1] + "=" + str(case[2]) for case in CASES]
)
def test_a_problem_names_field_value_and_remedy(
    given: dict[str, Any], field: str, value: Any, message: str, remedy: str
) -> None:
    found = problem(**given)
    assert (found.field, found.value) == (field, value)
    assert message in found.message
    assert remedy in found.remedy
    assert str(found) == f"{field} = {value!r}: {found.message}; {found.remedy}"


def test_what_is_missing_is_named() -> None:
    with pytest.raises(ValidationError) as caught:
        RunSpec.model_validate({})
    assert problems_in(caught.value, RunSpec) == [Problem("name", "(missing)", "Field required", "add it")]


def test_all_problems_are_reported_at_once() -> None:
    found = problems(seed=-1, schedule={"steps": 0, "stepz": 1}, model={"layers": "two"})
    assert {item.field for item in found} == {"seed", "schedule.steps", "schedule.stepz", "model.layers"}


def test_a_long_value_is_cut() -> None:
    assert len(str(problem(schedule={"steps": "x" * 1000}))) < 250


@pytest.mark.parametrize("recipe", [{}, {"stages": []}])
def test_the_remedies_of_a_short_context_work(recipe: dict[str, Any]) -> None:
    tokens = 20
    for _ in range(2):  # the prompt first, then the cold start's demonstrations
        try:
            RunSpec.model_validate({"name": "mended", "recipe": recipe, "model": {"context_tokens": tokens}})
        except ValidationError as error:
            tokens = int(re.findall(r"\d+", problems_in(error, RunSpec)[0].remedy)[0])
    RunSpec.model_validate({"name": "mended", "recipe": recipe, "model": {"context_tokens": tokens}})


def test_half_a_surrogate_pair_in_a_presets_name_is_shown_escaped() -> None:
    assert problem(recipe={"preset": "\ud800"}).value == "\\ud800"


def test_a_problem_of_another_table_names_that_table_and_changes_no_other_text() -> None:
    remedy = "set model.folder, or judge.model.folder, in sub-model.toml or my_model.py; see the model. It has model."
    renamed = Problem("model.folder", "x", "there is no such folder", remedy).renamed("model", "resources.judge")
    assert renamed.field == "resources.judge.folder"
    assert renamed.remedy == remedy.replace("set model.folder", "set resources.judge.folder")
    other = Problem("models.folder", "x", "none", "set model.folder")
    assert other.renamed("model", "resources.judge") == other
