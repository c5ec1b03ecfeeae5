"""What a plan's runs begin with, made once in the plan's folder: a model, tasks, demonstrations."""

import os
from dataclasses import dataclass
from pathlib import Path

from benchmarks.context_household import HouseholdDomain
from benchmarks.context_material import FILE, Domain, made_material, placed
from benchmarks.context_terminal import TerminalDomain
from benchmarks.learning_plan import BadPlan, Plan
from engine.spec.run import RunSpec

DOMAINS: dict[str, Domain] = {"household": HouseholdDomain(), "terminal": TerminalDomain()}


@dataclass(frozen=True, slots=True)
class Material:
    """Where it lies; None: the plan needs none."""

    folder: Path | None

    def placed(self, spec: RunSpec) -> RunSpec:
        """The spec with the places of what it names."""
        return spec if self.folder is None else placed(spec, self.folder)

    def bring(self, place: Path) -> None:
        """A run reads its files beside its own document."""
        if self.folder is not None and not (place / FILE).exists():
            os.link(self.folder / FILE, place / FILE)


def material_of(plan: Plan, folder: Path) -> Material:
    """Raises BadPlan for a name that nobody knows."""
    if plan.material is None:
        return Material(None)
    if plan.material not in DOMAINS:
        raise BadPlan(f"material = {plan.material}: there is no such material; use one of: {', '.join(DOMAINS)}")
    return Material(made_material(plan, DOMAINS[plan.material], folder))
