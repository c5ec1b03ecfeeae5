"""What raised an alert is out of training until a reviewer has ruled, and comes back if he finds it benign."""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from rigs import Rig

from engine.control import outcome
from engine.control.local import LocalCrew
from engine.control.quarantine import MOST_HELD, HeldGroup, Quarantine, QuarantineState, hold, is_out, released
from engine.rollout.requests import EpisodeRequest
from engine.rollout.sightings import AlertSeen
from engine.rollout.worker import Collected
from engine.spec.run import RunSpec
from engine.spec.security import Place, Ruling
from engine.spec.trajectory import Trajectory
from sandboxes.egress.detectors.finding import Finding
from tests.engine.control.conftest import rollout

SUSPECT = "train-1-0-1"


def alert(trajectory: str | None = SUSPECT, *, quarantined: bool = True, number: int = 1) -> AlertSeen:
    finding = Finding(
        rule="ssh-outbound", severity="critical", category="Controllability", attack="T1572", title="t", box="box",
        at=0.0, label=None, subject="s", evidence=(),
    )  # fmt: skip
    place = None if trajectory is None else Place(trajectory=trajectory, turn=2)
    return AlertSeen(id=f"box/{number}", place=place, finding=finding, quarantined=quarantined)


def ruling(verdict: str, number: int = 1, trajectory: str = SUSPECT) -> Ruling:
    return Ruling(number=number, trajectory=trajectory, verdict=verdict)  # type: ignore[arg-type]


class Suspicious(LocalCrew):
    """One rollout of the first step raised an alert; ``batches`` is what each update learned from."""

    batches: list[list[Trajectory]]
    last: "Suspicious"

    async def start(self) -> None:
        self.batches = []
        Suspicious.last = self
        await super().start()

    async def collect(self, requests: Sequence[EpisodeRequest]) -> Collected:
        collected = await super().collect(requests)
        collected.trajectories = [
            one.model_copy(update={"alerts": ["box/1"], "masked_because": "quarantined"}) if one.id == SUSPECT else one
            for one in collected.trajectories
        ]
        return collected

    async def update(self, trajectories: Sequence[Trajectory]) -> dict[str, float]:
        self.batches.append(list(trajectories))
        return await super().update(trajectories)

    def learned(self, step: int) -> list[str]:
        """Ids of those in the update of ``step`` that move the weights."""
        return [one.id for one in self.batches[step - 1] if one.masked_because is None]


@pytest.fixture
def rig(small_spec: RunSpec, tmp_path: Path, service: Any) -> Callable[..., Rig]:
    def made(crew: type[LocalCrew] = Suspicious, **response: Any) -> Rig:
        sandboxed = small_spec.environment.model_copy(
            update={"response": small_spec.environment.response.model_copy(update=response)}
        )
        return Rig(small_spec.model_copy(update={"environment": sandboxed}), tmp_path, service, crew)

    return made


def test_without_a_ruling_it_is_in_no_update_and_not_in_the_comparison(rig: Callable[..., Rig], service: Any) -> None:
    assert rig().start().ended() == outcome.ENDED
    crew = Suspicious.last
    assert all(one.id != SUSPECT for batch in crew.batches for one in batch)
    assert len([one for one in crew.batches[0] if one.group == 0]) == 3
    [told] = [one["trajectory"] for one in service.of_kind("trajectory") if one["trajectory"]["id"] == SUSPECT]
    assert (told["masked_because"], told["alerts"]) == ("quarantined", ["box/1"])
    assert told["turns"][0]["advantages"] is None
    assert any(SUSPECT in one["message"] and "until a ruling" in one["message"] for one in service.of_kind("log"))
    assert [one["values"]["train/quarantined"] for one in metrics_with(service, "train/quarantined")] == [1]


class Awaiting(Suspicious):
    """The first update is over only when the ruling has arrived, so that the second step knows it."""

    async def update(self, trajectories: Sequence[Trajectory]) -> dict[str, float]:
        learned = await super().update(trajectories)
        if len(self.batches) == 1:
            await asyncio.to_thread(self.rule)
        return learned

    @staticmethod
    def rule() -> None:
        raise NotImplementedError


def test_ruled_benign_it_is_credited_in_its_group_and_moves_the_weights(rig: Callable[..., Rig], service: Any) -> None:
    running = rig(after_ruling(service, "benign")).start()
    assert running.ended() == outcome.ENDED
    crew = Suspicious.last
    assert [step for step in range(1, 6) if SUSPECT in crew.learned(step)] == [2]
    *_, told = [one["trajectory"] for one in service.of_kind("trajectory") if one["trajectory"]["id"] == SUSPECT]
    assert told["masked_because"] is None
    assert [turn["old_logprobs"] for turn in told["turns"]] == [turn["logprobs"] for turn in told["turns"]]
    group = [one for one in crew.batches[0] if one.group == 0]
    mean = (sum(one.reward for one in group) + told["reward"]) / (len(group) + 1)
    advantage = told["turns"][0]["advantages"][0]
    assert advantage == pytest.approx(0, abs=1e-6) or advantage * (told["reward"] - mean) > 0
    assert [one["values"]["train/released"] for one in metrics_with(service, "train/released")] == [0, 1]
    assert any("ruled benign and trained on now" in one["message"] for one in service.of_kind("log"))


@pytest.mark.parametrize(
    ("verdict", "within", "told"),
    [("malicious", 8, "until a ruling"), ("benign", 0, "too late to be trained on")],
)
def test_otherwise_it_never_comes_back(
    rig: Callable[..., Rig], service: Any, verdict: str, within: int, told: str
) -> None:
    running = rig(after_ruling(service, verdict), release_within_steps=within).start()
    assert running.ended() == outcome.ENDED
    assert all(SUSPECT not in Suspicious.last.learned(step) for step in range(1, 6))
    assert any(told in one["message"] for one in service.of_kind("log"))


def after_ruling(service: Any, verdict: str) -> type[LocalCrew]:
    def rule() -> None:
        service.rulings = [ruling(verdict)]
        known = len(service.pulses)
        service.wait_for(lambda service: len(service.pulses) > known + 2)

    return type("Ruled", (Awaiting,), {"rule": staticmethod(rule)})


def metrics_with(service: Any, key: str) -> list[dict[str, Any]]:
    return [one for one in service.of_kind("metric") if key in one["values"]]


def test_an_alert_that_comes_between_score_and_update_masks_it_all_the_same(
    rig: Callable[..., Rig], service: Any
) -> None:
    class Late(LocalCrew):
        async def credit(self, trajectories: Sequence[Trajectory]) -> list[Trajectory]:
            if trajectories[0].step == 1:
                running.quarantine.alerted(alert())
            return await super().credit(trajectories)

        async def update(self, trajectories: Sequence[Trajectory]) -> dict[str, float]:
            learned.append([one.id for one in trajectories if one.masked_because is None])
            return await super().update(trajectories)

    learned: list[list[str]] = []
    running = rig(Late)
    running.start()
    assert running.ended() == outcome.ENDED
    assert SUSPECT not in learned[0]
    assert len(learned[0]) > 1
    *_, told = [one["trajectory"] for one in service.of_kind("trajectory") if one["trajectory"]["id"] == SUSPECT]
    assert told["masked_because"] == "quarantined"


def test_a_step_all_of_whose_rollouts_are_out_makes_no_update_and_the_run_goes_on(
    rig: Callable[..., Rig], service: Any
) -> None:
    class AllOut(LocalCrew):
        async def collect(self, requests: Sequence[EpisodeRequest]) -> Collected:
            collected = await super().collect(requests)
            if requests[0].purpose == "train" and requests[0].step == 1:
                collected.trajectories = [
                    one.model_copy(update={"alerts": ["b/1"], "masked_because": "quarantined"})
                    for one in collected.trajectories
                ]
            return collected

    assert rig(AllOut).start().ended() == outcome.ENDED
    assert service.events[-1]["outcome"] == "succeeded"
    assert any("step 1: no update" in one["message"] for one in service.of_kind("log"))


def test_only_quarantining_alerts_of_a_place_put_somebody_out() -> None:
    quarantine, state = Quarantine(), QuarantineState()
    everyone = [rollout(index=index) for index in range(3)]
    quarantine.alerted(alert(everyone[0].id))
    quarantine.alerted(alert(everyone[1].id, quarantined=False, number=2))
    quarantine.alerted(alert(None, number=3))
    marked = quarantine.marked(everyone, state)
    assert [is_out(one) for one in marked] == [True, False, False]
    assert marked[0].alerts == ["box/1"]
    benign = quarantine.marked(marked, QuarantineState(verdicts={everyone[0].id: "benign"}))
    assert [is_out(one) for one in benign] == [False] * 3
    assert benign[0].alerts == ["box/1"]


def test_another_reason_stays_when_the_ruling_is_benign() -> None:
    one = rollout().model_copy(update={"masked_because": "overlong", "alerts": ["box/1"]})
    [marked] = Quarantine().marked([one], QuarantineState(verdicts={one.id: "benign"}))
    assert marked.masked_because == "overlong"


def test_rulings_are_heard_once_and_the_last_one_counts() -> None:
    quarantine = Quarantine()
    quarantine.ruled([ruling("benign"), ruling("malicious", 2)])
    state = quarantine.heard(QuarantineState())
    assert (state.verdicts, state.ruled_through) == ({SUSPECT: "malicious"}, 2)
    quarantine.ruled([ruling("benign")])
    assert quarantine.heard(state) == state


def test_another_alert_voids_what_was_ruled_before_it_and_one_told_again_does_not() -> None:
    quarantine = Quarantine()
    quarantine.alerted(alert(number=1))
    quarantine.ruled([ruling("benign")])
    ruled = quarantine.heard(QuarantineState())
    assert ruled.verdicts == {SUSPECT: "benign"}
    resumed = Quarantine()
    resumed.alerted(alert(number=1))
    assert resumed.heard(ruled).verdicts == {SUSPECT: "benign"}
    resumed.alerted(alert(number=2))
    assert resumed.heard(ruled).verdicts == {}
    resumed.ruled([ruling("malicious", 2)])
    assert resumed.heard(ruled).verdicts == {SUSPECT: "malicious"}


def held(step: int = 1) -> QuarantineState:
    members = [rollout(index=index, step=step) for index in range(4)]
    out = [one.model_copy(update={"masked_because": "quarantined"}) for one in members[:2]]
    return QuarantineState(held=hold([], step, [*out, *members[2:]]))


def test_a_group_is_held_whole_and_let_go_one_by_one() -> None:
    state = held()
    [group] = state.held
    assert (len(group.members), group.out) == (4, [one.id for one in group.members[:2]])
    first, second = group.out
    after = released(state.model_copy(update={"verdicts": {first: "benign"}}), 3, within=8)
    assert [(one.out, len(one.members)) for one in after.groups] == [([first], 3)]
    assert second not in {one.id for one in after.groups[0].members}
    assert [(one.out, len(one.members)) for one in after.held] == [([second], 4)]
    done = released(QuarantineState(held=after.held, verdicts={second: "malicious"}), 4, within=8)
    assert (done.groups, done.held, done.late) == ([], [], [])


def test_too_late_is_told_and_nothing_is_kept_for_it() -> None:
    state = held(step=1)
    still = released(state, 9, within=8)
    assert [len(one.members) for one in still.held] == [0]
    verdicts = dict.fromkeys(state.held[0].out, "benign")
    late = released(QuarantineState(held=still.held, verdicts=verdicts), 10, within=8)
    assert sorted(late.late) == sorted(state.held[0].out)
    assert not late.groups


def test_no_more_than_so_many_groups_wait() -> None:
    one = HeldGroup(step=1, members=[], out=["x"])
    more = [rollout().model_copy(update={"masked_because": "quarantined"})]
    assert len(hold([one] * MOST_HELD, 2, more)) == MOST_HELD
