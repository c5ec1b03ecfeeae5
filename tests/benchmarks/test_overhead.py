"""What the overhead benchmark compares differs in one part only."""

from argparse import Namespace

import pytest

from benchmarks.overhead import PARTS, _spec


@pytest.mark.parametrize("name", PARTS)
def test_with_and_without_differ_in_the_part_alone(name: str) -> None:
    options = Namespace(threads=2, steps=6)
    off, on = (_spec(PARTS[name], which, options) for which in ("off", "on"))
    assert off.model_copy(update={"recipe": on.recipe}) == on
    [part] = PARTS[name]["on"]
    assert getattr(off.recipe, part) is None
    assert getattr(on.recipe, part) is not None
    assert off.recipe.model_copy(update={part: getattr(on.recipe, part)}) == on.recipe
