"""The spec editor's form, made from the schema: a new field of RunSpec is in it by itself.

Labels, help, ranges and defaults are those of ``engine.spec``; this module knows how to ask, and
``posted.py`` how to read the answer.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from engine.spec.annotations import BOUNDS_IN_WORDS
from engine.spec.docstrings import descriptions_of
from engine.spec.problems import Problem
from engine.spec.run import RunSpec
from webapp.editor.complaints import Complaint, sentence
from webapp.experiments.baseline import baseline_of, beneath
from webapp.experiments.schema import Ask, asks_of, default_of, defaults_of

CARDS: dict[str, tuple[str, tuple[str, ...]]] = {
    "general": ("General", ("",)),
    "environment": ("Environment", ("environment",)),
    "data": ("Data", ("dataset",)),
    "model": ("Model", ("model",)),
    "supervised": ("Supervised training", ("recipe.stages",)),
    "algorithm": (
        "Algorithm",
        ("recipe.credit", "recipe.objective", "recipe.preference", "recipe.kl", "recipe.mismatch", "recipe.optimizer"),
    ),
    "reward": ("Reward", ("recipe.reward",)),
    "rollouts": (
        "Rollouts",
        ("recipe.selection", "recipe.purification", "recipe.experience", "recipe.expert_starts", "recipe.context"),
    ),
    "self-imitation": ("Self-imitation", ("recipe.self_imitation",)),
    "schedule": ("Schedule", ("schedule",)),
    "evaluation": ("Evaluation", ("evaluation",)),
    "resources": ("Resources", ("resources",)),
    "other": ("Other", ()),
}
"""By anchor: title, and the tables in it.  What no card names stands in the last one."""

_MAIN = {
    "environment": {"levels", "catalog", "max_turns", "max_turn_tokens"},
    "environment.tasks": {"levels", "catalog"},
    "environment.parts": {"name", "weight"},
    "environment.parts.environment": {"levels", "catalog", "max_turns", "max_turn_tokens"},
    "environment.parts.environment.tasks": {"levels", "catalog"},
    "dataset": {"train_tasks", "heldout_tasks", "catalog"},
    "model": {"layers", "hidden_size", "heads", "context_tokens", "path", "catalog", "dtype", "run", "step"},
    "recipe.optimizer": {"learning_rate"},
    "recipe.stages": {"steps", "epochs", "learning_rate", "mask_errors", "mask_irrelevant"},
    "recipe.stages.data": {"file", "count", "wrong_fraction"},
    "recipe.reward": {"correct", "wrong", "tool_error"},
    "schedule": {
        "steps", "prompts_per_step", "group_size", "minibatch_trajectories", "temperature", "checkpoint_every",
    },
    "resources": {"device", "threads", "kv_slots"},
    "resources.judge": {"path", "catalog", "servers", "tensor_parallel"},
}  # fmt: skip
"""Always in sight; every other field of these tables is behind "More"."""
_ROW = re.compile(r"\.\d+")
"""The number of a row in the path of what is in it."""
_MANY = 5
"""In a table without an entry above, a longer list than this is cut to ``_FIRST``."""
_FIRST = 4
_FOLDED = frozenset(
    {
        "environment.sandbox",
        "environment.response",
        "environment.tasks.sandbox",
        "environment.tasks.response",
        "environment.parts.environment.sandbox",
        "environment.parts.environment.response",
        "environment.parts.environment.tasks.sandbox",
        "environment.parts.environment.tasks.response",
        "recipe.mismatch",
        "resources.megatron",
    }
)
"""Tables that are opened on demand."""

Kind = Literal["number", "text", "long-text", "lines", "choice", "many", "flag"]
_LONG_TEXT = 500
"""A text that may be longer than this gets an area of several lines."""


@dataclass(frozen=True)
class Field:
    path: str
    label: str
    kind: Kind
    help: str
    value: Any
    """It is what was given: text of a form, or a value of a document."""
    default: Any = None
    """What the recipe's preset or the schema has."""
    is_required: bool = False
    may_be_empty: bool = False
    """Nothing is an answer of its own."""
    choices: tuple[str, ...] = ()
    bounds: Mapping[str, Any] = field(default_factory=dict)
    problem: Problem | None = None
    switches: bool = False
    """The answer decides which further fields there are."""

    @property
    def id(self) -> str:
        return "f-" + self.path.replace(".", "-")

    @property
    def complaint(self) -> Complaint | None:
        return Complaint(f"{self.label} ({self.path})", sentence(self.problem), self.id) if self.problem else None

    @property
    def is_changed(self) -> bool:
        return not self.is_required and _text(self.value) != _text(self.default)

    @property
    def text(self) -> str:
        match self.value:
            case None:
                return ""
            case list():
                return "\n".join(map(str, self.value))
            case _:
                return str(self.value)

    @property
    def default_text(self) -> str:
        return shown(self.default)

    @property
    def is_on(self) -> bool:
        return self.value in (True, "on", "true")

    @property
    def chosen(self) -> list[str]:
        return [str(item) for item in self.value] if isinstance(self.value, list) else []

    @property
    def range(self) -> str:
        return ", ".join(f"{word} {self.bounds[name]}" for name, word in BOUNDS_IN_WORDS.items() if name in self.bounds)


@dataclass(frozen=True)
class Section:
    """One table: its fields, and the tables in it."""

    path: str
    title: str
    help: str = ""
    problem: Problem | None = None
    switch: Literal["", "on", "off"] = ""
    """Empty: always there.  Otherwise whether it is; if not, its fields are what they would begin with."""
    was_on: bool = True
    """Whether the preset or the schema has it."""
    kind: Field | None = None
    """Which of several kinds of table it is."""
    main: list[Field] = field(default_factory=list)
    more: list[Field] = field(default_factory=list)
    sections: list["Section"] = field(default_factory=list)
    rows: list["Section"] | None = None
    """They are those of a list of tables; None for a table."""

    @property
    def id(self) -> str:
        return "s-" + self.path.replace(".", "-")

    @property
    def target(self) -> str:
        """The id of what a complaint about the table leads to."""
        return f"{self.id}-on" if self.switch else self.id

    @property
    def complaint(self) -> Complaint | None:
        if self.problem is None:
            return None
        return Complaint(f"{self.title} ({self.path})", sentence(self.problem), self.target)

    @property
    def is_folded(self) -> bool:
        return _ROW.sub("", self.path) in _FOLDED

    @property
    def folded_names(self) -> str:
        """Return what is behind "More" or in a folded table, by label."""
        if self.is_folded:
            return " · ".join([field.label for field in self.fields] + [section.title for section in self.inner])
        return " · ".join(field.label for field in self.more)

    @property
    def fields(self) -> list[Field]:
        """Its own ones."""
        return [*([self.kind] if self.kind else []), *self.main, *self.more]

    @property
    def inner(self) -> list["Section"]:
        return [*self.sections, *(self.rows or [])]

    @property
    def changed(self) -> int:
        """Return how many answers in it differ from the preset's or the schema's."""
        if self.switch == "off":
            return int(self.was_on)
        own = sum(field.is_changed for field in self.fields) + (self.switch == "on" and not self.was_on)
        return own + sum(section.changed for section in self.inner)

    @property
    def more_changed(self) -> int:
        return sum(field.is_changed for field in self.more)

    @property
    def problems(self) -> list[Problem]:
        own = [self.problem, *(field.problem for field in self.fields)]
        return [problem for problem in own if problem] + [problem for inner in self.inner for problem in inner.problems]

    @property
    def complaints(self) -> list[Complaint]:
        own = [self.complaint, *(field.complaint for field in self.fields)]
        return [complaint for complaint in own if complaint] + [
            complaint for inner in self.inner for complaint in inner.complaints
        ]

    @property
    def opens_more(self) -> bool:
        """Something is wrong in there, so it must be seen."""
        return any(field.problem for field in self.more)


@dataclass(frozen=True)
class Card:
    name: str
    title: str
    sections: list[Section]

    @property
    def changed(self) -> int:
        return sum(section.changed for section in self.sections)

    @property
    def problems(self) -> list[Problem]:
        return [problem for section in self.sections for problem in section.problems]

    @property
    def complaints(self) -> list[Complaint]:
        return [complaint for section in self.sections for complaint in section.complaints]


def cards_of(document: Mapping[str, Any], problems: list[Problem]) -> list[Card]:
    """The whole form for a document that need not be valid."""
    whole = _table(
        RunSpec, "", document, baseline_of(document), {problem.field: problem for problem in reversed(problems)}
    )
    recipe = next(section for section in whole.sections if section.path == "recipe")
    found = {section.path: section for section in (*whole.sections, *recipe.sections) if section.path != "recipe"}
    found[""] = replace(whole, sections=[], title="General", help="")
    named = {path for _, paths in CARDS.values() for path in paths}
    cards = []
    for name, (title, paths) in CARDS.items():
        own = [found[path] for path in paths if path in found]
        if name == "other":
            own = [section for path, section in found.items() if path not in named]
        if own:
            cards.append(Card(name, title, own))
    return cards


def fields_in(sections: list[Section]) -> Iterator[Field]:
    for section in sections:
        yield from section.fields
        yield from fields_in(section.inner)


def sections_in(sections: list[Section]) -> Iterator[Section]:
    for section in sections:
        yield section
        yield from sections_in(section.inner)


Problems = Mapping[str, Problem]


def _table(model: type[BaseModel], path: str, value: Any, baseline: Mapping[str, Any], problems: Problems) -> Section:
    given = value if isinstance(value, Mapping) else {}
    fields, sections = [], []
    for name, ask in asks_of(model).items():
        inner = f"{path}.{name}" if path else name
        info, unsaid = model.model_fields[name], baseline.get(name)
        help = _help_text(descriptions_of(model).get(name))
        answer = given.get(name, unsaid)
        if answer is False and ask.may_be_absent:
            answer = None
        if ask.models:
            sections.append(_section(ask, inner, answer, help, unsaid, problems))
        elif ask.shape != "fixed" and inner != "recipe.preset":
            fields.append(_field(ask, inner, answer, info, help, unsaid, problems))
    main = _main(path, fields)
    return Section(
        path, _title(path), _help_text(model.__doc__), problems.get(path) if path else None,
        main=main, more=[field for field in fields if field not in main], sections=sections,
    )  # fmt: skip


def _section(ask: Ask, path: str, value: Any, help: str, unsaid: Any, problems: Problems) -> Section:
    if ask.shape == "rows":
        return _rows(ask, path, value, help, problems)
    table = value if isinstance(value, Mapping) else {}
    model = ask.model_for(table)
    section = _table(model, path, table, beneath(ask, table, unsaid), problems)
    if ask.shape == "variant":
        section = replace(section, help=help, kind=_kind(ask, path, table, unsaid, problems))
    if ask.may_be_absent:
        switch: Literal["on", "off"] = "off" if value is None else "on"
        section = replace(section, switch=switch, was_on=unsaid is not None)
    return section


def _kind(ask: Ask, path: str, table: Mapping[str, Any], unsaid: Any, problems: Problems) -> Field:
    model = ask.model_for(table)
    known = {str(model.model_fields[ask.tag].default): model for model in ask.models.values()}
    usual = unsaid if isinstance(unsaid, Mapping) else {ask.tag: next(iter(known))}
    return Field(
        path=f"{path}.{ask.tag}", label="Kind" if ask.tag == "kind" else _title(path),
        kind="choice", help=_help_text(model.__doc__),
        value=table.get(ask.tag, next(iter(known))), default=usual.get(ask.tag), choices=tuple(known),
        problem=problems.get(f"{path}.{ask.tag}"), switches=True,
    )  # fmt: skip


def _rows(ask: Ask, path: str, value: Any, help: str, problems: Problems) -> Section:
    rows = [
        replace(_table(ask.model, f"{path}.{index}", row, defaults_of(ask.model), problems), title=f"{index + 1}")
        for index, row in enumerate(value if isinstance(value, list) else [])
    ]
    return Section(path, _title(path), help, problems.get(path), rows=rows)


def _field(ask: Ask, path: str, value: Any, info: FieldInfo, help: str, unsaid: Any, problems: Problems) -> Field:
    kinds: dict[str, Kind] = {
        "choices": "many",
        "choice": "choice",
        "flag": "flag",
        "number": "number",
        "lines": "lines",
    }
    is_long = ask.bounds.get("max_length", 0) > _LONG_TEXT
    is_list = ask.shape in ("choices", "lines")
    inside = next((problem for at, problem in problems.items() if is_list and at.startswith(path + ".")), None)
    return Field(
        path=path,
        label=_label(path),
        kind=kinds.get(ask.shape, "long-text" if is_long else "text"),
        help=help,
        value=value,
        default=unsaid if unsaid is not None else default_of(info) if not ask.may_be_absent else None,
        is_required=info.is_required(),
        may_be_empty=ask.may_be_absent,
        choices=ask.choices,
        bounds=ask.bounds,
        problem=problems.get(path) or inside,
    )


def _main(path: str, fields: list[Field]) -> list[Field]:
    table = _ROW.sub("", path)
    if table in _MAIN:
        return [field for field in fields if field.path.rpartition(".")[2] in _MAIN[table]]
    return fields if len(fields) <= _MANY else fields[:_FIRST]


def _help_text(text: str | None) -> str:
    """One line per paragraph."""
    return "\n".join(" ".join(part.split()) for part in (text or "").split("\n\n"))


def _title(path: str) -> str:
    words = path.rpartition(".")[2].replace("_", " ")
    return _TITLES.get(path, words[:1].upper() + words[1:])


_TITLES = {
    "recipe.kl": "KL penalty",
    "recipe.mismatch": "Train/inference mismatch",
    "recipe.expert_starts.how": "Where to start",
    "recipe.credit.judge": "Judge",
    "resources.judge": "Servers of a judge",
}

_SPELLED = {"lam": "lambda"}
_UNITS = {"s": "seconds", "mib": "MiB", "bytes": "bytes"}


def _label(path: str) -> str:
    """``schedule.stall_timeout_s`` -> "Stall timeout, seconds"."""
    name = path.rpartition(".")[2]
    words = _SPELLED.get(name, name).split("_")
    unit = _UNITS.get(words[-1]) if len(words) > 1 else None
    text = " ".join(words[:-1] if unit else words)
    return text[:1].upper() + text[1:] + (f", {unit}" if unit else "")


def _text(value: Any) -> str:
    """Equal for a number and the text that somebody typed for it."""
    if isinstance(value, list):
        return ",".join(map(str, value))
    try:
        return repr(float(value))
    except (TypeError, ValueError, OverflowError):
        return "" if value is None else str(value)


def shown(value: Any) -> str:
    match value:
        case None | []:
            return "nothing"
        case bool():
            return "on" if value else "off"
        case list():
            return ", ".join(map(str, value))
        case _:
            return str(value)
