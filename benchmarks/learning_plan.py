"""What a comparison of recipes is going to do, written down before its first run.

A plan is a TOML file in ``benchmarks/plans``: the run that all recipes share, and what differs.  Its digest
stands in every result, so that a result of another plan is never mixed in.
"""

import hashlib
import json
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from engine.spec.problems import problems_in
from engine.spec.run import RunSpec

PLANS = Path(__file__).resolve().parent / "plans"
KEYS = ("claim", "metric", "seeds", "one_start", "material", "run", "arms")


class BadPlan(Exception):
    """One line per problem, each naming field, value and remedy."""


@dataclass(frozen=True)
class Arm:
    """One side of a comparison."""

    name: str
    recipe: dict[str, Any]


@dataclass(frozen=True)
class Plan:
    claim: str
    """What the papers lead one to expect; the first arm is the baseline."""
    metric: str
    """The evaluation metric that decides, e.g. ``eval/success_greedy``."""
    seeds: tuple[int, ...]
    shared: dict[str, Any]
    """A run's document without its recipe's differences; it also says the cold start."""
    arms: tuple[Arm, ...]
    one_start: bool = False
    """Whether all seeds begin with the cold start of the first one, so that they differ in RL and evaluation alone."""
    material: str | None = None
    """The name of what is made before the first run (learning_material.py); None: nothing."""

    @property
    def digest(self) -> str:
        """Changes with whatever changes a result, presets and defaults included; not with the number of seeds."""
        runs = [[arm.name, self.spec(arm, 0).model_dump(mode="json")] for arm in self.arms]
        decisive = {"metric": self.metric, "cold start": self.shared["recipe"]["stages"], "runs": runs}
        if self.material is not None:
            decisive["material"] = self.material
        if self.one_start:
            decisive["one start"] = True
        return hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()[:16]

    def start_of(self, seed: int) -> int:
        """The seed of the cold start with which a seed's runs begin."""
        return self.seeds[0] if self.one_start else seed

    def cold_start_spec(self, seed: int) -> RunSpec:
        """The supervised stages alone, which all arms of a seed share, and of ``one_start`` all seeds."""
        recipe = {"stages": self.shared["recipe"]["stages"], "objective": {"kind": "none"}}
        evaluation = {"every": 0, "tasks": 1, "interim_tasks": 1}  # each arm measures the start under its own recipe
        document = {**self.shared, "name": f"cold start {seed}", "seed": seed, "recipe": recipe}
        return _spec({**document, "evaluation": evaluation})

    def spec(self, arm: Arm, seed: int) -> RunSpec:
        recipe = {**self.shared["recipe"], **arm.recipe}
        return _spec({**self.shared, "name": f"{arm.name} {seed}", "seed": seed, "recipe": recipe})


def plan_from_file(path: Path, *, seeds: int | None = None) -> Plan:
    """Raises BadPlan, also when one of its runs would be refused."""
    document = tomllib.loads(path.read_text())
    unknown = document.keys() - set(KEYS)
    if unknown:
        raise BadPlan(f"{path}: {', '.join(sorted(unknown))}: unknown; known are {', '.join(KEYS)}")
    return _checked(
        Plan(
            claim=document["claim"],
            metric=document.get("metric", "eval/success_greedy"),
            seeds=tuple(range(seeds if seeds is not None else document.get("seeds", 5))),
            shared=document["run"],
            arms=tuple(Arm(name, recipe) for name, recipe in document["arms"].items()),
            one_start=document.get("one_start", False),
            material=document.get("material"),
        )
    )


def plan_of_recipes(environment: str, recipes: list[str], seeds: int) -> Plan:
    """Presets against each other on the sample run of an environment."""
    sample = PLANS.parent.parent / "engine" / "spec" / "samples" / f"{environment.replace('-', '_')}.toml"
    if not sample.exists():
        known = sorted(path.stem.replace("_", "-") for path in sample.parent.glob("*.toml"))
        raise BadPlan(f"--env = {environment}: there is no such sample; use one of: {', '.join(known)}")
    shared = tomllib.loads(sample.read_text())
    kept = {key: value for key, value in shared.get("recipe", {}).items() if key in ("stages", "optimizer")}
    return _checked(
        Plan(
            claim=f"{' against '.join(recipes)} on {environment}",
            metric="eval/success_greedy",
            seeds=tuple(range(seeds)),
            shared={**shared, "recipe": kept},
            arms=tuple(Arm(name, {"preset": name}) for name in recipes),
        )
    )


def _checked(plan: Plan) -> Plan:
    if len(plan.arms) < 2:
        raise BadPlan(f"arms = {[arm.name for arm in plan.arms]}: nothing to compare; give a baseline and another")
    for arm in plan.arms:
        plan.spec(arm, 0)
    plan.cold_start_spec(0)
    return plan


def _spec(document: dict[str, Any]) -> RunSpec:
    try:
        return RunSpec.model_validate(document)
    except ValidationError as error:
        raise BadPlan("\n".join(f"{document['name']}: {problem}" for problem in problems_in(error, RunSpec))) from error
