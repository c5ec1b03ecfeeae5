"""What raised an alert is out of training until a reviewer has decided, and comes back if it is found benign."""

import asyncio
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from engine.cluster.in_process import InProcessWorkers
from engine.launch import exit_codes
from engine.loop.expert_pool import can_be_expert
from engine.loop.quarantine import (
    MOST_HELD,
    HeldGroup,
    Quarantine,
    QuarantineState,
    Release,
    hold,
    is_out,
    released,
)
from engine.rollout.requests import EpisodeRequest
from engine.rollout.security_log import AlertEntry
from engine.rollout.worker import Collected
from engine.spec.rollout_group import GroupPlan, RolloutGroup, rollouts_in
from engine.spec.run import RunSpec
from engine.spec.security import Origin, ReviewDecision
from engine.spec.trajectory import Trajectory
from engine.training.columns import CreditColumns, Updated, UpdateRequest, with_columns
from sandboxes.egress.detectors.finding import Finding
from tests.engine.conftest import rollout
from tests.engine.groups import grouped
from tests.engine.rigs import Rig

SUSPECT = "train-0-1"


def alert(trajectory: str | None = SUSPECT, *, quarantined: bool = True, number: int = 1) -> AlertEntry:
    finding = Finding(
        rule="ssh-outbound", severity="critical", category="Controllability", attack="T1572", title="t",
        sandbox="sandbox", at=0.0, label=None, subject="s", evidence=(),
    )  # fmt: skip
    origin = None if trajectory is None else Origin(trajectory=trajectory, turn=2)
    return AlertEntry(id=f"sandbox/{number}", origin=origin, finding=finding, quarantined=quarantined)


def review_decision(verdict: str, number: int = 1, trajectory: str = SUSPECT) -> ReviewDecision:
    return ReviewDecision(number=number, trajectory=trajectory, verdict=verdict)  # type: ignore[arg-type]


class Suspicious(InProcessWorkers):
    """One rollout of the first step raised an alert; ``batches`` is what each update learned from."""

    batches: list[list[Trajectory]]
    credited: dict[str, Trajectory]
    last: "Suspicious"

    async def start(self) -> None:
        self.batches = []
        Suspicious.last = self
        await super().start()

    async def collect(self, requests: Sequence[EpisodeRequest]) -> Collected:
        collected = await super().collect(requests)
        collected.trajectories = [
            trajectory.model_copy(update={"alerts": ["sandbox/1"], "masked_because": "quarantined"})
            if trajectory.id == SUSPECT
            else trajectory
            for trajectory in collected.trajectories
        ]
        return collected

    async def credit(
        self, groups: Sequence[RolloutGroup], released: Sequence[RolloutGroup], *, step: int
    ) -> dict[str, CreditColumns]:
        columns = await super().credit(groups, released, step=step)
        self.credited = {
            rollout.id: with_columns(rollout, columns[rollout.id], text_of=str)
            for rollout in rollouts_in([*groups, *released])
        }
        return columns

    async def update(self, request: UpdateRequest) -> Updated:
        self.batches.append(
            [
                self.credited[decision.trajectory].model_copy(update={"masked_because": decision.masked_because})
                for decision in request.rollouts
            ]
        )
        return await super().update(request)

    def learned(self, step: int) -> list[str]:
        """Ids of those in the update of ``step`` that move the weights."""
        return [rollout.id for rollout in self.batches[step - 1] if rollout.masked_because is None]


@pytest.fixture
def rig(small_spec: RunSpec, tmp_path: Path, service: Any) -> Callable[..., Rig]:
    def made(workers: type[InProcessWorkers] = Suspicious, **response: Any) -> Rig:
        sandboxed = small_spec.environment.model_copy(
            update={"response": small_spec.environment.response.model_copy(update=response)}
        )
        return Rig(small_spec.model_copy(update={"environment": sandboxed}), tmp_path, service, workers)

    return made


def test_without_a_review_decision_it_is_in_no_update_and_not_in_the_comparison(
    rig: Callable[..., Rig], service: Any
) -> None:
    assert rig().start().ended() == exit_codes.ENDED
    workers = Suspicious.last
    assert all(rollout.id != SUSPECT for batch in workers.batches for rollout in batch)
    assert len([request for request in workers.batches[0] if request.prompt == 0]) == 3
    [reported] = [
        trajectory["trajectory"]
        for trajectory in service.of_kind("trajectory")
        if trajectory["trajectory"]["id"] == SUSPECT
    ]
    assert (reported["masked_because"], reported["trained_at_step"], reported["alerts"]) == (
        "quarantined",
        None,
        ["sandbox/1"],
    )
    assert reported["segments"][0]["turns"][0]["advantages"] is None
    assert any(
        SUSPECT in event["message"] and "until a review decision" in event["message"]
        for event in service.of_kind("log")
    )
    assert [event["values"]["train/quarantined"] for event in metrics_with(service, "train/quarantined")] == [1]


class Awaiting(Suspicious):
    """The first update is over only when the review decision has arrived, so that the second step knows it."""

    async def update(self, request: UpdateRequest) -> Updated:
        learned = await super().update(request)
        if len(self.batches) == 1:
            await asyncio.to_thread(self.rule)
        return learned

    @staticmethod
    def rule() -> None:
        raise NotImplementedError


def test_found_benign_it_is_credited_in_its_group_and_moves_the_weights(rig: Callable[..., Rig], service: Any) -> None:
    running = rig(after_review_decision(service, "benign")).start()
    assert running.ended() == exit_codes.ENDED
    workers = Suspicious.last
    assert [step for step in range(1, 6) if SUSPECT in workers.learned(step)] == [2]
    *_, reported = [
        trajectory["trajectory"]
        for trajectory in service.of_kind("trajectory")
        if trajectory["trajectory"]["id"] == SUSPECT
    ]
    assert (reported["masked_because"], reported["sampled_at_version"], reported["trained_at_step"]) == (None, 0, 2)
    assert [turn["old_logprobs"] for turn in reported["segments"][0]["turns"]] == [
        turn["logprobs"] for turn in reported["segments"][0]["turns"]
    ]
    group = [rollout for rollout in workers.batches[0] if rollout.prompt == 0]
    mean = (sum(rollout.reward for rollout in group) + reported["reward"]) / (len(group) + 1)
    advantage = reported["segments"][0]["turns"][0]["advantages"][0]
    assert advantage == pytest.approx(0, abs=1e-6) or advantage * (reported["reward"] - mean) > 0
    assert [event["values"]["train/released"] for event in metrics_with(service, "train/released")] == [0, 1]
    assert any("found benign and trained on now" in event["message"] for event in service.of_kind("log"))
    [settled] = service.of_kind("settled")
    assert (settled["trajectory"], settled["step"], settled["outcome"]) == (SUSPECT, 2, "trained-on")
    values = [value for turn in reported["segments"][0]["turns"] for value in turn["advantages"]]
    assert settled["advantage"] == pytest.approx(sum(values) / len(values))
    assert settled["group_mean"] == pytest.approx(mean)
    assert (settled["group_size"], settled["updates_since"]) == (len(group) + 1, 1)
    assert settled["rewards_differ"] is (len({reported["reward"], *(trajectory.reward for trajectory in group)}) > 1)


@pytest.mark.parametrize("credit", ["gae", "reinforce-pp"])
def test_a_failure_that_comes_back_is_a_failure_also_where_credit_whitens_a_step(
    small_spec: RunSpec, tmp_path: Path, service: Any, credit: str
) -> None:
    """All of its group failed: whitened among themselves they would be half good, or nothing at all."""

    class Failed(after_review_decision(service, "benign")):  # type: ignore[misc]
        async def collect(self, requests: Sequence[EpisodeRequest]) -> Collected:
            collected = await super().collect(requests)
            collected.trajectories = [
                trajectory.model_copy(update={"reward": 1.0 if trajectory.prompt % 2 else -1.0})
                for trajectory in collected.trajectories
            ]
            return collected

    document = small_spec.model_dump()
    document["recipe"] |= {"preset": None, "credit": {"kind": credit}}
    document["schedule"] |= {"steps": 2}
    assert Rig(RunSpec.model_validate(document), tmp_path, service, Failed).start().ended() == exit_codes.ENDED
    [back] = [rollout for rollout in Suspicious.last.batches[1] if rollout.id == SUSPECT]
    values = [value for turn in back.turns for value in turn.advantages or []]
    assert back.masked_because is None
    assert values
    assert all(value < 0 for value in values)


@pytest.mark.parametrize(
    ("verdict", "within", "reported", "outcomes"),
    [
        ("malicious", 8, "until a review decision", []),
        ("benign", 0, "too late to be trained on", ["too-late"]),
    ],
)
def test_otherwise_it_never_comes_back(
    rig: Callable[..., Rig], service: Any, verdict: str, within: int, reported: str, outcomes: list[str]
) -> None:
    running = rig(after_review_decision(service, verdict), release_within_steps=within).start()
    assert running.ended() == exit_codes.ENDED
    assert all(SUSPECT not in Suspicious.last.learned(step) for step in range(1, 6))
    assert any(reported in event["message"] for event in service.of_kind("log"))
    assert [event["outcome"] for event in service.of_kind("settled")] == outcomes


def test_without_a_review_decision_in_time_the_run_says_once_that_it_is_discarded(
    rig: Callable[..., Rig], service: Any
) -> None:
    assert rig(release_within_steps=2).start().ended() == exit_codes.ENDED
    [settled] = service.of_kind("settled")
    assert (settled["trajectory"], settled["step"], settled["outcome"]) == (SUSPECT, 3, "discarded")
    assert settled["updates_since"] == 2
    assert [
        event["values"]["train/quarantine_discarded"] for event in metrics_with(service, "train/quarantine_discarded")
    ]


def after_review_decision(service: Any, verdict: str) -> type[InProcessWorkers]:
    def rule() -> None:
        service.review_decisions = [review_decision(verdict)]
        known = len(service.heartbeats)
        service.wait_for(lambda service: len(service.heartbeats) > known + 2)

    return type("Decided", (Awaiting,), {"rule": staticmethod(rule)})


def metrics_with(service: Any, key: str) -> list[dict[str, Any]]:
    return [event for event in service.of_kind("metric") if key in event["values"]]


def test_an_alert_that_comes_between_score_and_update_masks_it_all_the_same(
    rig: Callable[..., Rig], service: Any
) -> None:
    class Late(InProcessWorkers):
        async def credit(
            self, groups: Sequence[RolloutGroup], released: Sequence[RolloutGroup], *, step: int
        ) -> dict[str, CreditColumns]:
            if groups[0].plan.step == 1:
                running.quarantine.alerted(alert())
            return await super().credit(groups, released, step=step)

        async def update(self, request: UpdateRequest) -> Updated:
            learned.append([decision.trajectory for decision in request.rollouts if decision.masked_because is None])
            return await super().update(request)

    learned: list[list[str]] = []
    running = rig(Late)
    running.start()
    assert running.ended() == exit_codes.ENDED
    assert SUSPECT not in learned[0]
    assert len(learned[0]) > 1
    *_, reported = [
        trajectory["trajectory"]
        for trajectory in service.of_kind("trajectory")
        if trajectory["trajectory"]["id"] == SUSPECT
    ]
    assert reported["masked_because"] == "quarantined"


def test_an_alert_that_comes_between_score_and_update_makes_no_expert(
    small_spec: RunSpec, tmp_path: Path, service: Any
) -> None:
    """Later rollouts would begin inside it, and the ipa objective would imitate it."""

    class Late(InProcessWorkers):
        async def collect(self, requests: Sequence[EpisodeRequest]) -> Collected:
            collected = await super().collect(requests)
            if requests[0].purpose == "train":
                alike = [trajectory.model_copy(update={"success": True}) for trajectory in collected.trajectories]
                by_task = {trajectory.task.id: trajectory for trajectory in alike if can_be_expert(trajectory)}
                succeeded.extend(list(by_task.values())[:2])
                ids = {success.id for success in succeeded}
                collected.trajectories = [
                    trajectory.model_copy(update={"success": trajectory.id in ids}) for trajectory in alike
                ]
            return collected

        async def credit(
            self, groups: Sequence[RolloutGroup], released: Sequence[RolloutGroup], *, step: int
        ) -> dict[str, CreditColumns]:
            running.quarantine.alerted(alert(succeeded[0].id))
            return await super().credit(groups, released, step=step)

    succeeded: list[Trajectory] = []
    document = small_spec.model_dump()
    document["recipe"] |= {"preset": None, "expert_starts": {}}
    document["schedule"] |= {"steps": 1, "checkpoint_every": 1}
    running = Rig(RunSpec.model_validate(document), tmp_path, service, Late)
    assert running.start().ended() == exit_codes.ENDED
    state = running.checkpoints.newest().state
    assert state is not None
    assert len(succeeded) == 2
    experts = {expert.own.id for expert in state.experts.tasks.values() if expert.own is not None}
    assert experts == {succeeded[1].id}


def test_a_step_all_of_whose_rollouts_are_out_makes_no_update_and_the_run_goes_on(
    rig: Callable[..., Rig], service: Any
) -> None:
    class AllOut(InProcessWorkers):
        async def collect(self, requests: Sequence[EpisodeRequest]) -> Collected:
            collected = await super().collect(requests)
            if requests[0].purpose == "train" and requests[0].step == 1:
                collected.trajectories = [
                    trajectory.model_copy(update={"alerts": ["b/1"], "masked_because": "quarantined"})
                    for trajectory in collected.trajectories
                ]
            return collected

    assert rig(AllOut).start().ended() == exit_codes.ENDED
    assert service.events[-1]["outcome"] == "succeeded"
    assert any("step 1: no update" in event["message"] for event in service.of_kind("log"))


def test_only_quarantining_alerts_of_a_place_put_somebody_out() -> None:
    quarantine, state = Quarantine(), QuarantineState()
    everyone = [rollout(member=index) for index in range(3)]
    quarantine.alerted(alert(everyone[0].id))
    quarantine.alerted(alert(everyone[1].id, quarantined=False, number=2))
    quarantine.alerted(alert(None, number=3))
    marked = quarantine.marked(everyone, state)
    assert [is_out(trajectory) for trajectory in marked] == [True, False, False]
    assert marked[0].alerts == ["sandbox/1"]
    benign = quarantine.marked(marked, QuarantineState(review_decisions={everyone[0].id: "benign"}))
    assert [is_out(item) for item in benign] == [False] * 3
    assert benign[0].alerts == ["sandbox/1"]


def test_another_reason_stays_when_the_review_decision_is_benign() -> None:
    one = rollout().model_copy(update={"masked_because": "overlong", "alerts": ["sandbox/1"]})
    [marked] = Quarantine().marked([one], QuarantineState(review_decisions={one.id: "benign"}))
    assert marked.masked_because == "overlong"


def test_review_decisions_are_heard_once_and_the_last_one_counts() -> None:
    quarantine = Quarantine()
    quarantine.decided([review_decision("benign"), review_decision("malicious", 2)])
    state = quarantine.absorbed(QuarantineState())
    assert (state.review_decisions, state.decided_through) == ({SUSPECT: "malicious"}, 2)
    quarantine.decided([review_decision("benign")])
    assert quarantine.absorbed(state) == state


def test_another_alert_voids_what_was_decided_before_it_and_one_told_again_does_not() -> None:
    quarantine = Quarantine()
    quarantine.alerted(alert(number=1))
    quarantine.decided([review_decision("benign")])
    decided = quarantine.absorbed(QuarantineState())
    assert decided.review_decisions == {SUSPECT: "benign"}
    resumed = Quarantine()
    resumed.alerted(alert(number=1))
    assert resumed.absorbed(decided).review_decisions == {SUSPECT: "benign"}
    resumed.alerted(alert(number=2))
    assert resumed.absorbed(decided).review_decisions == {}
    resumed.decided([review_decision("malicious", 2)])
    assert resumed.absorbed(decided).review_decisions == {SUSPECT: "malicious"}


def held_at(step: int) -> QuarantineState:
    members = [rollout(member=index, step=step) for index in range(4)]
    out = [member.model_copy(update={"masked_because": "quarantined"}) for member in members[:2]]
    release = Release()
    hold(release, grouped([*out, *members[2:]]))
    return QuarantineState(held=release.held)


def test_a_group_is_held_whole_and_let_go_one_by_one() -> None:
    state = held_at(1)
    [group] = state.held
    assert (len(group.members), group.out) == (4, [member.id for member in group.members[:2]])
    first, second = group.out
    after = released(state.model_copy(update={"review_decisions": {first: "benign"}}), 3, within=8)
    assert [(rollouts.out, len(rollouts.members)) for rollouts in after.groups] == [([first], 3)]
    assert second not in {member.id for member in after.groups[0].members}
    assert [(held.out, len(held.members)) for held in after.held] == [([second], 4)]
    done = released(QuarantineState(held=after.held, review_decisions={second: "malicious"}), 4, within=8)
    assert (done.groups, done.held, done.late, done.discarded) == ([], [], {}, {})


def test_nobody_is_compared_with_one_that_an_alert_put_out_after_its_group_was_held() -> None:
    [group] = held_at(1).held
    released_id, later, sound = group.out[0], group.members[2].id, group.members[3].id
    quarantine = Quarantine()
    quarantine.alerted(alert(later))
    quarantine.decided([review_decision("benign", 1, released_id)])
    state = quarantine.absorbed(held_at(1))
    [doubted] = released(state, 3, within=8).groups
    assert [member.id for member in doubted.members] == [released_id, sound]
    quarantine.decided([review_decision("benign", 2, later)])
    [cleared] = released(quarantine.absorbed(state), 3, within=8).groups
    assert [member.id for member in cleared.members] == [released_id, later, sound]


def test_too_late_is_reported_and_nothing_is_kept_for_it() -> None:
    state = held_at(1)
    still = released(state, 9, within=8)
    assert [len(held.members) for held in still.held] == [0]
    assert still.discarded == dict.fromkeys(state.held[0].out, 1)
    assert not released(QuarantineState(held=still.held), 10, within=8).discarded  # it is told once
    benign = dict.fromkeys(state.held[0].out, "benign")
    late = released(QuarantineState(held=still.held, review_decisions=benign), 10, within=8)
    assert late.late == dict.fromkeys(state.held[0].out, 1)
    assert not late.groups


def test_no_more_than_so_many_groups_wait() -> None:
    plan = GroupPlan(prompt=0, version=0, number=0, tasks_before=0, task=0)
    release = Release(held=[HeldGroup(plan=plan, members=[rollout()], out=[f"x{n}"]) for n in range(MOST_HELD)])
    hold(release, grouped([rollout(step=2).model_copy(update={"masked_because": "quarantined"})]))
    assert len(release.held) == MOST_HELD
    assert release.discarded == {"x0": 1}


def test_groups_are_held_in_their_order_each_with_everybody_who_came_back() -> None:
    sound = [rollout(prompt=group, member=index) for group in range(3) for index in range(3)]
    marked = [item.model_copy(update={"masked_because": "quarantined"}) if item.id in OUT else item for item in sound]
    release = Release()
    hold(
        release, [*grouped(marked), RolloutGroup(GroupPlan(prompt=3, version=0, number=3, tasks_before=3, task=3), ())]
    )
    assert [(held.step, held.plan.number, held.out) for held in release.held] == [
        (1, 0, ["train-0-1"]),
        (1, 2, ["train-2-0", "train-2-2"]),
    ]
    assert [held.members for held in release.held] == [marked[:3], marked[6:]]
    assert [held.group for held in release.held] == [grouped(marked)[0], grouped(marked)[2]]


OUT = {"train-0-1", "train-2-0", "train-2-2"}


def state_of_0_2(**held: Any) -> str:
    """As version 0.2 wrote it into a checkpoint: a held group named its step alone."""
    [group] = held_at(3).model_dump(mode="json")["held"]
    new = ("prompt", "member", "sampled_at_version", "trained_at_step")
    members = [
        {name: value for name, value in member.items() if name not in new}
        | {"step": 3, "group": 0, "index": member["member"]}
        for member in group["members"]
    ]
    old = {"step": 3, "members": members, "out": group["out"]} | held
    return json.dumps({"ruled_through": 1, "verdicts": {group["out"][0]: "benign"}, "known": {}, "held": [old]})


def test_a_group_that_version_0_2_held_is_let_go_as_one_of_today() -> None:
    old = QuarantineState.model_validate_json(state_of_0_2())
    today = held_at(3)
    [group] = old.held
    assert old.decided_through == 1
    assert (group.step, group.out) == (3, today.held[0].out)
    assert [kept_of(member) for member in group.members] == [kept_of(member) for member in today.held[0].members]
    assert {member.prompt for member in group.members} == {group.plan.prompt} == {3_000_000}
    first, second = group.out
    now = QuarantineState(decided_through=1, review_decisions={first: "benign"}, held=today.held)
    assert kept_by(released(old, 4, within=8)) == kept_by(released(now, 4, within=8))
    let_go = released(old, 4, within=8)
    assert [(held.step, held.out, len(held.group.rollouts)) for held in let_go.groups] == [(3, [first], 3)]
    assert [(held.step, held.out) for held in let_go.held] == [(3, [second])]
    assert released(old, 12, within=8).late == {first: 3}
    assert QuarantineState.model_validate_json(old.model_dump_json()) == old  # and is written as one of today


def kept_of(member: Trajectory) -> dict[str, Any]:
    """All but its prompt's number, which version 0.2 did not count, and whether it was trained on."""
    return member.model_dump(exclude={"prompt", "trained_at_step"})


def kept_by(release: Release) -> tuple[Any, ...]:
    let_go, held = (
        [(group.step, [kept_of(member) for member in group.members], group.out) for group in groups]
        for groups in (release.groups, release.held)
    )
    return let_go, held, release.late, release.discarded


@pytest.mark.parametrize(
    ("changed", "fields"),
    [
        ({"step": "three"}, ["plan", "step"]),
        ({"plan": {"prompt": 0, "version": 2, "number": 0, "tasks_before": 0, "task": 0}}, ["step"]),
    ],
    ids=["no number", "both forms"],
)
def test_a_held_group_of_neither_form_is_refused(changed: dict[str, Any], fields: list[str]) -> None:
    with pytest.raises(ValidationError) as refused:
        QuarantineState.model_validate_json(state_of_0_2(**changed))
    assert [".".join(map(str, error["loc"])) for error in refused.value.errors()] == [
        f"held.0.{field}" for field in fields
    ]


def test_an_alert_outlives_its_attempt_and_a_line_cut_short_is_none(tmp_path: Path) -> None:
    file = tmp_path / "alerts.txt"
    waiting, other = rollout(prompt=4, member=1), rollout(prompt=4, member=2)
    Quarantine(file).alerted(alert(waiting.id, number=1))
    with file.open("a") as cut_short:
        cut_short.write(f"\n{other.id} sand")
    Quarantine(file).alerted(alert(waiting.id, number=2))
    restored = Quarantine(file).marked_before([waiting, other])
    assert [trajectory.alerts for trajectory in restored] == [["sandbox/1", "sandbox/2"], []]
    [marked, unmarked] = Quarantine(file).marked(restored, QuarantineState())
    assert (is_out(marked), is_out(unmarked)) == (True, False)
