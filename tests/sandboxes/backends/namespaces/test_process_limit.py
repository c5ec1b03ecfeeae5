"""An observed sandbox that has as many processes as it may is told of, and goes on."""

import pytest

from sandboxes.opened import opened
from sandboxes.spec import SandboxSpec
from tests.sandboxes.test_cgroups import needs_cgroups

SPEC = SandboxSpec(network="watched", memory_mib=256, disk_mib=8, processes=16, timeout_s=20)
FULL = """
import os, time
end = time.monotonic() + 1.5
children = []
while time.monotonic() < end:
    try:
        child = os.fork()
    except OSError:
        time.sleep(0.01)
        continue
    if not child:
        time.sleep(20)
        os._exit(0)
    children.append(child)
for child in children:
    os.kill(child, 9)
"""


def met(actions):
    return [action for action in actions if (action.kind, action.call) == ("refused", "fork")]


@needs_cgroups
async def test_forks_without_a_program_are_reported_with_their_turn():
    actions = []
    async with opened(SPEC, on_action=actions.append) as sandbox:
        sandbox.label("turn-1")
        assert (await sandbox.run_python("6 * 7")).stdout == "42\n"
        assert met(actions) == []
        sandbox.label("turn-2")
        assert (await sandbox.run_python(FULL)).outcome == "ok"
        sandbox.label("turn-3")
        assert (await sandbox.exec(["echo", "after"])).stdout == "after\n"
        await sandbox.settled()
    assert {action.label for action in met(actions)} == {"turn-2"}
    assert sum(action.count for action in met(actions)) >= 1


@needs_cgroups
async def test_the_bomb_of_a_shell_is_a_crowd_also_while_it_waits():
    actions = []
    async with opened(SPEC, on_action=actions.append) as sandbox:
        sandbox.label("turn-1")
        await sandbox.exec(["bash", "-c", ":(){ :|:& };: 2>/dev/null; sleep 1.5"])
        await sandbox.settled()
    assert {action.label for action in actions if action.call == "crowd"} == {"turn-1"}


@needs_cgroups
async def test_a_pool_within_the_limit_is_not_told():
    actions = []
    pool = "import subprocess as s\nfor p in [s.Popen(['sleep', '0.3']) for _ in range(8)]: p.wait()\nprint('done')"
    async with opened(SPEC, on_action=actions.append) as sandbox:
        assert (await sandbox.run_python(pool)).stdout == "done\n"
        await sandbox.settled()
    assert met(actions) == []


pytestmark = pytest.mark.timeout(120)
