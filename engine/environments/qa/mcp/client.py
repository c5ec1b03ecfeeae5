"""The servers of an environment from the engine's side: what tools they have, and calls of these in an episode."""

import asyncio
import importlib.resources
import json
import secrets
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from engine.environments.imported import UnusableEnvironment
from engine.environments.qa.mcp.listing import ListingRefused, tools_in
from engine.environments.terminal.shell_call import HUNG_UP, NO_SERVER
from engine.environments.terminal.tools import cut
from engine.spec.chat import storable_text
from engine.spec.environment import Qa
from engine.spec.message import ToolRequest, ToolSchema
from engine.spec.problems import Problem
from engine.spec.qa_tools import McpServer
from engine.spec.trajectory import ErrorClass, ToolCall
from sandboxes.interface import Sandbox, SandboxLost, SandboxUnavailable
from sandboxes.opened import opened

_BRIDGE = importlib.resources.files(__package__).joinpath("bridge.py").read_text()
_CALL = importlib.resources.files("engine.environments.terminal").joinpath("shell_call.py").read_text()
SPARE_S = 10.0
"""What a call of the sandbox may take beyond the time of the server's."""
_ERROR_CLASSES: dict[str, ErrorClass | None] = {"ok": None, "error": "other", "timeout": "timeout", "fault": "killed"}


class McpServerFailed(Exception):
    """A server did not start, or has other tools than before: the episode is the environment's fault."""


class RunningServer:
    """A server in one sandbox."""

    def __init__(self, settings: McpServer, sandbox: Sandbox) -> None:
        self._settings, self._sandbox = settings, sandbox
        self._name = f"mcp-{secrets.token_hex(8)}"

    async def start(self) -> tuple[ToolSchema, ...]:
        """Its tools.  Raises ``McpServerFailed``, and what the sandbox raises."""
        name, seconds = self._settings.name, self._settings.start_timeout_s
        argv = _python(_BRIDGE, self._name, str(seconds), *self._settings.command)
        result = await self._sandbox.exec(argv, timeout_s=seconds + SPARE_S)
        try:
            report = json.loads(result.stdout)
            if "fault" in report:
                raise McpServerFailed(f"the MCP server {name}: {str(report['fault'])[:300]}")
            return tools_in(report["tools"], name)
        except ListingRefused as refused:
            raise McpServerFailed(f"the MCP server {name}: {refused}") from refused
        except (ValueError, LookupError, TypeError, RecursionError) as error:
            reason = "its list of tools is longer than sandbox.output_bytes" if result.truncated else result.outcome
            raise McpServerFailed(f"the MCP server {name} listed no tools: {reason}") from error

    async def run(self, request: ToolRequest, *, limit: int) -> ToolCall:
        """Make one call, of whose output ``limit`` bytes are shown.  Raises what the sandbox raises."""
        seconds = self._settings.call_timeout_s
        call = {"name": _own_name(request), "arguments": dict(request.arguments)}
        argv = _python(_CALL, self._name, str(seconds), str(limit))
        result = await self._sandbox.exec(argv, stdin=json.dumps(call).encode(), timeout_s=seconds + SPARE_S)
        line, _, text = result.stdout.partition("\n")
        if result.exit_code in (NO_SERVER, HUNG_UP):
            status, text = "fault", "it has ended"
        else:
            status, text = (_status(line), text) if result.outcome == "ok" else ("fault", result.outcome)
        output = _shown(status, storable_text(text), seconds)
        return ToolCall.of(request, cut(output, limit), error_class=_ERROR_CLASSES[status], seconds=result.seconds)


def listed_tools(settings: Qa) -> tuple[ToolSchema, ...]:
    """The tools of all servers, from a sandbox that is made for that.  Raises ``UnusableEnvironment``."""
    if not settings.mcp:
        return ()
    with ThreadPoolExecutor(1) as thread:  # a loop may be running in this one
        try:
            return thread.submit(lambda: asyncio.run(_listed(settings))).result()
        except (McpServerFailed, SandboxUnavailable, SandboxLost, OSError) as error:
            remedy = "mend the server, or its command, files and sandbox"
            raise UnusableEnvironment(Problem("environment.mcp", _names(settings.mcp), str(error), remedy)) from error


async def _listed(settings: Qa) -> tuple[ToolSchema, ...]:
    async with opened(settings.sandbox) as sandbox:
        await write_files(settings, sandbox)
        return tuple([tool for server in settings.mcp for tool in await RunningServer(server, sandbox).start()])


async def write_files(settings: Qa, sandbox: Sandbox) -> None:
    """Raises ``OSError``: no space."""
    for file in settings.files:
        await sandbox.write_file(file.path, file.content.encode())


async def started(settings: Qa, sandbox: Sandbox, tools: Sequence[ToolSchema]) -> dict[str, RunningServer]:
    """Running servers by the names of their tools, which must be ``tools``.  Raises ``McpServerFailed``."""
    found, by_tool = list[ToolSchema](), dict[str, RunningServer]()
    for server in settings.mcp:
        running = RunningServer(server, sandbox)
        own = await running.start()
        found += own
        by_tool |= {tool.name: running for tool in own}
    if found != list(tools):
        raise McpServerFailed(f"the MCP servers {_names(settings.mcp)} have other tools than before the first episode")
    return by_tool


def _status(line: str) -> str:
    try:
        status = json.loads(line)["status"]
    except (ValueError, LookupError, TypeError, RecursionError):
        return "fault"
    return status if isinstance(status, str) and status in _ERROR_CLASSES else "fault"


def _shown(status: str, text: str, seconds: float) -> str:
    match status:
        case "ok":
            return text
        case "timeout":
            return f"Error: no answer within {seconds:g} s"
        case "fault":
            return f"Error: the server of this tool has failed: {text}"
    return f"Error: {text}"


def _own_name(request: ToolRequest) -> str:
    return request.name.partition("_")[2]


def _names(servers: Sequence[McpServer]) -> str:
    return ", ".join(server.name for server in servers)


def _python(code: str, *arguments: str) -> list[str]:
    return ["python3", "-I", "-S", "-B", "-c", code, *arguments]
