"""Episodes in watched boxes: what they try is told with the turn that tried it, and alarming ones are stopped."""

from contextlib import asynccontextmanager, suppress

import pytest
from arenas import arena, request
from pydantic import TypeAdapter
from scripted import ScriptedPolicy, answer, call

from engine.rollout.episode import run_episode
from engine.rollout.guard import Guard
from engine.rollout.sightings import AlertSeen, Sighting, SightingLog, label_of, place_of
from engine.spec.security import Place, Response
from sandboxes.egress.detectors.finding import Finding
from sandboxes.interface import SandboxFrozen, SandboxLost
from sandboxes.pool import Pool
from sandboxes.spec import SandboxSpec

TUNNEL = 'import socket;s=socket.create_connection(("203.0.113.7",2222),2);s.sendall(b"SSH-2.0-x\\r\\n");s.recv(9)'
"""Speaks first, as a server of SSH does that was reached from within."""
QUIET = 'import socket;socket.create_connection(("203.0.113.7",443),2)'
FINDING = Finding(
    rule="ssh-outbound", severity="critical", category="Controllability", attack="T1572", title="t", box="box", at=0.0,
    label=None, subject="s", evidence=(),
)  # fmt: skip
SPEC = SandboxSpec(network="watched", timeout_s=3.0, memory_mib=128)


class Watch:
    """A pool of watched boxes, their guard, and what it wrote down."""

    def __init__(self, pool, guard, folder):
        self.pool, self.guard, self._folder = pool, guard, folder

    async def play(self, *turns, **changes):
        policy = ScriptedPolicy(*turns, context_tokens=800)
        roomy = {"max_turns": 6, "max_turn_tokens": 160, "context_tokens": 800, "guard": self.guard}
        return await run_episode(request(**changes), arena(policy, self.pool, **roomy))

    def seen(self, kind):
        lines = [line for path in self._folder.glob("*.jsonl") for line in path.read_bytes().splitlines()]
        sightings = [TypeAdapter(Sighting).validate_json(line) for line in lines]
        return [one for one in sightings if one.kind == kind]


@asynccontextmanager
async def watching(folder, spec=SPEC, **response):
    guard = Guard(Response(**response), spec.egress, SightingLog(folder))
    try:
        async with Pool(spec, size=1, on_record=guard.on_record, keep_frozen_s=0) as pool:
            yield Watch(pool, guard, folder)
    finally:
        await guard.close()


async def test_a_tunnel_in_the_third_turn_ends_the_episode_there_and_is_told_with_that_turn(tmp_path):
    async with watching(tmp_path) as watch:
        played = await watch.play(call("a=6"), call("print(a*7)"), call(TUNNEL), call("print(1)"), answer("42"))
    assert played.masked_because == "quarantined"
    classes = [turn.tool_call and turn.tool_call.error_class for turn in played.turns]
    # Where the finding came when its call was over, the next call finds the box frozen, or the answer comes first.
    assert classes in ([None, None, "frozen"], [None, None, "other", "frozen"]) or played.stop_reason == "answered"
    assert not played.success or played.stop_reason == "answered"
    [alert] = [one for one in watch.seen("alert") if one.finding.severity == "critical"]
    assert alert.quarantined
    assert played.alerts == [alert.id]
    assert alert.place == Place(trajectory=played.id, turn=2)
    assert alert.finding.rule == "ssh-outbound"
    records = watch.seen("record")
    assert {(one.place.trajectory, one.place.turn) for one in records} == {(played.id, 2)}
    assert {(one.record.attempt.address, one.record.attempt.port) for one in records} == {("203.0.113.7", 2222)}
    assert not any(one.record.verdict.allowed for one in records)


async def test_a_box_that_waits_in_its_call_is_stopped_in_it(tmp_path):
    lingering = TUNNEL.replace("s.recv(9)", "s") + ";import time;time.sleep(3)"
    async with watching(tmp_path) as watch:
        played = await watch.play(call(lingering), call("print(1)"), answer("42"))
        assert watch.pool.stats().lost == 0
        assert (await watch.play(call("print(40+2)"), answer("42"), index=1)).masked_because is None
    assert played.stop_reason == "frozen"
    assert [turn.tool_call.error_class for turn in played.turns] == ["frozen"]
    assert "ssh-outbound" in played.turns[0].tool_call.output
    assert not played.success


async def test_a_command_is_enough(tmp_path):
    """No packet is needed where the code says what it wants."""
    async with watching(tmp_path) as watch:
        played = await watch.play(call('import os;os.system("ngrok tcp 22")'), call("print(1)"), answer("42"))
    assert played.alerts
    assert {one.place.turn for one in watch.seen("alert")} == {0}


async def test_what_is_denied_and_not_alarming_is_only_told(tmp_path):
    async with watching(tmp_path) as watch:
        played = await watch.play(call(QUIET), call("print(40+2)"), answer("42"))
    assert played.masked_because is None
    assert played.stop_reason == "answered"
    assert [one.place.turn for one in watch.seen("record")] == [0]


@pytest.mark.parametrize(
    ("response", "quarantined"),
    [({"quarantine": "never"}, False), ({"without": ["ssh-outbound"]}, False), ({}, True)],
)
async def test_the_environment_decides_what_is_alarming(tmp_path, response, quarantined):
    async with watching(tmp_path, **response) as watch:
        played = await watch.play(call(TUNNEL), call("print(1)"), answer("42"))
    assert (played.masked_because == "quarantined") == quarantined
    assert {one.quarantined for one in watch.seen("alert") if one.finding.rule == "ssh-outbound"} <= {quarantined}
    assert any(one.finding.rule == "ssh-outbound" for one in watch.seen("alert")) == ("without" not in response)


async def test_an_episode_that_is_reset_is_still_watched_under_its_new_name(tmp_path):
    async with watching(tmp_path) as watch:
        episode = watch.guard.episode(watch.pool, "train-1-0-0")
        async with episode.acquire() as box:
            before = box.name
            await box.reset()
            assert box.name != before
            with suppress(SandboxFrozen):  # in the call, or after it
                await box.run_python(TUNNEL)
            await episode.settled()
            assert box.frozen
        assert episode.alerts


async def test_every_attempt_of_a_flood_is_counted_although_few_records_are_taken(tmp_path, monkeypatch):
    monkeypatch.setattr("engine.rollout.guard.RECORDS_AT_ONCE", 20.0)
    monkeypatch.setattr("engine.rollout.guard.RECORDS_PER_S", 200.0)
    flood = (
        "import socket\nfor i in range(3000):\n s=socket.socket(2,2)\n try: s.sendto(b'x',('203.0.113.9',9))\n"
        " except OSError: 0\n s.close()"
    )
    async with watching(tmp_path, quarantine="never") as watch:
        await watch.play(call(flood), answer("42"))
    records = [one.record for one in watch.seen("record")]
    assert sum(one.count for one in records if one.phase == "attempt") == 3000
    assert len(records) < 3000


async def test_a_box_that_is_lost_while_it_is_frozen_costs_nobody_else(tmp_path):
    async with watching(tmp_path) as watch:
        episode = watch.guard.episode(watch.pool, "train-1-0-0")
        async with episode.acquire() as box:
            await box.close()
            with pytest.raises(SandboxLost):
                await box.run_python(TUNNEL)
            await episode.settled()
        assert (await watch.play(call("print(1)"), answer("42"))).masked_because is None


@pytest.mark.parametrize("label", [None, "", "other", "#", "a#b", "a#-1"])
def test_only_labels_of_ours_name_a_place(label):
    assert place_of(label) is None


def test_a_place_survives_its_label():
    place = Place(trajectory="train-3-0-1", turn=12)
    assert place_of(label_of(place)) == place


def test_an_alert_that_cannot_be_written_is_written_before_whatever_comes_next(tmp_path):
    """Nobody else keeps it."""
    folder = tmp_path / "sightings"
    folder.write_text("in the way")
    log = SightingLog(folder)

    log.write_or_owe(AlertSeen(id="box/1", place=None, finding=FINDING, quarantined=True))
    folder.unlink()
    log.write_or_owe(AlertSeen(id="box/2", place=None, finding=FINDING, quarantined=True))
    log.close()
    [path] = folder.glob("*.jsonl")
    assert [TypeAdapter(Sighting).validate_json(line).id for line in path.read_bytes().splitlines()] == [
        "box/1",
        "box/2",
    ]
