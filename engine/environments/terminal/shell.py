"""The policy's shell, from the host's side: one per episode, begun when it is first needed, and again when it ended."""

import importlib.resources
import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass

from engine.environments.terminal.shell_call import NO_SERVER
from sandboxes.interface import ExecResult, Sandbox

SERVER, CALL = (
    importlib.resources.files(__package__).joinpath(f"{name}.py").read_text() for name in ("shell_server", "shell_call")
)
"""What runs inside the sandbox."""
START_S = 20.0
ANSWER_S = 15.0
"""What a call may take beyond the time of its command: Ctrl-C and two kills."""


@dataclass(frozen=True, slots=True)
class ShellResult:
    """What came of a command."""

    output: str
    """What stood on the terminal, cut in its middle."""
    exit_code: int | None
    """None where the command did not come to an end of its own."""
    timed_out: bool
    ended: bool
    """The shell itself is gone, with its variables: the next command finds a fresh one."""
    fresh: bool
    """Another shell than before ran it, because that one had ended."""
    seconds: float
    """How long it took as the sandbox measured it: the policy can bend its server, and so whatever that answers."""


class ShellUnavailable(Exception):
    """The sandbox has no terminal, or no Python that can serve one; the message says what is missing."""


class Shell:
    """``environment`` is what the task adds to the shell's variables."""

    def __init__(self, sandbox: Sandbox, environment: Mapping[str, str], *, kept_bytes: int) -> None:
        self._sandbox, self._environment, self._kept_bytes = sandbox, dict(environment), kept_bytes
        self._name: str | None = None
        self._ended = False
        self.has_begun = False
        """Whether there ever was a shell: if none can be started from then on, the policy has seen to that."""

    async def run(self, command: str, timeout_s: float) -> ShellResult:
        """Run it where the one before left off.  Raises ``ShellUnavailable``, and what the sandbox raises."""
        fresh = self._ended
        if self._name is None:
            await self._start()
        result = await self._call(command, timeout_s)
        if result.exit_code == NO_SERVER and not result.stdout:  # it was killed since the last call
            fresh = True
            await self._start()
            result = await self._call(command, timeout_s)
        shown = self._read(result, fresh)
        self._ended = shown.ended
        self._name = None if shown.ended else self._name
        return shown

    async def _start(self) -> None:
        self._name = f"shell-{secrets.token_hex(8)}"
        variables = [f"{name}={value}" for name, value in self._environment.items()]
        result = await self._sandbox.exec(_python(SERVER, self._name, *variables), timeout_s=START_S)
        if result.outcome != "ok":
            reason = result.stderr.strip().splitlines()[-1:] or [result.outcome]
            self._name, self._ended = None, True
            raise ShellUnavailable(f"no shell can be started in the sandbox: {reason[0]}")
        self.has_begun = True

    async def _call(self, command: str, timeout_s: float) -> ExecResult:
        assert self._name is not None
        argv = _python(CALL, self._name, str(timeout_s), str(self._kept_bytes))
        given = command.encode("utf-8", "replace")
        return await self._sandbox.exec(argv, stdin=given, timeout_s=timeout_s + ANSWER_S)

    def _read(self, result: ExecResult, fresh: bool) -> ShellResult:
        line, _, output = result.stdout.partition("\n")
        try:
            head = json.loads(line)
            left_out, exit_code = int(head["left_out_bytes"]), head["exit_code"]
            cut = int(head["head_bytes"])
            timed_out, ended = bool(head["timed_out"]), bool(head["shell_ended"])
        except (ValueError, LookupError, TypeError, OverflowError, RecursionError):
            # The policy ended or bent its server: its own doing.
            timed_out = result.outcome == "timeout"
            return ShellResult(output[: self._kept_bytes], None, timed_out, True, fresh, result.seconds)
        if left_out > 0:
            whole = output.encode()
            output = (
                whole[:cut].decode("utf-8", "replace")
                + f"\n[{left_out} bytes left out]\n"
                + whole[cut:].decode("utf-8", "replace")
            )
        code = exit_code if isinstance(exit_code, int) else None
        return ShellResult(output, code, timed_out, ended, fresh, result.seconds)


def _python(code: str, *arguments: str) -> list[str]:
    return ["python3", "-I", "-S", "-B", "-c", code, *arguments]
