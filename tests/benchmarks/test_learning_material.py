"""What the runs of a comparison of contexts begin with."""

import hashlib
from pathlib import Path

import pytest

from benchmarks import context_household, context_terminal
from benchmarks.context_material import FILE, MODEL, MaterialFailed, made_material
from benchmarks.learning_material import material_of
from benchmarks.learning_plan import PLANS, BadPlan, Plan, plan_from_file
from engine.models.origin import model_origin
from engine.rollout.context_tools import FOLD
from engine.rollout.renderers.chat import chat_renderer
from engine.spec.trajectory import Trajectory

EACH = 8
"""Demonstrations of a share; the first arm has two."""


@pytest.fixture(scope="module")
def plan() -> Plan:
    return plan_from_file(PLANS / "contexts-household.toml")


@pytest.fixture(scope="module")
def folder(plan: Plan, tmp_path_factory: pytest.TempPathFactory) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(context_household, "COUNT", EACH * 5)
        return made_material(plan, context_household.HouseholdDomain(), tmp_path_factory.mktemp("plan") / "material")


@pytest.fixture(scope="module")
def by_arm(plan: Plan, folder: Path) -> dict[str, list[Trajectory]]:
    """The documents of each arm; which one it is, the number of its task tells."""
    names = [plan.arms[0].name, *(arm.name for arm in plan.arms)]
    found: dict[str, list[Trajectory]] = {arm.name: [] for arm in plan.arms}
    for line in (folder / FILE).read_text().splitlines():
        document = Trajectory.model_validate_json(line)
        found[names[int(document.task.id.removeprefix("train-")) % len(names)]].append(document)
    return found


def test_every_arm_has_demonstrations_of_its_own_tasks_and_the_first_has_twice_as_many(
    by_arm: dict[str, list[Trajectory]],
) -> None:
    tasks = {arm: {document.task.id for document in documents} for arm, documents in by_arm.items()}
    assert [len(of_arm) for of_arm in tasks.values()] == [2 * EACH, EACH, EACH, EACH]
    assert all({True, False} == {one.success for one in trajectories} for trajectories in by_arm.values())


def test_every_turn_is_learned_once_behind_its_own_context(by_arm: dict[str, list[Trajectory]]) -> None:
    for documents in by_arm.values():
        for task in {document.task.id for document in documents}:
            of_task = [document for document in documents if document.task.id == task]
            assert of_task[0].context is not None
            learned = sum(len(document.turns) for document in of_task)
            assert learned - of_task[0].context.thoughts in (0, 1), "the turn that ends an episode is read by nobody"
            assert all(document.segments[0].prefix is None for document in of_task)


def test_every_turn_of_a_demonstration_begins_with_a_thought(by_arm: dict[str, list[Trajectory]]) -> None:
    turns = [turn for trajectories in by_arm.values() for one in trajectories for turn in one.turns]
    assert all("".join(turn.pieces).startswith("<think>") for turn in turns)


def test_demonstrations_stand_in_the_contexts_of_their_arms(folder: Path, by_arm: dict[str, list[Trajectory]]) -> None:
    renderer = chat_renderer(folder / "models" / MODEL, reasoning="on")
    read = {
        arm: [renderer.text(trajectory.turns[0].context_ids) for trajectory in trajectories]
        for arm, trajectories in by_arm.items()
    }
    turn, thoughts = "<|im_start|>assistant", "</think>"
    assert all(text.count(turn) == 1 for text in read["causal"]), "one segment, which begins with the opening"
    assert all(text.count(thoughts) == 0 for text in read["reasoning"])
    assert max(text.count(turn) for text in read["reasoning"]) > 3, "a turn stands behind what was said before it"
    assert {text.count(turn) - 1 for text in read["sliding-window"]} <= {0, 2}
    assert any(text.count(thoughts) == 2 for text in read["sliding-window"]), "a window keeps its thoughts"
    assert any("folded: I took" in text for text in read["self-managing"])


def test_who_has_tools_of_the_context_folds_the_search_behind_the_find(by_arm: dict[str, list[Trajectory]]) -> None:
    for trajectory in by_arm["self-managing"]:
        assert trajectory.context is not None
        assert bool(trajectory.context.left_turns) == trajectory.success
    folds = [call for one in by_arm["self-managing"] for turn in one.turns for call in turn.tool_calls]
    assert any(call.name == FOLD and not call.failed for call in folds)
    assert not any(call.name == FOLD for one in by_arm["causal"] for turn in one.turns for call in turn.tool_calls)


def test_equal_plans_make_equal_material(
    plan: Plan, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(context_household, "COUNT", EACH * 5)
    again = made_material(plan, context_household.HouseholdDomain(), tmp_path / "material")
    files = [path.relative_to(folder) for path in sorted(folder.rglob("*")) if path.is_file()]
    assert Path(FILE) in files
    for file in files:
        digests = [hashlib.sha256((root / file).read_bytes()).hexdigest() for root in (folder, again)]
        assert digests[0] == digests[1], file


def test_a_demonstration_that_misses_its_end_is_named_and_leaves_nothing(
    plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(context_household, "COUNT", 8)
    monkeypatch.setattr(context_household, "_managed", lambda turns: turns[:1])
    with pytest.raises(MaterialFailed, match=r"the demonstration of train-\d+ ended by answered"):
        made_material(plan, context_household.HouseholdDomain(), tmp_path / "material")
    assert not (tmp_path / "material").exists()


def test_a_run_reads_what_was_made_beside_its_own_document(
    plan: Plan, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    material = material_of(plan, folder)
    material.bring(tmp_path)
    assert (tmp_path / FILE).read_bytes() == (folder / FILE).read_bytes()
    placed = material.placed(plan.spec(plan.arms[0], 0))
    assert model_origin(placed.model).weights == folder / "models" / MODEL


def test_material_that_nobody_makes_is_refused(tmp_path: Path) -> None:
    unknown = Plan("c", "m", (0,), {}, (), material="chess")
    with pytest.raises(BadPlan, match="material = chess: there is no such material; use one of: household, terminal"):
        material_of(unknown, tmp_path / "material")
    assert material_of(Plan("c", "m", (0,), {}, ()), tmp_path / "material").folder is None


def test_terminal_tasks_of_many_seeds_are_of_one_domain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(context_terminal, "SEEDS", 2)
    context_terminal.TerminalDomain().write_tasks(tmp_path / "tasks")
    names = sorted(path.name for path in (tmp_path / "tasks").iterdir())
    assert len(names) == 10
    assert {name.rsplit("-", 1)[1] for name in names} == {"0", "1"}
    instructions = [(path / "instruction.md").read_text() for path in (tmp_path / "tasks").iterdir()]
    assert all(sum(way.known_by in text for way in context_terminal.WAYS) == 1 for text in instructions)
