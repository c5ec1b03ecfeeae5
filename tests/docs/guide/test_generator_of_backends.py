"""The generator of docs/guide/backends.md, as the page has it, behind a run's workers."""

import asyncio
import re
from pathlib import Path

import pytest

from engine.cluster.generators import generator_for, hand_over_weights
from engine.cluster.in_process import InProcessWorkers
from engine.inference.interface import GenerationAborted, Generator
from engine.models.weights import StateDict
from engine.spec.backends import GENERATORS
from engine.spec.generation import GenerateRequest, TextGenerator
from engine.spec.run import RunSpec
from engine.training.columns import UpdateRequest
from tests.engine.groups import grouped, requests_of

PAGE = Path(__file__).parents[3] / "docs" / "guide" / "backends.md"
REQUEST = GenerateRequest("s", (1, 2), 8, frozenset(), temperature=1.0, seed=0)


@pytest.fixture
def spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunSpec:
    """A run that asks for the generator of the page, which is entered as the page says."""
    module, entry, *_ = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    (tmp_path / "list_generator.py").write_text(module)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(GENERATORS, "list", "")
    exec(entry.replace("engine.inference.", ""), {"GENERATORS": GENERATORS})
    run = RunSpec.model_validate(
        {
            "name": "from a list",
            "environment": {"id": "sokoban", "levels": [1]},
            "model": {"layers": 1, "hidden_size": 16, "heads": 2, "kv_heads": 1, "head_dim": 8,
                      "intermediate_size": 24, "context_tokens": 256},
            "recipe": {"stages": [], "credit": {"kind": "chunk-return"}},
            "schedule": {"prompts_per_step": 2, "group_size": 4, "minibatch_trajectories": 8},
            "resources": {"threads": 1},
        }
    )  # fmt: skip
    # The names that a spec accepts are those entered when it is imported: here it has been imported already.
    return run.model_copy(update={"resources": run.resources.model_copy(update={"generator": "list"})})


def test_the_page_leaves_no_call_of_the_protocol_out(spec: RunSpec) -> None:
    asked = {name for name in vars(Generator) | vars(TextGenerator) if not name.startswith("_")}
    assert len(asked) == 9
    assert asked <= set(dir(generator_for(spec.model, spec.resources, seed=spec.seed)))


async def test_a_step_is_played_and_learned_from_the_answers_of_the_list(spec: RunSpec, tmp_path: Path) -> None:
    workers = InProcessWorkers(spec, security_log=tmp_path)
    await workers.start()
    try:
        await workers.sync_weights(0)
        groups = grouped((await workers.collect(requests_of(spec, 1))).trajectories)
        await workers.credit(groups, (), step=1)
        report = (await workers.update(UpdateRequest.of(1, groups, (), credited=True))).metrics
    finally:
        await workers.close()
    turns = [turn for group in groups for rollout in group.rollouts for turn in rollout.turns]
    calls = [call.text for turn in turns for call in turn.tool_calls]
    assert len(calls) == len(turns) >= 8
    assert set(calls) == {"up", "left", "down", "right"}
    assert {version for turn in turns for version in turn.policy_versions} == {0}
    assert report["tokens"] == sum(len(turn.token_ids) for turn in turns)


async def test_suspended_it_answers_after_the_new_weights_and_what_is_aborted_says_so(spec: RunSpec) -> None:
    generator = generator_for(spec.model, spec.resources, seed=spec.seed)
    await generator.suspend()
    waiting = asyncio.create_task(generator.generate(REQUEST))
    await asyncio.sleep(0.01)
    assert not waiting.done()
    await hand_over_weights(generator, StateDict(), 7)
    assert set((await waiting).policy_versions) == {7}
    await generator.suspend()
    aborted = asyncio.create_task(generator.generate(REQUEST))
    await asyncio.sleep(0.01)
    await generator.abort_all()
    with pytest.raises(GenerationAborted):
        await aborted
    generator.close()
