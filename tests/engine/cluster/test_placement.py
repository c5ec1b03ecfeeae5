"""Who stands where, and whether a cluster has room for it: arithmetic on paper."""

from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from engine.cluster.generator_group import generator_names
from engine.cluster.misfit import misfit
from engine.cluster.placement import GIB, Bundle, Plan, Seat, plan_for
from engine.failures import NO_GPU
from engine.launch.preflight import BadSpec, differing_fields, spec_from_file
from engine.launch.train import train
from engine.spec.resources import Resources
from engine.spec.run import RunSpec


def plan(placement: dict[str, Any] | None = None, **resources: Any) -> Plan:
    return plan_for(Resources.model_validate(resources | {"placement": placement or {}}))


def test_a_run_on_cpus_reserves_nothing_unless_it_asks() -> None:
    small = plan(rollout_workers=3)
    assert small.groups == ()
    assert [small.seat(actor) for actor in ("learner", "generator", "rollout-2")] == [Seat(None)] * 3
    assert misfit(small, [Bundle()]) is None


def test_colocated_the_generator_shares_the_gpu_of_rank_0() -> None:
    shared = plan(device="cuda", trainer_ranks=3)
    (trainer,) = shared.groups
    assert trainer.bundles == (Bundle(1),) * 3
    assert trainer.on_one_node
    assert shared.seat("learner") == shared.seat("generator") == Seat("trainer", 0, gpus=0.5)
    assert shared.seat("rank-2") == Seat("trainer", 2, gpus=1)


def test_several_generators_share_with_ranks_as_far_as_these_go_and_the_others_have_whole_ones() -> None:
    lending = plan(device="cuda", trainer_ranks=2, generators=4)
    assert [(group.name, group.total.gpus, len(group.bundles)) for group in lending.groups] == [
        ("trainer", 2, 2),
        ("generator", 2, 2),
    ]
    assert lending.seat("rank-1") == lending.seat("generator-1") == Seat("trainer", 1, gpus=0.5)
    assert lending.seat("generator-2") == Seat("generator", 0, gpus=1)
    assert misfit(lending, [Bundle(2), Bundle(1), Bundle(1)]) is None
    assert misfit(lending, [Bundle(3)]) == (
        "resources.generators = 4: needs 2 + 2 GPUs (trainer + generator); the cluster has 3: use fewer generators"
    )
    apart = plan({"generator": "apart"}, device="cuda", generators=3)
    assert [apart.seat(name).bundle for name in ("generator", "generator-1", "generator-2")] == [0, 1, 2]


def test_apart_each_has_a_whole_one() -> None:
    apart = plan({"generator": "apart"}, device="cuda", trainer_ranks=2)
    assert [group.total.gpus for group in apart.groups] == [2, 1]
    assert apart.seat("learner") == Seat("trainer", 0, gpus=1)
    assert apart.seat("generator") == Seat("generator", 0, gpus=1)


JUDGE = {"path": "a-judge", "servers": 2, "tensor_parallel": 2}


def test_a_judge_has_gpus_of_its_own_beside_trainer_and_generator() -> None:
    judged = plan(device="cuda", generator="sglang", judge=JUDGE)
    assert [(group.name, group.total.gpus) for group in judged.groups] == [
        ("trainer", 1),
        ("generator", 1),
        ("judge", 4),
    ]
    assert judged.seat("judge") == Seat("judge", 0, gpus=4)
    assert misfit(judged, [Bundle(2), Bundle(4)]) is None
    assert misfit(judged, [Bundle(3), Bundle(3)]) == (
        "resources.judge.servers = 2 of 2 GPUs: needs 4 GPUs on one node; the largest has 3: "
        "use fewer servers of the judge, a judge that runs elsewhere, or larger nodes"
    )
    refused = str(misfit(judged, [Bundle(5)]))
    assert refused.startswith(
        "resources.judge.servers = 2 of 2 GPUs: needs 1 + 1 + 4 GPUs (trainer + generator + judge)"
    )
    assert "the cluster has 5" in refused
    assert "runs elsewhere" in refused
    on_cpus = plan({"reserve_threads": True}, threads=3, judge=JUDGE)
    assert on_cpus.seat("judge") == Seat("judge", 0, cpus=3)
    assert plan(judge=JUDGE).groups == ()


def test_threads_memory_and_cpus_are_reserved_for_whoever_works_with_them() -> None:
    reserving = plan(
        {"reserve_threads": True, "rollout_cpus": 1.5, "rollout_memory_gib": 2}, threads=4, rollout_workers=2
    )
    assert reserving.seat("learner") == reserving.seat("generator") == Seat("trainer", 0, cpus=4)
    assert reserving.seat("rollout-1") == Seat("rollouts", 1, cpus=1.5, memory_bytes=2 * GIB)
    assert sum(group.total.cpus for group in reserving.groups) == 4 + 4 + 2 * 1.5


@pytest.mark.parametrize("placement", [{}, {"generator": "apart"}])
@pytest.mark.parametrize(("ranks", "generators"), [(1, 1), (2, 1), (5, 1), (2, 2), (1, 3), (3, 2)])
def test_the_seats_of_a_bundle_take_all_of_it_and_no_more(
    placement: dict[str, str], ranks: int, generators: int
) -> None:
    full = plan(
        {**placement, "reserve_threads": True, "rollout_cpus": 2},
        device="cuda",
        threads=3,
        trainer_ranks=ranks,
        generators=generators,
        rollout_workers=4,
    )
    actors = ["learner", *generator_names(full.resources)]
    actors += [*(f"rank-{n}" for n in range(1, ranks)), *(f"rollout-{n}" for n in range(4))]
    seats = [full.seat(actor) for actor in actors]
    for group in full.groups:
        for number, bundle in enumerate(group.bundles):
            here = [seat for seat in seats if (seat.group, seat.bundle) == (group.name, number)]
            assert (sum(seat.gpus for seat in here), sum(seat.cpus for seat in here)) == (bundle.gpus, bundle.cpus)


def test_gpus_that_are_not_there_are_counted_in_the_refusal() -> None:
    apart = plan({"generator": "apart"}, device="cuda", trainer_ranks=8)
    assert misfit(apart, [Bundle(8), Bundle(1)]) is None
    assert misfit(apart, [Bundle(8)]) == (
        "resources.placement.generator = 'apart': needs 8 + 1 GPUs (trainer + generator); the cluster has 8: "
        "use 'colocated', or resources.trainer_ranks of at most 7"
    )
    assert misfit(plan(device="cuda", trainer_ranks=8), [Bundle(8)]) is None


def test_servers_have_gpus_of_their_own_on_one_node_whatever_the_placement_says() -> None:
    sglang = {"generator": "sglang", "device": "cuda", "trainer_ranks": 4}
    servers = plan(**sglang, sglang={"servers": 2, "tensor_parallel": 2})
    assert servers.seat("generator") == Seat("generator", 0, gpus=4)
    assert servers.seat("learner") == Seat("trainer", 0, gpus=1)
    assert misfit(servers, [Bundle(4), Bundle(4)]) is None
    reported = misfit(servers, [Bundle(4), Bundle(2), Bundle(2)])
    assert reported is not None
    assert "trainer 4 GPUs on one node, generator 4 GPUs on one node" in reported
    assert misfit(servers, [Bundle(6)]) == (
        "resources.sglang.servers = 2 of 2 GPUs: needs 4 + 4 GPUs (trainer + generator); the cluster has 6: "
        "use fewer servers, those of urls, or resources.trainer_ranks of at most 2"
    )
    given = plan(**sglang, sglang={"urls": ["http://10.0.0.1:30000"], "weights": "tensor"})
    assert given.seat("generator") == Seat(None)
    assert misfit(given, [Bundle(4)]) is None


def test_ranks_are_on_one_machine() -> None:
    reported = misfit(plan(device="cuda", trainer_ranks=3), [Bundle(2), Bundle(2)])
    assert reported is not None
    assert reported.startswith("resources.trainer_ranks = 3: ")
    assert reported.endswith("a machine has 2 GPUs at most; use at most 2")
    assert misfit(plan(device="cuda"), [Bundle(0, 8.0)]) == NO_GPU


def test_one_gpu_is_not_divided_where_the_generator_stands_apart() -> None:
    reported = misfit(plan({"generator": "apart"}, device="cuda"), [Bundle(1)])
    assert reported is not None
    assert reported.endswith("needs 1 + 1 GPUs (trainer + generator); the cluster has 1: use 'colocated'")


def test_cpus_and_memory_are_refused_by_their_field_with_what_would_fit() -> None:
    nodes = [Bundle(0, 8.0, 16 * GIB)] * 2
    assert misfit(plan({"rollout_cpus": 4}, rollout_workers=6), nodes) == (
        "resources.placement.rollout_cpus = 4: needs 6 x 4 + 0 CPUs (rollout workers + the rest); the cluster has 16: "
        "use at most 4 resources.rollout_workers, or fewer CPUs for each"
    )
    assert misfit(plan({"rollout_memory_gib": 12}, rollout_workers=3), nodes) == (
        "resources.placement.rollout_memory_gib = 12: needs 3 x 12 GiB; the cluster has 32.0 GiB: "
        "use at most 2 resources.rollout_workers, or less for each"
    )
    reported = misfit(plan({"reserve_threads": True}, threads=16), nodes)
    assert reported is not None
    assert "reserve_threads = True: needs 32 CPUs at resources.threads = 16; the cluster has 16" in reported


def test_enough_in_all_is_not_enough_on_one_node() -> None:
    reported = misfit(plan({"rollout_cpus": 3}, rollout_workers=3), [Bundle(0, 5.0), Bundle(0, 5.0)])
    assert reported is not None
    assert "rollouts 3 x 3 CPUs" in reported
    assert "in pieces (5 CPUs, 5 CPUs)" in reported


def test_the_generator_leaves_the_only_large_node_to_the_trainer() -> None:
    """First come, first served would give it the first node, and the trainer none."""
    assert misfit(plan({"generator": "apart"}, device="cuda", trainer_ranks=4), [Bundle(4), Bundle(1)]) is None


NODES = st.lists(
    st.builds(Bundle, st.integers(0, 3), st.integers(0, 6).map(float), st.integers(0, 4).map(lambda gib: gib * GIB)),
    min_size=1,
    max_size=3,
)


@settings(deadline=None, max_examples=150)
@given(
    nodes=NODES,
    device=st.sampled_from(["cpu", "cuda"]),
    generator=st.sampled_from(["colocated", "apart"]),
    ranks=st.integers(1, 3),
    generators=st.integers(1, 3),
    threads=st.integers(0, 2),
    rollouts=st.tuples(st.integers(1, 3), st.integers(0, 3), st.integers(0, 2)),
)
def test_what_is_refused_is_what_no_choice_of_nodes_can_hold(
    nodes: list[Bundle],
    device: str,
    generator: str,
    ranks: int,
    generators: int,
    threads: int,
    rollouts: tuple[int, int, int],
) -> None:
    workers, cpus, memory_gib = rollouts
    placement = {"generator": generator, "rollout_cpus": cpus, "rollout_memory_gib": memory_gib}
    asked = plan(
        placement | {"reserve_threads": threads > 0},
        device=device,
        trainer_ranks=ranks,
        generators=generators,
        threads=threads or 1,
        rollout_workers=workers,
    )
    assert (misfit(asked, nodes) is None) == _some_choice_holds(asked, nodes)


def _some_choice_holds(asked: Plan, nodes: list[Bundle]) -> bool:
    """Every choice is tried: whole groups on one node, other bundles one by one."""
    pieces = [group.total for group in asked.groups if group.on_one_node]
    pieces += [bundle for group in asked.groups if not group.on_one_node for bundle in group.bundles]
    for chosen in product(range(len(nodes)), repeat=len(pieces)):
        loads = [
            sum((piece for piece, at in zip(pieces, chosen, strict=True) if at == node), Bundle())
            for node in range(len(nodes))
        ]
        if all(node.holds(load) for node, load in zip(nodes, loads, strict=True)):
            return True
    return False


@pytest.mark.parametrize(
    ("field", "value"), [("generator", "elsewhere"), ("rollout_cpus", -1), ("rollout_memory_gib", "much"), ("gpus", 1)]
)
def test_what_is_no_placement_is_refused_by_its_field(field: str, value: Any) -> None:
    with pytest.raises(ValidationError, match=rf"resources\.placement\.{field}"):
        RunSpec.model_validate({"name": "t", "resources": {"placement": {field: value}}})


def test_a_run_goes_on_elsewhere() -> None:
    here, there = (RunSpec(name="t", resources=plan(placement).resources) for placement in ({}, {"rollout_cpus": 2}))
    assert differing_fields(here, there) == []


def test_one_process_is_not_placed_anywhere(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text('name = "t"\n[resources.placement]\nrollout_cpus = 2\n')
    with pytest.raises(BadSpec, match=r"resources\.placement: one process has no cluster .* leave out --in-process"):
        train(spec_from_file(file), file=file, run_dir=tmp_path / "run", resume=False, in_process=True, json_file=None)
