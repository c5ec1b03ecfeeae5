"""Runs a task's tests where no process of the policy ever was, and reads the reward that they write.

    policy's sandbox ── every process dies ── files that the task names ──► a fresh sandbox
                                                                            tests go up only now, test.sh runs
                                                                            everything else dies, the reward is read

Tests that hang, crash or write no reward have failed themselves: ``VerifierFailed``, which is never a reward.
"""

import errno
from dataclasses import dataclass

from engine.environments.contract import VerifierFailed
from engine.environments.terminal.network import spec_with_network
from engine.environments.terminal.reward_file import MOST_BYTES, RewardUnreadable, TestReward, reward_of
from engine.environments.terminal.task_folder import TerminalTask
from engine.environments.terminal.task_needs import image_of
from engine.environments.terminal.upload import uploaded
from sandboxes.interface import ExecResult, Sandbox
from sandboxes.opened import opened
from sandboxes.spec import SandboxSpec
from sandboxes.tree import MOST_BYTES as MOST_TREE_BYTES
from sandboxes.tree import MOST_ENTRIES, Tree, TreeLimits

TESTS, LOGS = "/tests", "/logs/verifier"
HOME = "/tmp/home"
"""The home folder of the tests: not the folder that the policy worked in, whose start-up files would be theirs."""
HANDED_IN = TreeLimits(entries=MOST_ENTRIES, size_bytes=MOST_TREE_BYTES)
LAST_CHARACTERS = 2000


@dataclass(frozen=True, slots=True)
class Verification:
    """What the tests came to."""

    reward: TestReward
    output: str
    """The end of what they printed; for people, never for the policy."""
    seconds: float


def phase_spec(task: TerminalTask, spec: SandboxSpec, *, of_tests: bool) -> SandboxSpec:
    """The sandbox of a phase.  Raises ``ImageRefused`` where an image is gone since the tasks were read."""
    of_phase = spec_with_network(spec, task.file, of_tests=of_tests)
    changed = {"terminal": True, "snapshots": False, "image": image_of(task, spec)}
    if all(getattr(of_phase, name) == value for name, value in changed.items()):
        return of_phase
    return of_phase.model_copy(update=changed)


async def handed_in(task: TerminalTask, sandbox: Sandbox) -> Tree:
    """What the policy hands in.  Every process of the sandbox is dead afterwards.

    Raises ``TreeRefused`` for what is not copied (missing, links, devices, too much): the policy's failure.
    """
    return await sandbox.read_tree(task.file.handed_in, HANDED_IN, alone=True)


async def verified(task: TerminalTask, spec: SandboxSpec, files: Tree) -> Verification:
    """Run the tests in a fresh sandbox with ``files``.  Raises ``VerifierFailed``, and what sandboxes raise."""
    async with opened(phase_spec(task, spec, of_tests=True)) as sandbox:
        await sandbox.write_tree(files)
        result = await _tested(task, sandbox)
        return Verification(await _reward(sandbox, result), _last(result), result.seconds)


async def _tested(task: TerminalTask, sandbox: Sandbox) -> ExecResult:
    try:
        await uploaded(sandbox, task.tests(), TESTS)
    except OSError as error:
        raise VerifierFailed(f"{task.name}: its tests cannot be put into the sandbox: {error}") from error
    variables = {**task.file.environment.env, **task.file.verifier.env, "HOME": HOME, "PYTHONNOUSERSITE": "1"}
    script = f'mkdir -p "$(readlink -m {LOGS})" {HOME} && exec {TESTS}/test.sh'
    # A shell runs it: a script without a first line that names its interpreter is one of ``sh``.
    argv = ["/bin/sh", "-c", script]
    result = await sandbox.exec(argv, env=variables, timeout_s=task.file.verifier.timeout_sec, alone=True)
    if result.outcome in ("timeout", "output", "killed"):
        raise VerifierFailed(f"{task.name}: its tests ended with {result.outcome}: {_last(result)}")
    await sandbox.exec(["/bin/true"], alone=True)  # nobody is left who could write while the reward is read
    return result


async def _reward(sandbox: Sandbox, result: ExecResult) -> TestReward:
    try:
        return reward_of(await _content(sandbox, "reward.txt"), await _content(sandbox, "reward.json"))
    except RewardUnreadable as fault:
        raise VerifierFailed(f"{fault}; test.sh ended with exit code {result.exit_code}: {_last(result)}") from fault


async def _content(sandbox: Sandbox, name: str) -> bytes | None:
    try:
        return await sandbox.read_file(f"{LOGS}/{name}", limit_bytes=MOST_BYTES)
    except FileNotFoundError:
        return None
    except OSError as error:
        reason = f"more than {MOST_BYTES} bytes" if error.errno == errno.EFBIG else error.strerror
        raise RewardUnreadable(f"{name} cannot be read: {reason}") from error


def _last(result: ExecResult) -> str:
    return f"{result.stdout}\n{result.stderr}".strip()[-LAST_CHARACTERS:]
