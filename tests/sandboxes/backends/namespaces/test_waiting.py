"""Nobody looks thousands of times a second whether others have ended: hundreds of agents that did starved a machine."""

import json
import signal
import subprocess
import sys
import time
from itertools import islice
from pathlib import Path

from sandboxes.backends.namespaces.inside import pauses, processes

ROOT = Path(__file__).parents[4]
REAPING = """
import ctypes, json, os, signal, sys, time
from sandboxes.backends.namespaces.inside import processes
ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # orphans become children of this process, as they do of process 1
ended, wakeup = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
signal.signal(signal.SIGCHLD, lambda *_: None)
signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)
looks, waitpid = [], os.waitpid
def counted(pid, options):
    looks.append(pid)
    return waitpid(pid, options)
os.waitpid = counted
{scene}
try:
    processes.reap_everybody(ended)
    result = "nobody"
except OSError as error:
    result = error.strerror
print(json.dumps([result, len(looks)]))
"""
LATE = """
def family(depth):
    if os.fork() == 0:
        if depth:
            family(depth - 1)
        time.sleep(0.3 + 0.1 * (3 - depth))  # children outlive their parents, and are found as orphans
        os._exit(0)
family(3)
"""
UNDYING = """
processes.REAP_S = 0.3
if os.fork() == 0:
    os.close(1)
    os.close(2)  # nobody waits for it
    time.sleep(3)
    os._exit(0)
"""


def reaped(scene: str) -> tuple[str, int]:
    """What came of it, and how often the kernel was asked."""
    code = REAPING.replace("{scene}", scene)
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=30)
    assert not done.stderr
    result, looks = json.loads(done.stdout)
    return result, looks


def test_the_end_of_others_is_waited_for_and_not_looked_for():
    result, looks = reaped(LATE)

    assert result == "nobody"
    assert looks <= 9  # one that finds nobody dead, and two for each of four deaths


def test_who_ended_before_is_found():
    result, looks = reaped("os.fork() or os._exit(0)\ntime.sleep(0.2)")

    assert (result, looks) == ("nobody", 2)


def test_what_does_not_die_is_an_error():
    result, _ = reaped(UNDYING)

    assert result == "a process does not die"


def test_who_died_while_the_one_that_waits_stood_still_is_dead():
    scene = (
        "processes.REAP_S = 1.0\nif os.fork() == 0:\n    time.sleep(0.5)\n    os._exit(0)\nprint('waits', flush=True)"
    )
    command = [sys.executable, "-c", REAPING.replace("{scene}", scene)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as waiting:
        assert waiting.stdout is not None
        waiting.stdout.readline()
        time.sleep(0.2)
        waiting.send_signal(signal.SIGSTOP)  # as a starved machine does
        time.sleep(1.2)
        waiting.send_signal(signal.SIGCONT)
        assert json.loads(waiting.stdout.read())[0] == "nobody"


def test_an_empty_look_is_not_believed_while_somebody_begins(monkeypatch):
    begun, looked, killed = iter([7, 8, 8, 9, 9, 9]), iter([[], [5], []]), []
    monkeypatch.setattr(processes, "last_begun", lambda: next(begun))
    monkeypatch.setattr(processes, "strangers", lambda *_: next(looked))
    monkeypatch.setattr(processes, "kill", lambda pid: bool(killed.append(pid)) or True)

    processes.kill_all_but({1}, set())

    assert killed == [5]
    assert next(looked, None) is None


def test_whoever_begins_for_ever_takes_everybody_with_it(monkeypatch):
    monkeypatch.setattr(processes, "SWEEP_S", 0.05)
    begun, killed = iter(range(10**9)), []
    monkeypatch.setattr(processes, "last_begun", lambda: next(begun))
    monkeypatch.setattr(processes, "strangers", lambda *_: [])
    monkeypatch.setattr(processes, "kill", lambda pid: bool(killed.append(pid)) or True)

    processes.kill_all_but({1}, set())

    assert killed == [-1]


def test_those_who_are_not_our_children_are_looked_for_ever_more_rarely(monkeypatch):
    left, slept = iter(range(12)), []
    monkeypatch.setattr(processes, "last_begun", lambda: 1)
    monkeypatch.setattr(processes, "strangers", lambda *_: [0] if next(left, None) is not None else [])
    monkeypatch.setattr(processes, "kill", lambda _: True)
    monkeypatch.setattr(processes.time, "sleep", slept.append)

    processes.kill_all_but({1}, set())

    assert slept == list(islice(pauses.ever_longer_s(processes.FIRST_PAUSE_S), 12))
    assert slept[-1] == pauses.LONGEST_S


def test_pauses_double_up_to_the_longest():
    assert list(islice(pauses.ever_longer_s(0.002), 5)) == [0.002, 0.004, 0.008, 0.01, 0.01]
