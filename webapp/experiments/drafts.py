"""A spec while somebody edits it: as a form or as TOML, valid or not, and never lost."""

import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from django.http import QueryDict
from pydantic import ValidationError

from engine.spec.problems import Problem, problems_in
from engine.spec.recipe import preset_names
from engine.spec.run import RunSpec
from webapp.experiments.fields import Group, document_in, groups_of
from webapp.experiments.toml import as_toml

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
        try:
            spec = RunSpec.model_validate(document)
        except ValidationError as error:
            return cls(document, shown_as, toml or as_toml(document), _named_plainly(problems_in(error, RunSpec)))
        return cls(document, shown_as, toml or as_toml(document), [], spec)

    @classmethod
    def of_post(cls, post: QueryDict) -> "Draft":
        base = _base_in(post)
        if post.get("as") != "toml":
            return cls.of(document_in(post, base))
        text = post.get("toml", "").replace("\r\n", "\n")
        try:
            return cls.of(tomllib.loads(text), "toml", text)
        except tomllib.TOMLDecodeError as error:
            problem = Problem("", text[:80], f"this is not TOML: {error}", "mend the line named here")
            return cls(base, "toml", text, [problem])

    def shown(self, how: Form) -> "Draft":
        """The same in the other way of showing it.  TOML that cannot be read stays TOML."""
        if self.shown_as == "toml" and any(problem.field == "" for problem in self.problems):
            return self
        document = self.spec.model_dump(mode="json") if self.spec else self.document
        return Draft.of(document, how)

    def with_preset(self, name: str) -> "Draft":
        """The recipe of the preset instead of the one that was there."""
        return (
            Draft.of({**self.document, "recipe": {"preset": name}}, self.shown_as) if name in preset_names() else self
        )

    @property
    def groups(self) -> list[Group]:
        document = self.spec.model_dump(mode="json") if self.spec else self.document
        return groups_of(document, self.problems)

    @property
    def loose_problems(self) -> list[Problem]:
        """Those that have no field in the form to stand next to."""
        placed = {id(one.problem) for group in self.groups for one in (*group.main, *group.more) if one.problem}
        return [problem for problem in self.problems if self.shown_as == "toml" or id(problem) not in placed]

    @property
    def base(self) -> str:
        """The document, to come back with the next post."""
        return json.dumps(self.document)

    @property
    def preset(self) -> str:
        recipe = self.document.get("recipe")
        return str(recipe.get("preset") or "") if isinstance(recipe, Mapping) else ""


def _base_in(post: QueryDict) -> dict[str, Any]:
    try:
        base = json.loads(post.get("base", "{}"))
    except json.JSONDecodeError:
        return {}
    return base if isinstance(base, dict) else {}


def _named_plainly(problems: list[Problem]) -> list[Problem]:
    """Field paths as the document has them: without the tag of a union's variant."""
    return [Problem(_without_tag(one.field), one.value, one.message, one.remedy) for one in problems]


_TAGS = ("grpo", "dr-grpo", "rloo")


def _without_tag(path: str) -> str:
    return ".".join(part for part in path.split(".") if part not in _TAGS)


@dataclass(frozen=True)
class Size:
    """What a spec amounts to, for the reader who is about to launch it."""

    rollouts_per_step: int
    rollouts: int
    updates_per_step: int
    parameters: int
    """Of the transformer, without the embedding."""

    @classmethod
    def of(cls, spec: RunSpec) -> "Size":
        schedule, model = spec.schedule, spec.model
        per_step = schedule.prompts_per_step * schedule.group_size
        attention = model.hidden_size * model.head_dim * (2 * model.heads + 2 * model.kv_heads)
        layer = attention + 3 * model.hidden_size * model.intermediate_size + 2 * model.hidden_size + 2 * model.head_dim
        return cls(
            per_step,
            per_step * schedule.steps,
            per_step // schedule.minibatch_trajectories,
            layer * model.layers + model.hidden_size,
        )
