"""What a policy may call while it answers a question, and the sandbox of those calls, taken when one needs it."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Self

from engine.environments.contract import Sandboxes
from engine.environments.dataset_reader import DatasetReader
from engine.environments.imported import UnusableEnvironment
from engine.environments.qa.corpus import LARGEST_CORPUS_BYTES, Corpus
from engine.environments.qa.mcp.client import RunningServer, started, write_files
from engine.environments.terminal.shell import Shell
from engine.environments.terminal.tools import TOOLS as TERMINAL_TOOLS
from engine.environments.terminal.tools import Tools as TerminalTools
from engine.environments.tool_errors import error_class_of, shown_to_policy
from engine.spec.environment import Qa
from engine.spec.message import ToolRequest, ToolSchema
from engine.spec.problems import Problem
from engine.spec.qa_tools import Search
from engine.spec.trajectory import ToolCall
from sandboxes.interface import Sandbox

PYTHON = ToolSchema.of_text(
    "python",
    "code",
    "Runs Python code and shows what it prints, or the value of its last line. Variables live on between calls.",
)
SEARCH = ToolSchema.of_text("search", "query", "Shows the passages of a collection of texts that fit some words best.")
SHELL = tuple(tool for tool in TERMINAL_TOOLS if tool.name == "shell")
FILES = tuple(tool for tool in TERMINAL_TOOLS if tool.name != "shell")


def schemas_of(settings: Qa) -> tuple[ToolSchema, ...]:
    built_in = {"python": (PYTHON,), "shell": SHELL, "files": FILES}
    named = [tool for name in settings.tools for tool in built_in[name]]
    return (*named, *([SEARCH] if settings.search else []))


def opened_corpus(rows: DatasetReader, settings: Search) -> Corpus:
    """Raises ``UnusableEnvironment`` where there is no such split, nothing in it, or too much."""
    problem = None
    if settings.split not in rows.splits or not (stored := rows.manifest.split(settings.split)) or not stored.rows:
        problem = f"the version has no rows there; it has {', '.join(rows.splits)}"
        remedy = "name a split with texts, or make a version whose files or column give one"
    elif stored.bytes > LARGEST_CORPUS_BYTES:
        problem = f"it has {stored.bytes} bytes, and a corpus at most {LARGEST_CORPUS_BYTES}"
        remedy = "leave texts out, or serve them by a server of your own (environment.mcp)"
    if problem is not None:
        raise UnusableEnvironment(Problem("environment.search.split", settings.split, problem, remedy))
    return Corpus(rows, settings)


class SandboxTools:
    """The tools of one episode that need its sandbox."""

    def __init__(self, settings: Qa, sandbox: Sandbox, servers: Mapping[str, RunningServer]) -> None:
        """``servers``: by the names of their tools."""
        self._settings, self._sandbox, self._servers = settings, sandbox, servers
        limit = settings.output_characters
        self._terminal = TerminalTools(sandbox, Shell(sandbox, {}, kept_bytes=limit), output_bytes=limit)

    async def run(self, request: ToolRequest) -> ToolCall:
        if request.name == "python":
            return await self._executed(request)
        if (server := self._servers.get(request.name)) is not None:
            return await server.run(request, limit=self._settings.output_characters)
        return await self._terminal.run(request, self._settings.sandbox.timeout_s)

    async def _executed(self, request: ToolRequest) -> ToolCall:
        result = await self._sandbox.run_python(request.arguments["code"])
        output = shown_to_policy(result, limit_characters=self._settings.output_characters)
        return ToolCall.of(request, output, error_class=error_class_of(result), seconds=result.seconds)


class QaTools:
    """The tools of one episode, which takes its sandbox at the first call that needs it."""

    def __init__(
        self, settings: Qa, corpus: Corpus | None, of_servers: Sequence[ToolSchema], sandboxes: Sandboxes
    ) -> None:
        """``of_servers``: the tools that the servers of the settings have."""
        self._settings, self._corpus, self._sandboxes = settings, corpus, sandboxes
        self._of_servers = of_servers
        self._exits = AsyncExitStack()
        self._of_sandbox: SandboxTools | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> bool | None:
        return await self._exits.__aexit__(*exception)  # type: ignore[arg-type]

    async def run(self, request: ToolRequest) -> ToolCall:
        """Make one call.  Raises what the sandbox raises, DamagedDataset, OSError and McpServerFailed."""
        if request.name == SEARCH.name:
            return await self._searched(request)
        if self._of_sandbox is None:
            sandbox = await self._exits.enter_async_context(self._sandboxes.acquire())
            await write_files(self._settings, sandbox)
            servers = await started(self._settings, sandbox, self._of_servers)
            self._of_sandbox = SandboxTools(self._settings, sandbox, servers)
        return await self._of_sandbox.run(request)

    async def _searched(self, request: ToolRequest) -> ToolCall:
        assert self._corpus is not None  # else there is no such tool
        began_s = time.monotonic()
        passages = await asyncio.to_thread(self._corpus.found, str(request.arguments["query"]))
        numbered = [f"[{number}] {passage}" for number, passage in enumerate(passages, start=1)]
        output = "\n\n".join(numbered)[: self._settings.output_characters] or "nothing was found"
        return ToolCall.of(request, output, seconds=time.monotonic() - began_s)
