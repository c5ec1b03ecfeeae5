from hypothesis import given
from hypothesis import strategies as st

from engine.inference.routing import SPREAD, Router

PROMPT, OTHER = (1, 2, 3), (4, 5)


def test_a_session_stays_where_it_is_however_busy_its_server_gets() -> None:
    router = Router()
    assert router.place("a", PROMPT, {0: 0, 1: 0}) == 0
    assert router.place("a", PROMPT, {0: 500, 1: 0}) == 0


def test_a_group_reads_its_prompt_once_and_another_prompt_goes_to_the_least_busy() -> None:
    router = Router()
    router.place("a", PROMPT, {0: 0, 1: 0})
    assert router.place("b", PROMPT, {0: 3, 1: 0}) == 0
    assert router.place("c", OTHER, {0: 3, 1: 0}) == 1


def test_a_prompt_is_read_again_rather_than_waited_for() -> None:
    router = Router()
    router.place("a", PROMPT, {0: 0, 1: 0})
    assert router.place("b", PROMPT, {0: SPREAD - 1, 1: 0}) == 0
    assert router.place("c", PROMPT, {0: SPREAD, 1: 0}) == 1


def test_what_was_on_a_dead_server_moves_and_then_stays() -> None:
    router = Router()
    router.place("a", PROMPT, {0: 0, 1: 0})
    assert router.place("a", PROMPT, {1: 9}) == 1
    assert router.place("a", PROMPT, {0: 0, 1: 9}) == 1
    assert router.place("b", PROMPT, {0: 0, 1: 9}) == 1


@given(st.lists(st.tuples(st.integers(0, 5), st.sampled_from([PROMPT, OTHER]), st.booleans()), max_size=60))
def test_nothing_is_remembered_of_sessions_that_are_over(calls: list[tuple[int, tuple[int, ...], bool]]) -> None:
    router = Router()
    for number, prompt, is_over in calls:
        router.place(str(number), prompt, {0: 0, 1: 1})
        if is_over:
            router.forget(str(number))
    for number in range(6):
        router.forget(str(number))
    assert router == Router()
