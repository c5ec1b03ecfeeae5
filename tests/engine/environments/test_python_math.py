from collections import Counter

import pytest

from engine.environments.python_math import TOOL, PythonMathEnvironment, is_right
from engine.environments.python_math_problems import problem, split_of
from engine.rollout.demonstrations import DemonstrationWriter
from engine.spec.environment import PythonMath
from engine.spec.examples import EXAMPLE_QUESTIONS
from engine.spec.message import AssistantMessage, Message
from engine.spec.recipe import Reward
from engine.spec.run import Dataset
from engine.spec.supervised import Demonstrations
from engine.spec.trajectory import Trajectory
from sandboxes.pool import Pool
from sandboxes.spec import SandboxSpec
from tests.engine.rollout.scripted import RENDERER, WITH_REASONING

ENVIRONMENT = PythonMathEnvironment(PythonMath(), Dataset())
FIRST_QUESTIONS = ["42*63=?", "(78+39)*(98-28)=?", "cell d*cell g+41=?", "623-161=?"]
"""Written down: a dataset is named by its seed, so its tasks must not change with the machine or the version."""


def demonstrated(shape: PythonMath, wanted: Demonstrations) -> list[Trajectory]:
    renderer = WITH_REASONING if shape.reasoning else RENDERER
    writer = DemonstrationWriter(PythonMathEnvironment(shape, Dataset()), renderer, Reward(), seed=0)
    return list(writer.demonstrations(wanted))


def test_a_task_depends_on_its_number_and_the_dataset_seed_alone():
    fresh = PythonMathEnvironment(PythonMath(), Dataset())
    list(fresh.tasks("heldout")[:20])
    assert fresh.tasks("train")[7] == ENVIRONMENT.tasks("train")[7]
    assert [task.question for task in ENVIRONMENT.tasks("train")[:4]] == FIRST_QUESTIONS
    other = PythonMathEnvironment(PythonMath(), Dataset(seed=1))
    assert other.tasks("train")[7].question != ENVIRONMENT.tasks("train")[7].question


def test_the_documented_examples_of_level_4_are_the_first_questions_where_it_is_the_only_one():
    alone = PythonMathEnvironment(PythonMath(levels=[4]), Dataset())
    assert [task.question for task in alone.tasks("train")[:3]] == list(EXAMPLE_QUESTIONS["python-math"][4])


@pytest.mark.parametrize("level", [1, 2, 3])
def test_the_documented_examples_are_the_first_training_questions(level):
    asked = [task.question for task in ENVIRONMENT.tasks("train")[:9] if task.level == level]
    assert list(EXAMPLE_QUESTIONS["python-math"][level]) == asked


def test_no_held_out_question_is_ever_a_training_question():
    for seed in (0, 1):
        for level in (1, 2, 3, 4):
            train = {problem(seed, "train", number, level).question for number in range(4000)}
            heldout = {problem(1 - seed, "heldout", number, level).question for number in range(1000)}
            assert not train & heldout
            assert all(split_of(problem(seed, "heldout", number, level)) == "heldout" for number in range(100))


@pytest.mark.parametrize("level", [1, 2, 3, 4])
def test_no_constant_answer_is_right_in_one_percent_of_the_tasks(level):
    answers = Counter(problem(0, "train", number, level).answer for number in range(6000))
    assert answers.most_common(1)[0][1] / 6000 < 0.01


@pytest.mark.parametrize("level", [1, 2, 3, 4])
def test_the_answer_is_the_value_of_the_expression_with_the_hidden_numbers_in_it(level):
    for number in range(500):
        drawn = problem(0, "train", number, level)
        expression = drawn.question.removesuffix("=?")
        for cell, value in drawn.hidden.items():
            expression = expression.replace(f"cell {cell}", str(value))
        assert expression == drawn.expression
        assert eval(expression) == drawn.answer
        assert len(drawn.hidden) == {3: 2, 4: 3}.get(level, 0)
        assert drawn.locked == (level == 4)


@pytest.mark.parametrize(("level", "most"), [(1, 3), (2, 3), (3, 4), (4, 6)])
def test_a_demonstration_has_as_many_turns_as_its_level_needs(level, most):
    wanted = Demonstrations(count=600, wrong_fraction=0.0, tool_error_fraction=1.0)
    played = demonstrated(PythonMath(levels=[level]), wanted)
    assert max(len(trajectory.turns) for trajectory in played) == most


def test_levels_are_drawn_evenly():
    assert Counter(task.level for task in ENVIRONMENT.tasks("heldout")[:510]) == {1: 170, 2: 170, 3: 170}


def test_the_prompt_does_not_contain_the_answer_or_a_hidden_number():
    for number in range(2, 300, 3):
        drawn, task = problem(0, "train", number, 3), ENVIRONMENT.tasks("train")[number]
        digits = RENDERER.text(RENDERER.prompt([Message("user", task.question)], [TOOL]))
        constant = digits.rstrip("=?<asitn>").replace("+", " ").replace("-", " ").replace("*", " ").split()
        assert task.question == drawn.question
        assert task.answer not in constant
        assert "show" not in digits


def test_only_the_very_number_scores():
    task = ENVIRONMENT.tasks("train")[0]
    assert is_right(task, task.answer)
    assert is_right(task, f" {task.answer}\n")
    for wrong in ("", "0" + task.answer, task.answer + ".0", "+" + task.answer, task.answer + task.answer):
        assert not is_right(task, wrong)


def test_a_task_beyond_the_split_does_not_exist():
    tasks = ENVIRONMENT.tasks("heldout")
    assert tasks[-1] == tasks[len(tasks) - 1]
    with pytest.raises(IndexError, match="510"):
        tasks[510]


@pytest.mark.parametrize(
    ("code", "outcome"),
    [
        ('open_cell("{a}");show("{a}")', "'{x}'"),
        ('show("{a}")', "KeyError"),
        ('open_cell("{b}");show("{b}")', "ValueError"),
        ('open_cell("{b}",{x});show("{b}")', "ValueError"),
        ('open_cell("{b}",\'{x}\');show("{b}")', "'{y}'"),
        ('show("{a}")+show("{b}")', "KeyError"),
        ("'{x}'*'{y}'", "TypeError"),
        ("int('{x}')*int('{y}')", "{product}"),
    ],
)
async def test_a_locked_cell_opens_with_the_text_of_the_one_before_it_and_shows_text(code, outcome):
    environment = PythonMathEnvironment(PythonMath(levels=[4]), Dataset())
    (a, x), (b, y), _ = problem(0, "train", 0, 4).hidden.items()
    phrase = {"a": a, "b": b, "x": x, "y": y, "product": x * y}
    async with (
        Pool(SandboxSpec(), size=1) as sandboxes,
        environment.session(environment.tasks("train")[0], sandboxes) as tool,
    ):
        answered = await tool.act(AssistantMessage.calling("python", {"code": code.format(**phrase)}))
    assert answered.messages[0].content.removeprefix("Error: ") == outcome.format(**phrase)
