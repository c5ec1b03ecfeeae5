from collections import deque
from random import Random

import pytest

from engine.environments.sokoban import SokobanEnvironment, SokobanSimulation
from engine.environments.sokoban_tasks import grid_of, split_of
from engine.environments.sokoban_world import (
    BORDER,
    STEP,
    Room,
    SokobanState,
    distances,
    drawn,
    pushed,
    solved,
)
from engine.models.tokenizer import tokenizer_for
from engine.rollout.demonstrations import DemonstrationWriter
from engine.rollout.renderers.characters import CharacterRenderer
from engine.spec.environment import Sokoban
from engine.spec.examples import EXAMPLE_QUESTIONS
from engine.spec.message import AssistantMessage
from engine.spec.recipe import Reward
from engine.spec.run import Dataset
from engine.spec.supervised import Demonstrations

LEVELS = [1, 2, 3]
RENDERER = CharacterRenderer(tokenizer_for("sokoban"), reasoning=False)
GRID = """\
######
#____#
#_@$.#
#____#
#____#
######"""
ROOM, START = Room(BORDER, frozenset({16})), SokobanState(14, frozenset({15}))


def environment_of(*levels: int) -> SokobanEnvironment:
    return SokobanEnvironment(Sokoban(levels=list(levels)), Dataset())


def test_the_grid_shows_one_mark_per_cell():
    assert drawn(ROOM, START) == GRID
    on_goals = SokobanState(16, frozenset({15}))
    assert drawn(ROOM, on_goals).splitlines()[2] == "#__$+#"
    assert drawn(ROOM, SokobanState(14, frozenset({16}))).splitlines()[2] == "#_@_*#"


async def test_a_push_onto_the_goal_is_done_and_a_success():
    simulation = SokobanSimulation(ROOM, START)
    outcome = simulation.act(START, "right")
    assert (outcome.legal, outcome.done, outcome.success) == (True, True, True)
    assert outcome.output.splitlines()[2] == "#__@*#"


@pytest.mark.parametrize(
    ("state", "move"),
    [
        (SokobanState(7, frozenset({15})), "up"),  # a wall
        (SokobanState(15, frozenset({16})), "right"),  # a box before a wall
        (SokobanState(13, frozenset({14, 15})), "right"),  # a box before a box
        (START, "jump"),
        (START, "right "),
    ],
)
def test_a_move_that_does_not_go_is_illegal_and_changes_nothing(state, move):
    outcome = SokobanSimulation(ROOM, START).act(state, move)
    assert (outcome.legal, outcome.state, outcome.output) == (False, state, "Nothing happens.")


def test_a_box_that_can_never_reach_a_goal_ends_the_episode_without_success():
    simulation = SokobanSimulation(ROOM, SokobanState(8, frozenset({14 + 6})))
    down = simulation.act(simulation.first, "down")
    assert (down.legal, down.done) == (True, False)
    lost = simulation.act(down.state, "down")  # to the lower wall, from which no push leads away
    assert lost.output.splitlines()[4] == "#_$__#"
    assert (lost.legal, lost.done, lost.success) == (True, True, False)


@pytest.mark.parametrize("level", LEVELS)
def test_distances_are_those_of_a_forward_search_and_what_has_none_is_unsolvable(level):
    rng = Random(level)
    for number in range(12):
        room, state = grid_of(0, "train", number, level)
        for _ in range(rng.randrange(6)):
            state = pushed(room, state, rng.choice(list(STEP))) or state
        assert distances(room).get(state) == _searched(room, state)


def _searched(room: Room, state: SokobanState) -> int | None:
    known, queue = {state}, deque([(state, 0)])
    while queue:
        here, moves = queue.popleft()
        if solved(room, here):
            return moves
        for after in (pushed(room, here, move) for move in STEP):
            if after is not None and after not in known:
                known.add(after)
                queue.append((after, moves + 1))
    return None


@pytest.mark.parametrize(("level", "boxes", "shortest", "longest"), [(1, 1, 2, 4), (2, 1, 5, 10), (3, 2, 4, 12)])
def test_a_level_is_solvable_in_as_many_moves_as_it_says(level, boxes, shortest, longest):
    for number in range(60):
        room, state = grid_of(0, "train", number, level)
        assert len(state.boxes) == len(room.goals) == boxes
        assert shortest <= (_searched(room, state) or 0) <= longest


def test_a_task_depends_on_its_number_and_the_dataset_seed_alone():
    task = environment_of(1).tasks("train")[0]
    assert task == environment_of(1).tasks("train")[0]
    assert task.question == "######\n#___@#\n##__$#\n#____#\n##__.#\n######"
    assert task != SokobanEnvironment(Sokoban(), Dataset(seed=1)).tasks("train")[0]


def test_no_held_out_grid_is_ever_a_training_grid():
    for level in LEVELS:
        train = {drawn(*grid_of(0, "train", number, level)) for number in range(300)}
        heldout = {drawn(*grid_of(1, "heldout", number, level)) for number in range(200)}
        assert not train & heldout
        assert all(split_of(*grid_of(0, "heldout", number, level)) == "heldout" for number in range(30))


@pytest.mark.parametrize("level", LEVELS)
def test_a_turn_of_a_demonstration_fits_into_the_default_limits(level):
    wanted = Demonstrations(count=200, wrong_fraction=0.0, tool_error_fraction=1.0)
    demos = list(DemonstrationWriter(environment_of(level), RENDERER, Reward(), seed=0).demonstrations(wanted))
    assert max(len(turn.token_ids) for demo in demos for turn in demo.turns) <= Sokoban().max_turn_tokens


async def test_a_snapshot_brings_the_grid_back():
    environment = environment_of(1)
    task = environment.tasks("train")[0]
    async with environment.session(task, sandboxes=None) as tool:  # type: ignore[arg-type]
        start = await tool.snapshot()
        for _ in range(2):
            moves = [AssistantMessage.calling("move", {"direction": move}) for move in task.answer.split("; ")]
            observed = [await tool.act(move) for move in moves]
            assert observed[-1].done
            assert (await tool.score()).success
            assert "*" in observed[-1].messages[0].content
            await tool.restore(start)
            assert not (await tool.score()).success


def test_only_moves_on_a_shortest_way_are_good():
    room = Room(BORDER, frozenset({16}))
    far = SokobanSimulation(room, SokobanState(13, frozenset({15})))
    reported = [
        ("right", "good"),
        ("left", "bad"),  # away again
        ("right", "good"),
        ("jump", "bad"),
        (None, "bad"),
        ("right", "good"),
    ]
    assert far.verdicts([move for move, _ in reported]) == [verdict for _, verdict in reported]
    lost = SokobanSimulation(room, SokobanState(13, frozenset({19})))
    assert lost.verdicts(["down"]) == ["bad"]


@pytest.mark.parametrize("level", LEVELS)
def test_the_documented_examples_are_the_first_training_questions(level):
    default = Sokoban().levels
    tasks = environment_of(*(default if level in default else [level])).tasks("train")
    asked = [task.question for task in tasks[:9] if task.level == level]
    assert list(EXAMPLE_QUESTIONS["sokoban"][level]) == asked[:3]
