"""The form that says which column is what: what it offers, and what a posted one means."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from django.http import QueryDict
from pydantic import ValidationError

from engine.spec.dataset_preparation import HELDOUT, TRAIN, ColumnMapping, Duplicates, Preparation
from engine.spec.problems import Problem, problems_in
from webapp.catalog.models import DatasetVersion

PARTS = {
    "prompt": ("Prompt", "What the policy is asked, as one text."),
    "messages": ("Messages", "A conversation's beginning, as a list of role and content, in place of a prompt."),
    "answer": ("Answer", "What a right answer is compared with."),
    "tests": ("Tests", "Code that decides."),
    "image": ("Image", "The OCI image of the row's sandbox."),
    "group": ("Group", "Rows of one group stand in one split."),
    "split": ("Split", "The name of the row's split."),
    "id": ("Id", "Unique; else rows are named by their content."),
    "metadata": ("Metadata", "A JSON object."),
}
SPLITTINGS = {
    "one": "All rows in one split, train",
    "share": "By share and seed; groups and equal questions stay together",
    "column": "As the split column says",
    "file": "Each file is a split, by its name",
}
ACROSS = {
    "refuse": "Refuse, and name their lines",
    "drop": "Leave them out of the larger split",
    "report": "Keep them, and report",
}


@dataclass(frozen=True)
class Choice:
    """A part of the row and the column that holds it."""

    name: str
    label: str
    help: str
    column: str
    problem: Problem | None = None


@dataclass(frozen=True)
class MappingForm:
    parts: list[Choice]
    columns: list[str]
    metadata_keys: list[str]
    splitting: str = "one"
    heldout_percent: str = "5"
    seed: str = "0"
    across_splits: str = "refuse"
    similarity: str = "0.8"
    problems: list[Problem] = field(default_factory=list)
    """Those of fields that are no column."""
    preparation: Preparation | None = None
    """What it means, if it has no problem."""

    splittings = SPLITTINGS
    across = ACROSS


def form_of(version: DatasetVersion) -> MappingForm:
    """It begins with the last preparation, or with the guess."""
    columns = _columns(version)
    given = version.preparation
    mapping = given["mapping"] if given else (version.source_report or {}).get("mapping") or {}
    splitting: dict[str, Any] = given["splitting"] if given else {"kind": "column" if mapping.get("split") else "one"}
    duplicates = given["duplicates"] if given else Duplicates().model_dump()
    shares = {split["name"]: split["share"] for split in splitting.get("splits", [])}
    return MappingForm(
        parts=_choices(mapping, {}),
        columns=columns,
        metadata_keys=list(mapping.get("metadata_keys", [])),
        splitting=splitting["kind"],
        heldout_percent=f"{100 * shares.get(HELDOUT, 0.05):g}",
        seed=str(splitting.get("seed", 0)),
        across_splits=duplicates["across_splits"],
        similarity="" if duplicates["similarity"] is None else f"{duplicates['similarity']:g}",
    )


def posted_form(version: DatasetVersion, posted: QueryDict) -> MappingForm:
    """What was sent, with its problems or with the preparation that it means."""
    mapping: dict[str, Any] = {name: posted.get(f"column-{name}", "") or None for name in PARTS}
    keys = posted.getlist("metadata-keys")
    kind = posted.get("splitting", "one")
    document = {
        "mapping": mapping | {"metadata_keys": keys, "split": mapping["split"] if kind == "column" else None},
        "splitting": _splitting(kind, posted),
        "duplicates": {"across_splits": posted.get("across", "refuse"), "similarity": posted.get("similarity") or None},
    }
    problems: list[Problem] = []
    preparation = None
    try:
        preparation = Preparation.model_validate(document)
    except ValidationError as error:
        problems = problems_in(error, Preparation)
    by_part = {problem.field.removeprefix("mapping."): problem for problem in problems}
    return MappingForm(
        parts=_choices(mapping, by_part),
        columns=_columns(version),
        metadata_keys=keys,
        splitting=kind,
        heldout_percent=posted.get("heldout", ""),
        seed=posted.get("seed", ""),
        across_splits=posted.get("across", "refuse"),
        similarity=posted.get("similarity", ""),
        problems=[problem for problem in problems if problem.field.removeprefix("mapping.") not in PARTS],
        preparation=preparation,
    )


def _splitting(kind: str, posted: QueryDict) -> dict[str, Any]:
    if kind != "share":
        return {"kind": kind}
    try:
        heldout = round(float(posted.get("heldout", "")) / 100, 6)
    except ValueError:
        return {"kind": kind, "seed": posted.get("seed", ""), "splits": posted.get("heldout", "")}
    shares = [{"name": TRAIN, "share": 1 - heldout}, {"name": HELDOUT, "share": heldout}]
    return {"kind": kind, "seed": posted.get("seed", ""), "splits": shares}


def _columns(version: DatasetVersion) -> list[str]:
    return [column["name"] for column in (version.source_report or {}).get("columns", [])]


def _choices(mapping: Mapping[str, Any], problems: Mapping[str, Problem]) -> list[Choice]:
    known = [name for name in PARTS if name in ColumnMapping.model_fields]
    return [
        Choice(name, *PARTS[name], column=str(mapping.get(name) or ""), problem=problems.get(name)) for name in known
    ]
