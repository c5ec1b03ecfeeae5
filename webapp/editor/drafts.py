"""A spec while somebody edits it: as a form or as TOML, valid or not, and never lost."""

import json
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

from django.http import QueryDict
from pydantic import ValidationError

from engine.spec.model import BuiltinModel
from engine.spec.presets import preset_names
from engine.spec.problems import Problem, problems_in
from engine.spec.run import RunSpec
from engine.spec.toml_document import BadToml, toml_document
from webapp.editor.complaints import Complaint, loose
from webapp.editor.fields import Card, cards_of
from webapp.editor.posted import document_in, list_at, with_row, without_row
from webapp.experiments.baseline import preset_in
from webapp.experiments.toml import as_toml
from webapp.foreign_code import foreign_in
from webapp.storable import unstorable

Form = Literal["form", "toml"]


@dataclass
class Draft:
    document: dict[str, Any]
    """What was typed, as a document; of unreadable TOML the last one that could be read."""
    shown_as: Form = "form"
    toml: str = ""
    """The text as typed, when it is edited as TOML."""
    problems: list[Problem] = field(default_factory=list)
    spec: RunSpec | None = None
    """The valid spec; None while there are problems."""

    @classmethod
    def of(cls, document: dict[str, Any], shown_as: Form = "form", toml: str = "") -> "Draft":
        if problems := list(unstorable(document)):
            return cls(document, shown_as, toml or as_toml(document), problems)
        try:
            spec = RunSpec.model_validate(document)
        except ValidationError as error:
            return cls(document, shown_as, toml or as_toml(document), problems_in(error, RunSpec))
        if problems := foreign_in(spec):
            return cls(document, shown_as, toml or as_toml(document), problems)
        return cls(document, shown_as, toml or as_toml(document), [], spec)

    @classmethod
    def of_post(cls, post: QueryDict) -> "Draft":
        base = _document_in(post, "base")
        if post.get("as") != "toml":
            return cls.of(document_in(post, base))
        text = post.get("toml", "").replace("\r\n", "\n")
        document, problems = _read(text)
        return cls(base, "toml", text, problems) if problems else cls.of(document, "toml", text)

    @property
    def is_unreadable(self) -> bool:
        """What was typed is no document: only its text can be shown."""
        return self.shown_as == "toml" and any(problem.field == "" for problem in self.problems)

    def shown(self, how: Form) -> "Draft":
        """The same in the other way of showing it.  TOML that cannot be read stays TOML."""
        if self.is_unreadable:
            return self
        document = self.spec.model_dump(mode="json") if self.spec else self.document
        return Draft.of(document, how)

    def with_preset(self, name: str) -> "Draft":
        """The recipe of the preset instead of the one that was there.  TOML that cannot be read stays TOML."""
        if self.is_unreadable or name not in preset_names():
            return self
        return Draft.of({**self.document, "recipe": {"preset": name}}, self.shown_as)

    def with_row(self, path: str) -> "Draft":
        """Nobody has had time to fill the new row, so what it lacks is not told yet."""
        longer, number = Draft.of(with_row(self.document, path)), len(list_at(self.document, path) or ())
        problems = [problem for problem in longer.problems if not problem.field.startswith(f"{path}.{number}.")]
        return replace(longer, problems=problems)

    def without_row(self, place: str) -> "Draft":
        """``place`` is the list's path and the row's number, e.g. ``recipe.experience.pool.2``."""
        path, _, index = place.rpartition(".")
        is_row = index.isascii() and index.isdigit() and len(index) < 10
        return Draft.of(without_row(self.document, path, int(index))) if is_row else self

    @cached_property
    def cards(self) -> list[Card]:
        document = self.spec.model_dump(mode="json") if self.spec else self.document
        return cards_of(document, self.problems)

    @property
    def changed(self) -> int:
        """Return how many answers differ from the preset's or the schema's."""
        return sum(card.changed for card in self.cards)

    @property
    def complaints(self) -> list[Complaint]:
        """All of them: in the order of the form, and behind those the ones that have no place in it."""
        if self.shown_as == "toml":
            return [loose(problem) for problem in self.problems]
        placed = {id(problem) for card in self.cards for problem in card.problems}
        complaints = [complaint for card in self.cards for complaint in card.complaints]
        return complaints + [loose(problem) for problem in self.problems if id(problem) not in placed]

    @property
    def base(self) -> str:
        """The document, to come back with the next post."""
        return json.dumps(self.document)

    @property
    def preset(self) -> str:
        return preset_in(self.document)


def _read(toml: str) -> tuple[dict[str, Any], list[Problem]]:
    """The document, or why it is none that could be edited any further."""
    try:
        document = toml_document(toml)
    except BadToml as bad:
        return {}, [bad.problem("")]
    found = unstorable(document)
    return document, [
        Problem("", complaint.value, f"{complaint.field}: {complaint.message}", complaint.remedy) for complaint in found
    ]


def last_valid_in(post: QueryDict) -> RunSpec | None:
    """The spec of the last post without problems, which forms with problems carry along."""
    specs = (Draft.of(_document_in(post, name)).spec for name in ("valid", "base"))
    return next((spec for spec in specs if spec), None)


def _document_in(post: QueryDict, name: str) -> dict[str, Any]:
    """What the form brings back: ``base`` is what it was made for; empty where none can be read."""
    try:
        document = json.loads(post.get(name, "{}"))
    except (ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) and not any(unstorable(document)) else {}


@dataclass(frozen=True)
class Size:
    """What a spec amounts to, for the reader who is about to launch it."""

    supervised_steps: int | None
    """None where it depends on how much data a file holds."""
    rl_steps: int
    rollouts_per_step: int
    """Those that are trained on; rounds of dynamic sampling and replaced rollouts come on top."""
    rollouts: int
    updates_per_step: int
    evaluation_tries: int
    """The tries of the full evaluation, greedy and sampled."""
    parameters: int | None
    """The number of a built-in transformer, without the embedding; None where only the model's folder says."""
    has_critic: bool

    @classmethod
    def of(cls, spec: RunSpec) -> "Size":
        schedule = spec.schedule
        per_step = schedule.prompts_per_step * schedule.group_size
        return cls(
            supervised_steps=spec.recipe.supervised_steps,
            rl_steps=spec.rl_steps,
            rollouts_per_step=per_step,
            rollouts=per_step * spec.rl_steps,
            updates_per_step=per_step // schedule.minibatch_trajectories,
            evaluation_tries=spec.evaluation.tasks * (1 + spec.evaluation.samples),
            parameters=_parameters(spec.model) if isinstance(spec.model, BuiltinModel) else None,
            has_critic=spec.recipe.reinforces and spec.recipe.credit.kind == "gae",
        )


def _parameters(model: BuiltinModel) -> int:
    attention = model.hidden_size * model.head_dim * (2 * model.heads + 2 * model.kv_heads)
    layer = attention + 3 * model.hidden_size * model.intermediate_size + 2 * model.hidden_size + 2 * model.head_dim
    return layer * model.layers + model.hidden_size
