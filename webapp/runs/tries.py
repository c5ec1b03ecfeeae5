"""Trying an environment: a run that trains nothing, played by the environment's own solution, by nobody, or by others.

Page, REST and ``manage.py try_environment`` call this module.  A try is a run like any other: it is queued, streamed,
cancelled and resumed as one, and its episodes are trajectories.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from django.db import transaction
from pydantic import Field, ValidationError, field_validator

from engine.spec.environment import Environment as EnvironmentSpec
from engine.spec.model_files import CatalogVersion
from engine.spec.players import LONGEST_SCRIPT, Player
from engine.spec.problems import problems_in
from engine.spec.run import RunSpec
from engine.spec.strict import Strict
from webapp.accounts.audit import record
from webapp.accounts.models import Team, User
from webapp.catalog.models import DatasetVersion, Environment
from webapp.catalog.stored_versions import ready_stored
from webapp.refusals import Invalid
from webapp.runs.models import ENVIRONMENT_OF_RUN, Run
from webapp.runs.services import submit_run

MOST_TASKS = 1000
SHOWN = 10
_NOT_OF_A_NAME = re.compile(r"[^\w .:+-]")


class EnvironmentTry(Strict):
    """Who tries an environment, and on what."""

    players: list[Player] = Field(default=["oracle", "nop"], min_length=1, max_length=4)
    """``oracle``: the environment's own solution; ``nop``: an empty answer at once; ``script``: the turns of
    ``script``; ``model``: the version of the catalog, or the small built-in one."""
    tasks: int = Field(default=10, ge=1, le=MOST_TASKS)
    """How many of the held-out tasks are played, from the first one; no more than there are rows."""
    script: str = Field(default="", max_length=LONGEST_SCRIPT)
    """A JSON object a line: {"call": "python", "arguments": {"code": "print(1)"}}, or {"answer": "1"}."""
    dataset: CatalogVersion | None = None
    """The dataset's version, as name@version, for an environment that asks what a dataset holds."""
    model: CatalogVersion | None = None
    """The model's version, as name@version, for the player ``model``."""

    @field_validator("script")
    @classmethod
    def _lines_end_alike(cls, script: str) -> str:
        return script.replace("\r\n", "\n").strip()


def begin_try(team: Team, environment: EnvironmentSpec, wanted: EnvironmentTry, *, acting_user: User, name: str) -> Run:
    """Queue a try, as a run called after ``name``.

    Raises Invalid with every problem that is known before the run's job looks at its environment, and as
    ``submit_run``.
    """
    with transaction.atomic():
        run = submit_run(team, _spec(team, environment, wanted, name), acting_user=acting_user)
        record(team, acting_user, "environment.try", f"run {run.id}", name=name[:100])
    return run


def _spec(team: Team, environment: EnvironmentSpec, wanted: EnvironmentTry, name: str) -> RunSpec:
    tasks = wanted.tasks
    if wanted.dataset is not None:
        tasks = min(tasks, _heldout_rows(ready_stored(DatasetVersion, team, wanted.dataset, "dataset")))
    if wanted.model is not None and "model" not in wanted.players:
        raise Invalid.field("model", wanted.model, "nobody plays with it", 'give "model" among the players')
    document: dict[str, Any] = {
        "name": _NOT_OF_A_NAME.sub("-", f"Try {name}")[:100],
        "environment": environment.model_dump(mode="json"),
        "dataset": {"train_tasks": 1, "heldout_tasks": tasks, "catalog": wanted.dataset},
        "recipe": {"preset": "evaluate"},
        "evaluation": {
            "players": wanted.players, "script": wanted.script, "tasks": tasks, "interim_tasks": tasks,
        },
    }  # fmt: skip
    if wanted.model is not None:
        document["model"] = {"kind": "pretrained", "catalog": wanted.model}
    try:
        return RunSpec.model_validate(document)
    except ValidationError as error:
        raise Invalid("the environment cannot be tried so", problems_in(error, RunSpec)) from error


def _heldout_rows(version: DatasetVersion) -> int:
    """Raises Invalid where there are none."""
    rows = {split["name"]: int(split["rows"]) for split in version.splits}
    if not rows.get("heldout"):
        message = f"it has no rows that are held out; its splits are {', '.join(sorted(rows)) or 'none'}"
        raise Invalid.field("dataset", str(version), message, "prepare a version with the splits train and heldout")
    return rows["heldout"]


@dataclass(frozen=True)
class Tried:
    """What a try came to so far."""

    run: Run
    rates: Sequence[tuple[Player, str, dict[str, Any]]]
    """Each player that has played: who, in words, and ``engine.spec.evaluation_report.Rate``."""

    @property
    def doubts(self) -> list[str]:
        """What whoever made the environment would want to know."""
        found = {player: rate["success"] for player, _, rate in self.rates}
        doubts = []
        if found.get("oracle", 1) < 1:
            doubts.append("its own solution does not always succeed")
        if found.get("nop", 0) > 0:
            doubts.append("doing nothing succeeds now and then")
        return doubts


WORDS: Sequence[tuple[Player, str, str]] = (
    ("oracle", "oracle", "its own solution"),
    ("nop", "nop", "nothing done"),
    ("script", "script", "the script"),
    ("model", "greedy", "the model, greedily"),
)


def tried(run: Run) -> Tried:
    report = (run.summary or {}).get("evaluation") or {}
    return Tried(run, [(player, words, report[way]) for player, way, words in WORDS if report.get(way)])


def tries_of(version: Environment) -> list[Tried]:
    """The newest tries of just these settings, also those from before they were published."""
    runs = Run.objects.annotate(kind=ENVIRONMENT_OF_RUN).filter(team=version.team, kind=version.spec["id"])
    of_it = runs.filter(spec__environment=version.spec, spec__evaluation__has_key="players")
    beside = of_it.exclude(spec__evaluation__players=["model"])
    return [tried(run) for run in beside.order_by("-created_at", "-id")[:SHOWN]]
