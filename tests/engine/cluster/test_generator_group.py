"""Which generators are lent, who takes which weights, and what a successor begins with."""

import pytest

from engine.cluster.generator_group import GeneratorGroup, Method, generator_names
from engine.spec.resources import Resources


class Calls:
    def __init__(self) -> None:
        self.done: list[tuple[str, int] | str] = []

    async def load(self, number: int, version: int) -> None:
        self.done.append((f"load {version}", number))

    async def ask(self, number: int, method: Method) -> int:
        self.done.append((method, number))
        return 3

    async def welcome(self) -> None:
        self.done.append("welcome")

    def since(self) -> list[tuple[str, int] | str]:
        done, self.done = self.done, []
        return done


def group_of(generators: int, ranks: int = 1) -> tuple[GeneratorGroup, Calls]:
    calls = Calls()
    return GeneratorGroup(Resources(generators=generators, trainer_ranks=ranks), calls), calls


async def test_the_shared_ones_are_lent_and_come_back_with_the_newest_weights() -> None:
    group, calls = group_of(4, ranks=2)
    await group.load(1)
    assert calls.since() == [("load 1", number) for number in range(4)]
    assert await group.lend() == 6
    assert calls.since() == [("vacate", 0), ("vacate", 1)]
    assert group.behind(2) == [2, 3]
    await group.load(2)
    assert calls.since() == [("load 2", 2), ("load 2", 3)]
    assert group.behind(2) == []
    group.returned()
    assert group.behind(2) == [0, 1]
    await group.load(2)
    await group.go_on()
    assert calls.since() == [
        ("load 2", 0),
        ("load 2", 1),
        ("occupy", 0),
        ("occupy", 1),
        "welcome",
        ("move_waiting", 2),
        ("move_waiting", 3),
    ]


@pytest.mark.parametrize(("generators", "ranks"), [(1, 1), (1, 4), (2, 2)])
async def test_where_all_are_shared_they_are_suspended_and_take_new_weights_all_the_same(
    generators: int, ranks: int
) -> None:
    group, calls = group_of(generators, ranks)
    assert await group.lend() == 0
    await group.load(1)
    group.returned()
    await group.go_on()
    numbers = range(generators)
    assert calls.since() == [(done, number) for done in ("suspend", "load 1", "resume") for number in numbers]


async def test_a_successor_begins_as_its_place_is_and_lacks_weights_only_where_it_samples() -> None:
    group, calls = group_of(2)
    await group.load(1)
    await group.lend()
    calls.since()
    for number in (0, 1):
        group.lost(number)
        await group.renewed(number)
    assert calls.since() == [("vacate", 0)]
    assert group.lacks_weights
    await group.load(1)
    assert calls.since() == [("load 1", 1)]
    assert not group.lacks_weights
    alone, calls = group_of(1)
    await alone.lend()
    calls.since()
    await alone.renewed(0)
    assert calls.since() == [("suspend", 0)]


def test_their_names_count_from_the_second_on() -> None:
    assert generator_names(Resources(generators=3)) == ["generator", "generator-1", "generator-2"]
