"""A combination that cannot work, refused with its remedy; all those of a document are refused together."""

from collections.abc import Iterable, Iterator, Sequence
from contextvars import ContextVar
from typing import Any, Self

from pydantic import ModelWrapValidatorHandler, ValidationError, ValidationInfo, model_validator
from pydantic_core import PydanticCustomError

from engine.spec.strict import Strict

AS_STORED = {"stored": True}
"""The context in which a document is read that was taken before: rules for fields that have to fit together, which may
be younger than it, are not asked."""
_outer_asks: ContextVar[bool] = ContextVar("_outer_asks", default=False)
"""Whether a table around the one that is read will ask it for its refusals."""


def impossible(field: str, value: object, problem: str, remedy: str) -> PydanticCustomError:
    """``field`` is the path from the model that raises it; empty where a field's own validator does."""
    return PydanticCustomError(
        "impossible_combination", "{problem}", {"field": field, "value": value, "problem": problem, "remedy": remedy}
    )


class Combination(Strict):
    """A table whose fields have to fit together: all that does not is refused at once, with that of its own tables.

    Pydantic ends at the first validator that raises, and asks a table only when those inside of it are right.  So the
    outermost table asks for the ``refusals`` of all.  A document with a field that cannot be read is read once more,
    so that its tables, of which each is the outermost then, refuse what they can by themselves.  An instance is not
    asked by the documents that it is put into: it was when it was made.
    """

    def refusals(self) -> Iterator[PydanticCustomError]:
        """Yield what cannot work, by paths from this table; what follows from a refusal is not refused again."""
        raise NotImplementedError

    @model_validator(mode="wrap")
    @classmethod
    def _refuses_together(cls, given: Any, handler: ModelWrapValidatorHandler[Self], info: ValidationInfo) -> Self:
        if isinstance(given, cls) or _outer_asks.get() or info.context == AS_STORED:
            return handler(given)
        asking = _outer_asks.set(True)
        try:
            table = handler(given)
        except ValidationError:
            table = None
        finally:
            _outer_asks.reset(asking)
        if table is None:
            return handler(given)  # raises again, with what the tables inside refuse
        if refusals := list(table.refusals()):
            raise _together(refusals)
        return table


def within(table: str, refusals: Iterable[PydanticCustomError]) -> Iterator[PydanticCustomError]:
    """Yield refusals of the table ``table`` by their paths from the one around it."""
    for context in _contexts(refusals):
        yield impossible(f"{table}.{context['field']}", context["value"], context["problem"], context["remedy"])


def _together(refusals: Sequence[PydanticCustomError]) -> PydanticCustomError:
    """One error, which names the fields; of several refusals it holds the contexts, of which ``problems_in`` makes a
    problem each."""
    contexts = _contexts(refusals)
    if len(contexts) == 1:
        return PydanticCustomError("impossible_combination", "{field}: {problem}", contexts[0])
    problems = "; ".join(f"{context['field']}: {context['problem']}" for context in contexts)
    return PydanticCustomError("impossible_combinations", "{problems}", {"problems": problems, "refusals": contexts})


def _contexts(refusals: Iterable[PydanticCustomError]) -> list[dict[str, Any]]:
    return [dict(refusal.context or {}) for refusal in refusals]
