from collections import Counter
from typing import Any

import pytest

from engine.environments.apps.content import GIVEN_NAMES
from engine.environments.apps.database import Database, difference
from engine.environments.apps.environment import AppsSimulation
from engine.environments.apps.errands import Problem, problem_of, split_of
from engine.environments.apps.functions import APPS, FUNCTIONS, PAGE, documentation
from engine.environments.tool_world import ToolEnvironment
from engine.spec.message import AssistantMessage
from engine.spec.trajectory import Task
from tests.engine.environments.worlds import LEVELS, Played, calling, play, world

DONE = AssistantMessage("done")


def errand(level: int, beginning: str) -> tuple[ToolEnvironment[Any], Task, Problem]:
    """The first training errand whose text begins so."""
    environment = world("apps", level, partial_credit=True)
    for number, task in enumerate(environment.tasks("train")):
        if task.question.partition(". ")[2].startswith(beginning):
            return environment, task, problem_of(0, "train", number, level)
    raise AssertionError(beginning)


def solution(problem: Problem) -> list[AssistantMessage]:
    return [AssistantMessage.calling(request.name, request.arguments) for request in problem.run().requests]


def logged_in(problem: Problem, app: str) -> AssistantMessage:
    return calling("call", api=f"{app}.login", arguments={"password": problem.phone.password})


def made(problem: Problem, name: str, **arguments: object) -> AssistantMessage:
    token = problem.phone.token(name.partition(".")[0])
    return calling("call", api=name, arguments={"token": token, **arguments})


async def checks(environment: ToolEnvironment[Any], task: Task, messages: list[AssistantMessage]) -> tuple[bool, float]:
    """Whether it succeeded, and what it was paid if it did not."""
    rewards = (await play(environment, task, messages)).rewards
    return rewards.success, rewards.components.get("checks", 0.0)


async def test_a_payment_is_made_once_to_the_right_person_and_nothing_else_is_touched():
    environment, task, problem = errand(2, "pay ")
    way = solution(problem)
    payment = dict(way[-1].requests[0].arguments["arguments"])
    assert await checks(environment, task, [*way, DONE]) == (True, 0.0)
    twice = [*way, way[-1], DONE]
    other = made(problem, "payments.send", **{**payment, "to": "nobody@post.net"} | {"token": payment["token"]})
    less = made(problem, "payments.send", **{**payment, "amount": payment["amount"] - 1})
    note = made(problem, "notes.add", title="paid", text="all")
    extra = [*way, logged_in(problem, "notes"), note, DONE]
    for messages in (twice, [*way[:-1], other, DONE], [*way[:-1], less, DONE], extra, [DONE], [*way[:-1], DONE]):
        assert await checks(environment, task, messages) == (False, 0.0)
    assert not (await play(environment, task, way)).rewards.success  # nobody says that it is done


async def test_half_an_errand_is_paid_half_and_nothing_with_collateral_damage():
    environment, task, problem = errand(3, "add the event of ")
    way = solution(problem)
    only_event = [message for message in way if message.requests[0].arguments["api"] != "mail.send"]
    assert await checks(environment, task, [*way, DONE]) == (True, 0.0)
    assert await checks(environment, task, [*only_event, DONE]) == (False, 0.5)
    contact = next(iter(problem.start.tables["contacts"]))
    wreck = made(problem, "contacts.delete", id=contact)
    assert await checks(environment, task, [*only_event, wreck, DONE]) == (False, 0.0)
    unpaid = world("apps", 3)
    assert dict((await play(unpaid, task, [*only_event, DONE])).rewards.components) == {}


async def test_what_is_changed_and_changed_back_is_no_damage_but_a_new_row_for_an_old_one_is():
    environment, task, problem = errand(1, "set the phone")
    way = solution(problem)
    contacts = problem.start.tables["contacts"]
    other = next(number for number in contacts if number != way[-1].requests[0].arguments["arguments"]["id"])
    there = made(problem, "contacts.update", id=other, phone="1")
    back = made(problem, "contacts.update", id=other, phone=contacts[other]["phone"])
    assert await checks(environment, task, [*way, there, DONE]) == (False, 0.0)
    assert await checks(environment, task, [*way, there, back, DONE]) == (True, 0.0)
    environment, task, problem = errand(1, "set the note")
    number, note = next(iter(problem.start.tables["notes"].items()))
    anew = [made(problem, "notes.delete", id=number), made(problem, "notes.add", **note)]
    assert not (await play(environment, task, [*solution(problem), *anew, DONE])).rewards.success


async def test_what_is_asked_has_to_be_answered_with_the_number():
    environment, task, problem = errand(1, "how much did i pay")
    way, answer = solution(problem), problem.run().answer
    assert answer == task.answer
    for text, success in (
        (answer, True),
        (f" {answer}\n", True),
        (f"{answer} 17", False),
        ("done", False),
        ("", False),
    ):
        rewards = (await play(environment, task, [*way, AssistantMessage(text)])).rewards
        assert (rewards.success, rewards.components.get("checks")) == (success, None if success else 0.0)


async def test_calls_without_login_with_foreign_tokens_and_wrong_passwords_are_refused():
    environment, task, problem = errand(2, "pay ")
    token = problem.phone.token("payments")
    messages = [
        made(problem, "payments.balance"),  # the right token, which nobody gave out yet
        calling("call", api="payments.login", arguments={"password": "0000"}),
        logged_in(problem, "notes"),
        calling("call", api="payments.balance", arguments={"token": problem.phone.token("notes")}),
        logged_in(problem, "payments"),
        calling("call", api="payments.balance", arguments={"token": token}),
        calling("call", api="mail.list", arguments={"token": token}),
        calling("call", api="payments.balance", arguments={}),
    ]
    played = await play(environment, task, messages)
    assert played.errors == ["illegal", "illegal", None, "illegal", None, None, "illegal", "arguments"]
    assert len({problem.phone.token(app) for app in APPS}) == len(APPS)


async def test_every_fault_of_a_calls_arguments_is_named_at_once():
    environment, task, problem = errand(1, "move ")

    async def refused(**arguments: object) -> tuple[str, str | None]:
        call = calling("call", api="calendar.move", arguments=arguments)
        played = await play(environment, task, [logged_in(problem, "calendar"), call])
        return played.outputs[-1], played.errors[-1]

    faults = "error: id is missing; color is not an argument; day is no text; hour is no number"
    token = problem.phone.token("calendar")
    assert await refused(token=token, day=3, hour="nine", color="red") == (faults, "arguments")
    for hour in (True, 9.0, -1, 10**9, None, [9], {"at": 9}):
        _, error = await refused(token=token, id=1, day="monday", hour=hour)
        assert error == "arguments"
    for hour, day in ((7, "monday"), (20, "monday"), (9, "sunday")):
        _, error = await refused(token=token, id=1, day=day, hour=hour)
        assert error in ("value", "index")
    assert (await refused(token=token, id=1, day="x" * 100_000, hour=9))[1] == "arguments"
    flooded = {f"{number}" + "x" * 5000: 1 for number in range(50)}
    assert len((await refused(token=token, **flooded))[0]) < 2000


async def test_amounts_addresses_pages_and_ids_that_cannot_be_are_refused():
    environment, task, problem = errand(2, "pay ")
    balance = problem.start.tables["wallet"][1]["balance"]
    pay = {"to": "a@post.net", "note": "rent"}
    messages = [
        logged_in(problem, "payments"), logged_in(problem, "notes"),
        made(problem, "payments.send", **pay, amount=0),
        made(problem, "payments.send", **pay, amount=balance + 1),
        made(problem, "payments.send", to="ada", note="rent", amount=1),
        made(problem, "payments.list", page=0), made(problem, "payments.list", page=99),
        made(problem, "notes.read", id=5), made(problem, "notes.find", text="x"),
        calling("read_doc", api="notes.find"), calling("list_apis", app="bank"), calling("delete", api="x"),
    ]  # fmt: skip
    played = await play(environment, task, messages)
    assert played.errors == [
        None, None, "value", "value", "value", "index", "index", "index", "unknown-tool", "unknown-tool", "index",
        "unknown-tool",
    ]  # fmt: skip


async def test_lists_come_in_pages_and_every_row_once():
    environment, task, problem = errand(2, "add the event of the mail ")
    mails = sorted(problem.start.tables["mails"])
    assert len(mails) >= PAGE
    played: Played = await play(
        environment, task, [logged_in(problem, "mail"), made(problem, "mail.list"), made(problem, "mail.list", page=2)]
    )
    seen = [int(part.split(",")[0]) for output in played.outputs[1:] for part in output.split('"id": ')[1:]]
    assert seen == mails if len(mails) > PAGE else seen == mails[:PAGE]
    assert '"text"' not in "".join(played.outputs)


def test_every_function_is_listed_documented_and_run_by_some_errand_or_its_opposite():
    environment = world("apps", 1)
    task = environment.tasks("train")[0]
    simulation = environment.simulation("train", 0, 1)

    def output(message: AssistantMessage) -> str:
        return simulation.called(simulation.first, message.requests[0]).output

    listed = [name for app in output(calling("list_apis")).split(", ") for name in
              output(calling("list_apis", app=app)).split(", ")]  # fmt: skip
    assert sorted(listed) == sorted(FUNCTIONS)
    assert len(APPS) >= 6
    for name in listed:
        document = output(calling("read_doc", api=name))
        assert document == documentation(name)
        assert all(f"{parameter} (" in document for parameter in FUNCTIONS[name].parameters)
    assert task.answer not in "".join(map(documentation, listed))


def test_an_errand_takes_a_bounded_number_of_calls_over_its_level_of_apps():
    for level, apps, most in ((1, {1}, 3), (2, {2}, 6), (3, {3, 4}, 8)):
        for number in range(200):
            requests = problem_of(0, "train", number, level).run().requests
            called = [request.arguments["api"] for request in requests]
            assert len({name.partition(".")[0] for name in called}) in apps
            assert 2 <= len(called) <= most


@pytest.mark.parametrize("level", LEVELS)
def test_every_errand_asks_for_something_that_is_not_so_yet(level):
    kinds = Counter[str]()
    for number in range(300):
        simulation = AppsSimulation(problem_of(0, "train", number, level), partial_credit=False)
        assert not simulation.answered(simulation.first, "done").success
        kinds[simulation.question.split(". ")[1].split(" ")[0]] += 1
    assert min(kinds.values()) > 30


def test_two_people_have_the_same_given_name():
    for number in range(50):
        contacts = problem_of(0, "train", number, 2).start.tables["contacts"].values()
        given = Counter(str(contact["name"]).split(" ")[0] for contact in contacts)
        assert max(given.values()) == 2
        assert set(given) <= set(GIVEN_NAMES)


def test_no_held_out_errand_is_ever_a_training_errand():
    for level in LEVELS:
        problems = {split: [problem_of(0, split, n, level) for n in range(200)] for split in ("train", "heldout")}
        found = {
            split: {f"{problem.text.partition('. ')[2]} {problem.start.tables}" for problem in of_split}
            for split, of_split in problems.items()
        }
        assert not found["train"] & found["heldout"]
        assert all(split_of(p.text.partition(". ")[2], p.start) == split for split in problems for p in problems[split])


def test_a_difference_names_what_was_added_changed_and_removed():
    start = Database({"notes": {1: {"title": "a", "text": "b"}, 2: {"title": "c", "text": "d"}}})
    after = start.changed("notes", 1, {"text": "x"}).removed("notes", 2).added("notes", {"title": "e", "text": "f"})
    assert difference(start.tables, after.tables) == Counter({
        ("changed", "notes", 1, "text", "x"): 1,
        ("removed", "notes", 2): 1,
        ("added", "notes", ("text", "f"), ("title", "e")): 1,
    })  # fmt: skip
    assert difference(start.tables, start.tables) == Counter()
    assert start.tables["notes"][1]["text"] == "b"


async def test_verdicts_credit_reading_the_documentation_and_steps_and_no_damage():
    environment, task, problem = errand(2, "pay ")
    steps = solution(problem)
    way = [
        (calling("list_apis"), "good"),
        (calling("list_apis", app="payments"), "good"),
        (calling("list_apis", app="files"), "bad"),
        (calling("read_doc", api="payments.send"), "good"),
        (calling("read_doc", api="payments.send"), "bad"),
        (calling("read_doc", api="notes.delete"), "bad"),
        *[(step, "good") for step in steps],
        (steps[-1], "bad"),
    ]
    played = await play(environment, task, [message for message, _ in way])
    calls = [(call,) for call in played.calls]
    expected = [verdict for _, verdict in way]
    assert environment.verdicts(task, [*calls, ()], "done") == [*expected, "bad"]
    assert environment.verdicts(task, [*calls[:-1], ()], "done") == [*expected[:-1], "good"]
