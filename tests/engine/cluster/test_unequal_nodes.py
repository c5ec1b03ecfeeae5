"""Clusters as they are: nodes of unequal size, too few of them, none at all."""

import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.cluster.misfit import misfit
from engine.cluster.placement import GIB, Bundle, Plan, plan_for
from engine.failures import NO_GPU
from engine.spec.resources import Resources

APART = {"generator": "apart"}
JUDGE = {"path": "a-judge"}


def plan(placement: dict[str, Any] | None = None, **resources: Any) -> Plan:
    return plan_for(Resources.model_validate(resources | {"placement": placement or {}}))


def on_gpus(placement: dict[str, Any] | None = None, **resources: Any) -> Plan:
    return plan(placement, device="cuda", **resources)


def on_servers(servers: int, gpus: int, **resources: Any) -> Plan:
    return on_gpus(generator="sglang", sglang={"servers": servers, "tensor_parallel": gpus}, **resources)


def refusal(asked: Plan, *nodes: Bundle) -> str:
    reported = misfit(asked, list(nodes))
    assert reported is not None, "it is taken"
    return reported


@pytest.mark.parametrize(
    ("asked", "nodes", "begins", "words"),
    [
        (on_gpus(trainer_ranks=64), [Bundle(8)] * 8, "resources.trainer_ranks = 64: ", ["8 GPUs at most"]),
        (
            on_gpus(trainer_ranks=12),
            [Bundle(8), Bundle(4), Bundle(2)],
            "resources.trainer_ranks = 12: ",
            ["use at most 8"],
        ),
        (on_gpus(), [Bundle(0, 64.0)], "resources.device = 'cuda': ", ["use cpu"]),
        (on_gpus(judge=JUDGE), [Bundle(0, 64.0)], "resources.device = 'cuda': ", ["use cpu"]),
        (
            on_gpus(APART, trainer_ranks=8, generators=2),
            [Bundle(8), Bundle(1)],
            "resources.placement.generator = 'apart': ",
            ["8 + 2 GPUs", "has 9", "at most 7"],
        ),
        (
            on_servers(8, 8),
            [Bundle(8)] * 4,
            "resources.sglang.servers = 8 of 8 GPUs: ",
            ["1 + 64 GPUs", "has 32", "urls"],
        ),
        (
            on_servers(2, 1, trainer_ranks=4, judge=JUDGE | {"tensor_parallel": 4}),
            [Bundle(8)],
            "resources.judge.servers = 1 of 4 GPUs: ",
            ["4 + 2 + 4 GPUs", "has 8", "elsewhere"],
        ),
        (
            plan({"rollout_cpus": 64}),
            [Bundle(0, 16.0)] * 2,
            "resources.placement.rollout_cpus = 64: ",
            ["1 x 64", "has 32"],
        ),
        (
            plan({"rollout_memory_gib": 64}),
            [Bundle(0, 16.0, 16 * GIB)],
            "resources.placement.rollout_memory_gib = 64: ",
            ["1 x 64 GiB", "16.0 GiB"],
        ),
        (
            plan({"reserve_threads": True}, threads=16, judge=JUDGE),
            [Bundle(0, 40.0)],
            "resources.placement.reserve_threads = True: ",
            ["48 CPUs", "threads = 16", "has 40"],
        ),
    ],
)
def test_more_than_there_is_is_refused_by_its_field_in_numbers(
    asked: Plan, nodes: list[Bundle], begins: str, words: list[str]
) -> None:
    reported = refusal(asked, *nodes)
    assert reported.startswith(begins), reported
    for word in words:
        assert word in reported, reported


@pytest.mark.parametrize(
    ("asked", "nodes"),
    [
        (on_gpus(trainer_ranks=8), [Bundle(1), Bundle(8), Bundle(2)]),
        (on_gpus(APART, trainer_ranks=7), [Bundle(8)]),
        (on_gpus(APART, trainer_ranks=4, generators=4), [Bundle(1), Bundle(2), Bundle(5)]),
        (on_servers(2, 4, trainer_ranks=8), [Bundle(8), Bundle(4), Bundle(8)]),
        (
            on_servers(2, 1, trainer_ranks=4, judge=JUDGE | {"tensor_parallel": 4}),
            [Bundle(2), Bundle(4), Bundle(4)],
        ),
        (on_gpus(trainer_ranks=256), [Bundle(256)]),
        (plan({"rollout_cpus": 1}, rollout_workers=3), [Bundle(0, 1.0)] * 3),
        (on_gpus({"rollout_cpus": 1}, trainer_ranks=8), [Bundle(8), Bundle(0, 4.0)]),
    ],
)
def test_what_fits_on_nodes_of_unequal_size_is_taken(asked: Plan, nodes: list[Bundle]) -> None:
    assert misfit(asked, nodes) is None


@pytest.mark.parametrize(("workers", "cpus"), [(30, 3.0), (70, 7.0), (80, 8.0), (240, 24.0)])
def test_tenths_of_a_cpu_add_up_to_whole_ones(workers: int, cpus: float) -> None:
    assert misfit(plan({"rollout_cpus": 0.1}, rollout_workers=workers), [Bundle(0, cpus)]) is None


@pytest.mark.parametrize("asked", [plan(), plan({"rollout_cpus": 1}), on_gpus(), on_gpus(APART, trainer_ranks=8)])
def test_a_cluster_without_nodes_is_a_refusal_or_enough_and_never_an_accident(asked: Plan) -> None:
    reported = misfit(asked, [])
    assert reported is None or reported.startswith("resources.")


def test_servers_that_no_single_node_holds_are_refused_by_their_field_with_the_largest_node() -> None:
    reported = refusal(on_servers(2, 8), Bundle(8), Bundle(8), Bundle(1))
    assert reported.startswith("resources.sglang.servers = 2 of 8 GPUs: "), reported
    assert "16 GPUs on one node" in reported
    assert "urls" in reported


def test_a_judge_that_no_single_node_holds_is_refused_by_its_field() -> None:
    reported = refusal(on_gpus(judge=JUDGE | {"tensor_parallel": 8}), Bundle(4), Bundle(4), Bundle(4))
    assert reported.startswith("resources.judge.servers = 1 of 8 GPUs: "), reported


def test_threads_that_no_node_with_gpus_has_are_refused_by_the_field_that_asks_for_them() -> None:
    reported = refusal(on_gpus({"reserve_threads": True}, threads=16), Bundle(1, 8.0), Bundle(0, 64.0))
    assert "reserve_threads" in reported or "resources.threads" in reported, reported


def test_a_worker_that_no_node_holds_is_refused_by_the_field_that_asks_for_it() -> None:
    reported = refusal(plan({"rollout_cpus": 6}), Bundle(0, 4.0), Bundle(0, 4.0))
    assert reported.startswith("resources.placement.rollout_cpus = 6"), reported


@pytest.mark.parametrize(("ranks", "generators", "gpus"), [(1, 4, 2), (4, 6, 4), (2, 3, 2)])
def test_colocated_is_advised_only_where_it_fits(ranks: int, generators: int, gpus: int) -> None:
    reported = refusal(on_gpus(APART, trainer_ranks=ranks, generators=generators), Bundle(gpus))
    fits = misfit(on_gpus(trainer_ranks=ranks, generators=generators), [Bundle(gpus)]) is None
    remedy = reported.rsplit(": ", 1)[1]
    assert fits or "generators" in remedy, reported


def test_fewer_generators_are_advised_only_where_they_are_enough() -> None:
    judge = JUDGE | {"servers": 2}
    reported = refusal(on_gpus(generators=3, judge=judge), Bundle(2))
    assert misfit(on_gpus(generators=1, judge=judge), [Bundle(2)]) is not None
    assert "judge" in reported.rsplit(": ", 1)[1], reported


@pytest.mark.parametrize(("asked_ranks", "servers", "gpus"), [(8, 1, 8), (6, 2, 6), (4, 3, 5)])
def test_the_number_of_ranks_that_is_advised_fits(asked_ranks: int, servers: int, gpus: int) -> None:
    reported = refusal(on_servers(servers, 1, trainer_ranks=asked_ranks), Bundle(gpus))
    [advised] = re.findall(r"trainer_ranks of at most (\d+)", reported)
    assert misfit(on_servers(servers, 1, trainer_ranks=int(advised)), [Bundle(gpus)]) is None


def test_of_gpus_and_cpus_that_lack_both_are_shown() -> None:
    reported = refusal(on_gpus({"rollout_cpus": 64}, trainer_ranks=9), Bundle(8, 16.0))
    assert "trainer_ranks" in reported
    assert "rollout_cpus" in reported


def test_servers_that_are_named_by_url_take_no_gpu_of_the_cluster() -> None:
    given = {"urls": ["http://10.0.0.5:30000"], "weights": "tensor"}
    assert misfit(on_gpus(generator="sglang", sglang=given, trainer_ranks=8), [Bundle(8)]) is None


def with_advice(resources: Resources, words: str) -> Resources | None:
    """The resources as an alternative of a remedy changes them; None where it is about the nodes."""
    judge, placement = resources.judge, resources.placement
    changes: dict[str, Any] = {}
    for advice in words.split(" and "):
        if number := re.search(r"(?:at most (\d+) )?resources\.(\w+)(?: of at most (\d+))?", advice):
            changes[number[2]] = int(number[1] or number[3])
        elif advice == "'colocated'":
            changes["placement"] = placement.model_copy(update={"generator": "colocated"})
        elif advice == "fewer generators":
            changes["generators"] = 1
        elif advice == "a judge that runs elsewhere":
            changes["judge"] = None
        elif advice == "fewer servers of the judge":
            assert judge is not None
            changes["judge"] = judge.model_copy(update={"servers": 1})
        elif advice == "fewer threads":
            changes["threads"] = 1
        elif advice == "False":
            changes["placement"] = placement.model_copy(update={"reserve_threads": False})
        elif advice == "fewer CPUs for each":
            changes["placement"] = placement.model_copy(update={"rollout_cpus": 0.0001})
    assert changes or words in ("more nodes", "larger nodes"), words
    return resources.model_copy(update=changes) if changes else None


@settings(deadline=None, max_examples=300)
@given(
    nodes=st.lists(st.builds(Bundle, st.integers(0, 4), st.integers(0, 60).map(lambda n: n / 10)), max_size=3),
    device=st.sampled_from(["cpu", "cuda"]),
    generator=st.sampled_from(["colocated", "apart"]),
    ranks=st.integers(1, 4),
    generators=st.integers(1, 4),
    threads=st.integers(0, 2),
    judges=st.integers(0, 2),
    rollouts=st.tuples(st.integers(1, 12), st.sampled_from([0, 0.1, 0.3, 2])),
)
def test_whatever_is_advised_alone_fits_and_differs(
    nodes: list[Bundle],
    device: str,
    generator: str,
    ranks: int,
    generators: int,
    threads: int,
    judges: int,
    rollouts: tuple[int, float],
) -> None:
    workers, cpus = rollouts
    asked = plan(
        {"generator": generator, "reserve_threads": threads > 0, "rollout_cpus": cpus},
        device=device,
        trainer_ranks=ranks,
        generators=generators,
        threads=threads or 1,
        rollout_workers=workers,
        **({"judge": JUDGE | {"servers": judges}} if judges else {}),
    )
    reported = misfit(asked, nodes)
    if reported is None or "\n" in reported or reported == NO_GPU or "in pieces" in reported:
        return
    remedy = re.sub(r"^at most (\d+)$", r"at most \1 resources.trainer_ranks", reported.rsplit("use ", 1)[1])
    for words in re.split(", or |, ", remedy):
        changed = with_advice(asked.resources, words)
        if changed is not None:
            assert changed != asked.resources, reported
            assert misfit(plan_for(changed), nodes) is None, reported


def test_equal_nodes_in_numbers_are_counted_and_not_tried_one_by_one() -> None:
    asked = on_servers(1, 8, trainer_ranks=8, judge=JUDGE | {"tensor_parallel": 8})
    assert refusal(asked, *[Bundle(7)] * 200).startswith("resources.trainer_ranks = 8: ")
    assert misfit(asked, [Bundle(8)] * 200) is None
