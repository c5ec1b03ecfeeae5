from collections import Counter, deque
from random import Random

import pytest

from engine.environments.household import HouseholdEnvironment
from engine.environments.household_planner import distance
from engine.environments.household_tasks import NUMBERS, OBJECTS, RECEPTACLES, split_of, world_of
from engine.environments.household_world import (
    HELD,
    SHOWN_ACTIONS,
    Goal,
    HouseholdState,
    World,
    acted,
    admissible,
    first_state,
    reached,
    scene,
)
from engine.models.tokenizer import CHARACTERS, MARKS, tokenizer_for
from engine.models.words import WORDS_OF_VOCABULARY
from engine.rollout.demonstrations import DemonstrationWriter
from engine.rollout.renderers.characters import CharacterRenderer
from engine.spec.environment import Household
from engine.spec.examples import EXAMPLE_QUESTIONS
from engine.spec.message import AssistantMessage
from engine.spec.recipe import Reward
from engine.spec.run import Dataset
from engine.spec.supervised import Demonstrations

LEVELS = [1, 2, 3, 4, 5]
RENDERER = CharacterRenderer(tokenizer_for("household"), reasoning=False)
KITCHEN = World(
    receptacles=("table 1", "fridge 1", "microwave 1", "sinkbasin 1", "cabinet 1"),
    objects=("mug 1", "egg 1", "desklamp 1", "book 1"),
    places=(1, 0, 0, 0),
    goal=Goal("heat", "mug", "cabinet"),
)


def environment_of(*levels: int, seed: int = 0) -> HouseholdEnvironment:
    return HouseholdEnvironment(Household(levels=list(levels)), Dataset(seed=seed))


def acting(command: str) -> AssistantMessage:
    return AssistantMessage.calling("act", {"command": command})


def played(world: World, *commands: str) -> list[str | None]:
    """What is seen after each; None where nothing happens."""
    state, seen = first_state(world), list[str | None]()
    for command in commands:
        found = acted(world, state, command)
        seen.append(None if found is None else found[1])
        state = state if found is None else found[0]
    return seen


def test_a_mug_is_found_heated_and_put_away_by_the_documented_commands():
    way = [
        ("go to fridge 1", "fridge 1 is closed. You can: open fridge 1"),
        ("take mug 1 from fridge 1", None),
        (
            "open fridge 1",
            "You open fridge 1. In fridge 1: mug 1. You can: take mug 1 from fridge 1; close fridge 1",
        ),
        (
            "take mug 1 from fridge 1",
            "You take mug 1 from fridge 1. In fridge 1: nothing. "
            "You can: cool mug 1 with fridge 1; put mug 1 in fridge 1; close fridge 1",
        ),
        ("inventory", "You carry mug 1."),
        ("heat mug 1 with microwave 1", None),
        (
            "go to microwave 1",
            "microwave 1 is closed. You can: heat mug 1 with microwave 1; open microwave 1",
        ),
        (
            "heat mug 1 with microwave 1",
            "You heat mug 1 with microwave 1. microwave 1 is closed. You can: open microwave 1",
        ),
        ("examine mug 1", "You see hot mug 1."),
        ("go to cabinet 1", "cabinet 1 is closed. You can: open cabinet 1"),
        ("put mug 1 in cabinet 1", None),
        (
            "open cabinet 1",
            "You open cabinet 1. In cabinet 1: nothing. You can: put mug 1 in cabinet 1; close cabinet 1",
        ),
        (
            "move mug 1 to cabinet 1",
            "You put mug 1 in cabinet 1. In cabinet 1: mug 1. You can: take mug 1 from cabinet 1; close cabinet 1",
        ),
    ]
    assert played(KITCHEN, *(command for command, _ in way)) == [seen for _, seen in way]
    state = first_state(KITCHEN)
    for command, _ in way:
        assert not reached(KITCHEN, state)
        state, _ = acted(KITCHEN, state, command) or (state, "")
    assert reached(KITCHEN, state)


@pytest.mark.parametrize(
    "command",
    [
        "", "go to", "go to table 1", "go to table 2", "GO TO fridge 1", "go to fridge 1 ", "take book 1",
        "take mug 1 from table 1", "take desklamp 1 from table 1", "put egg 1 in table 1", "open table 1",
        "close fridge 1", "heat egg 1 with microwave 1", "use egg 1", "examine mug 1", "dance",
    ],
)  # fmt: skip
async def test_what_is_not_admissible_is_an_illegal_error_and_changes_nothing(command):
    environment = environment_of(3)
    task = environment.tasks("train")[0]
    async with environment.session(task, sandboxes=None) as tool:  # type: ignore[arg-type]
        before = await tool.snapshot()
        (call,) = (await tool.act(acting(command if command != "go to table 1" else "go to sofa 9"))).calls
        after = await tool.snapshot()
    assert (call.status, call.error_class, call.output) == ("error", "illegal", "Nothing happens.")
    assert before.state == after.state  # type: ignore[attr-defined]
    assert acted(KITCHEN, HouseholdState(0, KITCHEN.places), command) is None


def test_heat_undoes_cool_and_clean_stays():
    state = HouseholdState(1, (HELD, 0, 0, 0))
    for place, command in (
        (1, "cool mug 1 with fridge 1"),
        (3, "clean mug 1 with sinkbasin 1"),
        (2, "heat mug 1 with microwave 1"),
    ):
        found = acted(KITCHEN, HouseholdState(place, state.places, state.opened, state.treated), command)
        assert found is not None
        state = found[0]
    assert state.treated == {(0, "clean"), (0, "hot")}


def test_examining_needs_the_lamp_lit_and_the_thing_in_the_hand_at_the_lamp():
    world = World(KITCHEN.receptacles, KITCHEN.objects, KITCHEN.places, Goal("examine", "book", None))
    lit_first = HouseholdState(0, world.places, lit=True)
    assert not reached(world, lit_first)
    taken, _ = acted(world, lit_first, "take book 1 from table 1") or (None, "")
    assert taken is not None
    assert reached(world, taken)
    away, _ = acted(world, taken, "go to fridge 1") or (None, "")
    assert away is not None
    assert not reached(world, away)


@pytest.mark.parametrize("level", LEVELS)
def test_distance_is_that_of_breadth_first_search(level):
    rng = Random(level)
    for number in range({1: 60, 2: 30, 3: 10, 4: 5, 5: 1}[level]):
        world = world_of(0, "train", number, level)
        state = first_state(world)
        for _ in range(rng.randrange(9)):
            state, _ = acted(world, state, str(rng.choice(admissible(world, state)))) or (state, "")
        assert distance(world, state) == _searched(world, state)


def _searched(world: World, state: HouseholdState) -> int:
    known, queue = {state}, deque([(state, 0)])
    while True:
        here, steps = queue.popleft()
        if reached(world, here):
            return steps
        for action in admissible(world, here):
            after = acted(world, here, str(action))
            assert after is not None, "every admissible action can be done"
            if after[0] not in known:
                known.add(after[0])
                queue.append((after[0], steps + 1))


def test_a_task_depends_on_its_number_and_the_dataset_seed_alone():
    tasks = environment_of(*LEVELS).tasks("train")
    assert [task.question for task in tasks[:3]] == [
        "You see sofa 1, sinkbasin 1, shelf 1. Your task: put pen in sofa.",
        "You see microwave 1, fridge 1, cabinet 1, sinkbasin 1. Your task: examine egg under desklamp.",
        "You see shelf 1, sinkbasin 1, fridge 1, shelf 2. Your task: put clean pan in shelf.",
    ]
    assert tasks[7] == environment_of(*LEVELS).tasks("train")[7]
    assert tasks[7] != environment_of(*LEVELS, seed=1).tasks("train")[7]


def test_no_held_out_layout_is_ever_a_training_layout():
    for level in LEVELS:
        train = {world_of(0, "train", number, level).layout for number in range(600)}
        heldout = {world_of(1, "heldout", number, level).layout for number in range(200)}
        assert not train & heldout
        assert all(split_of(world_of(0, "heldout", number, level)) == "heldout" for number in range(50))


def test_every_level_asks_for_its_kinds_of_goals():
    asked = {level: Counter(world_of(0, "train", n, level).goal.kind for n in range(300)) for level in LEVELS}
    assert {level: set(kinds) for level, kinds in asked.items()} == {
        1: {"put"},
        2: {"put", "examine"},
        3: {"heat", "cool", "clean"},
        4: {"two"},
        5: {"put", "examine", "heat", "cool", "clean", "two"},
    }


def test_the_question_tells_no_place_and_an_observation_only_what_is_there():
    for number in range(100):
        world = world_of(0, "train", number, 5)
        assert not any(name in world.question for name in world.objects)
        for here in range(len(world.receptacles)):
            hidden = [name for name, place in zip(world.objects, world.places, strict=True) if place != here]
            assert not any(name in scene(world, HouseholdState(here, world.places)) for name in hidden)


def test_an_observation_names_a_bounded_number_of_admissible_actions():
    crowded = World(("table 1",), tuple(f"{thing} 1" for thing in OBJECTS), (0,) * len(OBJECTS), KITCHEN.goal)
    shown = scene(crowded, HouseholdState(0, crowded.places)).partition("You can: ")[2].split("; ")
    assert len(shown) == SHOWN_ACTIONS
    legal = [str(action) for action in admissible(crowded, HouseholdState(0, crowded.places))]
    assert shown == legal[:SHOWN_ACTIONS]


@pytest.mark.parametrize("level", LEVELS)
def test_a_turn_of_a_demonstration_fits_into_the_default_limits(level):
    environment = environment_of(level)
    wanted = Demonstrations(count=300, wrong_fraction=0.0, tool_error_fraction=1.0)
    demos = list(DemonstrationWriter(environment, RENDERER, Reward(), seed=0).demonstrations(wanted))
    assert max(len(turn.token_ids) for demo in demos for turn in demo.turns) <= Household().max_turn_tokens
    if level <= 2:
        assert max(len(demo.turns) for demo in demos) <= Household().max_turns


def test_every_text_of_the_house_is_words():
    """Else a small policy would have to spell."""
    tokenizer, environment = tokenizer_for("household"), environment_of(*LEVELS)
    characters = range(len(MARKS), len(MARKS) + len(CHARACTERS))
    wanted = Demonstrations(count=400, wrong_fraction=0.3, tool_error_fraction=0.5)
    for demonstration in DemonstrationWriter(environment, RENDERER, Reward(), seed=0).demonstrations(wanted):
        for turn in demonstration.turns:
            spelled = [token for token in (*turn.context_ids, *turn.token_ids) if token in characters]
            assert set(tokenizer.decode(spelled)) <= {"."}
    assert set(RECEPTACLES) | set(OBJECTS) | set(NUMBERS) <= set(WORDS_OF_VOCABULARY["household"])


async def test_a_snapshot_brings_the_house_back_as_often_as_one_likes():
    environment = environment_of(1)
    task = environment.tasks("train")[0]
    commands = task.answer.split("; ")
    async with environment.session(task, sandboxes=None) as tool:  # type: ignore[arg-type]
        first = await tool.act(acting(commands[0]))
        kept = await tool.snapshot()
        for _ in range(2):
            observed = [await tool.act(acting(command)) for command in commands[1:]]
            assert observed[-1].done
            assert (await tool.score()).success
            await tool.restore(kept)
            assert not (await tool.score()).success
            assert observed[0] != first
        await tool.drop(kept)


def test_verdicts_tell_looking_and_coming_nearer_from_everything_else():
    environment = environment_of(1)
    task = environment.tasks("train")[0]
    assert task.answer == (
        "go to sofa 1; go to sinkbasin 1; take pen 1 from sinkbasin 1; go to sofa 1; put pen 1 in sofa 1"
    )
    simulation = environment.simulation("train", 0, 1)
    reported = [
        ("go to sofa 1", "good"),  # the pen could have been here
        ("go to sofa 1", "bad"),  # illegal
        ("go to sinkbasin 1", "good"),
        ("look", "bad"),
        ("take bread 1 from sinkbasin 1", "bad"),
        ("put bread 1 in sinkbasin 1", "good"),  # one step nearer than with a full hand
        ("take pen 1 from sinkbasin 1", "good"),
        ("go to shelf 1", "bad"),  # nothing is left to be found
        ("go to sofa 1", "good"),
        (None, "bad"),
    ]
    assert simulation.verdicts([command for command, _ in reported]) == [verdict for _, verdict in reported]


@pytest.mark.parametrize("level", LEVELS)
def test_every_step_of_a_demonstrated_solution_is_good_and_every_slip_bad(level):
    environment = environment_of(level)
    wanted = Demonstrations(count=150, wrong_fraction=0.0, tool_error_fraction=0.5)
    for demonstration in DemonstrationWriter(environment, RENDERER, Reward(), seed=4).demonstrations(wanted):
        wrong = [not turn.tool_calls or turn.failed_calls > 0 for turn in demonstration.turns]
        assert environment.verdicts(
            demonstration.task, [turn.tool_calls for turn in demonstration.turns], demonstration.answer
        ) == ["bad" if slip else "good" for slip in wrong]


@pytest.mark.parametrize("level", LEVELS)
def test_the_documented_examples_are_the_first_training_questions(level):
    default = Household().levels
    tasks = environment_of(*(default if level in default else [level])).tasks("train")
    asked = [task.question for task in tasks[:9] if task.level == level]
    assert list(EXAMPLE_QUESTIONS["household"][level]) == asked[:3]
