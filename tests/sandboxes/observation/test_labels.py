"""An action carries the label of the tool call during which it was done, also when it is reported later."""


async def test_what_is_done_in_a_turn_is_reported_with_that_turn(observing):
    async with observing() as seen:
        for turn in range(12):
            seen.sandbox.label(f"turn-{turn}")
            if turn % 2:
                await seen.sandbox.run_python(f"open('file-{turn}', 'w').close()")
            else:
                await seen.sandbox.exec(["touch", f"file-{turn}"])
        seen.sandbox.label(None)
        await seen.sandbox.settled()
        reported = {action.path: action.label for action in seen.actions if action.operation == "write"}
    assert reported == {f"/work/file-{turn}": f"turn-{turn}" for turn in range(12)}


async def test_what_goes_on_in_the_background_belongs_to_the_turn_in_which_it_happens(observing):
    async with observing() as seen:
        seen.sandbox.label("first")
        await seen.sandbox.run_python("""
import os, threading
go = threading.Event()
def later():
    go.wait()
    open("late", "w").close()
    done.set()
done = threading.Event()
threading.Thread(target=later).start()
open("early", "w").close()
""")
        seen.sandbox.label("second")
        await seen.sandbox.run_python("go.set(); done.wait()")
        await seen.sandbox.settled()
        reported = {action.path: action.label for action in seen.actions if action.operation == "write"}
    assert reported == {"/work/early": "first", "/work/late": "second"}


async def test_refused_sockets_carry_their_turn_as_well(observing):
    probe = "import socket\ntry: socket.socket(17, 3, 0)\nexcept OSError: pass"
    async with observing() as seen:
        for turn in ("first", "second"):
            seen.sandbox.label(turn)
            await seen.sandbox.run_python(probe)
        seen.sandbox.label(None)
        assert [record.label for record in await seen.sandbox.egress()] == ["first", "second"]


async def test_a_reset_gives_the_sandbox_another_name_and_its_actions_too(observing):
    async with observing() as seen:
        before = seen.sandbox.name
        await seen.sandbox.exec(["true"])
        await seen.sandbox.reset()
        await seen.sandbox.exec(["true"])
        await seen.sandbox.settled()
        assert [action.sandbox for action in seen.actions] == [before, seen.sandbox.name]
        assert before != seen.sandbox.name
