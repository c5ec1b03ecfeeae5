"""Many actions are sums: none is lost, none hides another kind, and memory is bounded."""

from sandboxes.observation.sums import ALIKE, AT_ONCE, SOCKET_KINDS, Sums


async def test_twenty_thousand_actions_are_counted_to_the_last_and_are_few(observing):
    async with observing() as seen:
        result = await seen.cell("""
            import os
            for number in range(10_000):
                os.close(os.open("same", os.O_WRONLY | os.O_CREAT))
            for number in range(10_000):
                os.close(os.open(f"file-{number % 2500}", os.O_WRONLY | os.O_CREAT))
            os.system("exec /usr/bin/id")
        """)
        assert result.outcome == "ok", result
    assert seen.sum(kind="file", operation="write") == 20_000
    # Alike ones within a few milliseconds are one, others are told each for itself as far as the allowance goes.
    assert len(seen.actions) < 10_000
    assert seen.programs()[-1].program == "/usr/bin/id"


async def test_a_flood_of_programs_is_counted(observing):
    async with observing() as seen:
        result = await seen.shell("i=0; while [ $i -lt 300 ]; do /bin/true $i; i=$((i+1)); done")
        assert result.outcome == "ok", result
    assert seen.sum(kind="program", program="/usr/bin/true") == 300


def made(number: int, **fields: object) -> dict[str, object]:
    return {"kind": "file", "operation": "write", "at": 0.0, "pid": 1, "parent": 1, "program": f"/p{number}"} | fields


def test_endless_different_actions_take_bounded_room_and_are_all_counted():
    sums = Sums()
    for number in range(20_000):
        sums.add(made(number, path=f"/work/{number}/x"))
        sums.add(made(number, kind="refused", operation=None, call=str(number)))
        sums.add_socket((number, 1, 2))
    sums.add(made(0, kind="program", operation=None, argv=["miner"]))
    actions, sockets = sums.taken()
    assert len(actions) <= 2 * ALIKE + 10
    assert len(sockets) <= SOCKET_KINDS + 1
    assert sum(action["count"] for action in actions) == 40_001
    assert sum(count for _, count in sockets) == 20_000
    assert not sums


def test_a_flood_of_one_kind_hides_no_other():
    sums = Sums()
    for number in range(int(3 * AT_ONCE)):
        sums.add(made(1, path=f"/work/{number}"))
    sums.taken()
    sums.add(made(2, kind="program", operation=None, argv=["miner"]))
    sums.add(made(3, operation="delete", path="/work/tests/test_x.py"))
    reported = sums.taken()[0]
    assert [(action["program"], action["count"]) for action in reported] == [("/p2", 1), ("/p3", 1)]
    assert reported[0]["argv"] == ["miner"]
