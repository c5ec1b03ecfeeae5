"""What works on trajectories of one segment only is refused where contexts are known to be written again."""

from typing import Any

import pytest

from engine.loop import environment_requirements
from engine.models.tokenizer import tokenizer_for
from engine.rollout.renderers.characters import CharacterRenderer
from engine.spec.run import RunSpec


class Rewriting(CharacterRenderer):
    @property
    def append_only(self) -> bool:
        return False


@pytest.mark.parametrize("part", ["purification", "expert_starts"])
def test_a_part_that_needs_one_segment_is_refused_with_the_reason(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    document: dict[str, Any] = {"name": "x", "environment": {"sandbox": {"snapshots": True}}, "recipe": {part: {}}}
    spec = RunSpec.model_validate(document)
    assert environment_requirements.lacking_in_environment(spec) == []
    renderer = Rewriting(tokenizer_for(spec.model.vocabulary), reasoning=False)
    monkeypatch.setattr(environment_requirements, "renderer_for", lambda *_: renderer)
    [problem] = environment_requirements.lacking_in_environment(spec)
    assert problem.field == f"recipe.{part}"
    assert "writes earlier turns again" in problem.message
    plain = RunSpec.model_validate(document | {"recipe": {}})
    assert environment_requirements.lacking_in_environment(plain) == []
