"""A sandbox at a sandbox service: the ``Sandbox`` of this backend, seen from afar."""

import asyncio
import errno
import logging
import os
import secrets
import socket
from collections.abc import Iterable, Mapping
from contextlib import suppress

from pydantic import BaseModel

from sandboxes.backends.remote.connection import Connection
from sandboxes.backends.remote.making import made
from sandboxes.backends.remote.session import Session
from sandboxes.backends.remote.stream import Stream, fetched
from sandboxes.backends.remote.wire import (
    Acknowledge,
    Code,
    Exec,
    Freeze,
    Inspected,
    LabelText,
    ReadTree,
    Result,
    SandboxView,
    SnapshotView,
    TreeView,
)
from sandboxes.bounds import fits, read_limit, sent, wait_s
from sandboxes.egress.connection_attempt import LABEL_CHARACTERS
from sandboxes.egress.gateway.ledger import OnRecord, OnStatement
from sandboxes.egress.gateway.upstream import UPSTREAM, Upstream
from sandboxes.egress.record import EgressRecord
from sandboxes.interface import ExecResult, Inspection, SandboxFrozen, SandboxLost, SandboxUnavailable, Snapshot
from sandboxes.spec import SandboxSpec
from sandboxes.teardown import completed
from sandboxes.tree import Tree, TreeLimits, chosen

log = logging.getLogger(__name__)
DEFAULT_LIMITS = TreeLimits()


class RemoteSandbox:
    """Made by ``start``.  Belongs to one event loop."""

    def __init__(
        self,
        spec: SandboxSpec,
        session: Session,
        name: str,
        on_record: OnRecord | None,
        on_statement: OnStatement | None,
    ) -> None:
        self.spec = spec
        self._session = session
        self._name = name
        self._on_record = on_record
        self._on_statement = on_statement
        self._seen = self._acknowledged = 0
        self._left: list[EgressRecord] | None = None
        """What was not acknowledged when it was closed."""
        self._stream: Stream | None = None
        self._freezing: asyncio.Task[None] | None = None
        self._closing: asyncio.Task[None] | None = None
        self._listen()

    @classmethod
    async def start(
        cls,
        spec: SandboxSpec,
        on_record: OnRecord | None = None,
        upstream: Upstream = UPSTREAM,
        on_statement: OnStatement | None = None,
    ) -> "RemoteSandbox":
        """Waits for room at the service.  Raises ``SandboxUnavailable``, and then nothing is left there."""
        if upstream is not UPSTREAM:
            raise ValueError("upstream: a service reaches the internet by itself; give it to the service")
        connection = Connection.of_environment()
        view = await made(connection, spec, stream=on_record is not None)
        return cls(spec, Session(connection, view.id), view.name or "", on_record, on_statement)

    # -- what it is --------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        return self._name

    @property
    def alive(self) -> bool:
        return self._session.lost is None

    @property
    def frozen(self) -> str | None:
        return self._session.frozen

    # -- what a sandbox can do ---------------------------------------------------------------------

    async def exec(
        self,
        argv: list[str],
        *,
        stdin: bytes = b"",
        env: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
        alone: bool = False,
    ) -> ExecResult:
        if not argv:
            raise ValueError("exec needs a program")
        call = secrets.token_hex(8)
        asked = Exec.model_construct(
            argv=list(argv),
            stdin=sent("stdin", bytes(stdin)),
            env=dict(env or {}),
            timeout_s=wait_s(timeout_s, self.spec.timeout_s),
            alone=alone,
            call=call,
        )
        return await self._run("POST", "exec", asked, call)

    async def run_python(self, code: str, *, timeout_s: float | None = None) -> ExecResult:
        return await self._cell("POST", "python", code, timeout_s)

    async def set_prelude(self, code: str, *, timeout_s: float | None = None) -> ExecResult:
        return await self._cell("PUT", "prelude", code, timeout_s)

    async def _cell(self, method: str, verb: str, code: str, timeout_s: float | None) -> ExecResult:
        call = secrets.token_hex(8)
        given = sent("code", code.encode("utf-8", "replace")).decode()  # as a sandbox reads it
        asked = Code(code=given, timeout_s=wait_s(timeout_s, self.spec.timeout_s), call=call)
        return await self._run(method, verb, asked, call)

    async def write_file(self, path: str, content: bytes) -> None:
        params, given = {"path": _sayable(path)}, fits(bytes(content), self.spec.disk_mib, path)
        await completed(self._session.ask("PUT", "files", content=given, params=params))

    async def read_file(self, path: str, *, limit_bytes: int = 2**20) -> bytes:
        params: dict[str, str | int | float] = {"path": _sayable(path), "limit_bytes": read_limit(limit_bytes)}
        return (await completed(self._session.ask("GET", "files", params=params, again=True))).content

    async def read_tree(
        self, paths: Iterable[str], limits: TreeLimits = DEFAULT_LIMITS, *, alone: bool = False
    ) -> Tree:
        asked = ReadTree(
            paths=[path or "." for path in chosen(paths)],
            entries=limits.entries,
            size_bytes=limits.size_bytes,
            partial=limits.partial,
            alone=alone,
        )
        answer = await completed(self._session.ask("POST", "tree", asked))
        try:
            return TreeView.model_validate_json(answer.content).as_tree()
        except ValueError as error:
            self._session.lose(f"the service answered with no files: {error}")
            raise SandboxLost(self._session.lost) from None

    async def write_tree(self, tree: Tree) -> None:
        if tree.size_bytes > self.spec.disk_mib * 2**20:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/work")
        await completed(self._session.ask("PUT", "tree", TreeView.of(tree)))

    async def snapshot(self) -> Snapshot:
        kept: list[Snapshot] = []

        async def keep() -> None:
            answer = await self._session.ask("POST", "snapshots")
            kept.append(Snapshot(SnapshotView.model_validate_json(answer.content).id))

        try:
            await completed(keep())
        except asyncio.CancelledError:
            with suppress(SandboxLost, SandboxFrozen):  # then it is kept nowhere
                await completed(self._drop_all(kept))
            raise
        return kept[0]

    async def _drop_all(self, snapshots: list[Snapshot]) -> None:
        for snapshot in snapshots:
            await self.drop(snapshot)

    async def restore(self, snapshot: Snapshot) -> None:
        await completed(self._session.ask("POST", f"snapshots/{snapshot.id}/restore"))

    async def drop(self, snapshot: Snapshot) -> None:
        await completed(self._session.ask("DELETE", f"snapshots/{snapshot.id}", again=True))

    async def settled(self) -> None:
        """What runs at a service is not observed, and what it tried comes when the service has it."""

    async def listen(self, port: int) -> socket.socket:
        raise SandboxUnavailable("no server of ours stands in the network of a service's sandbox: use one of this host")

    def label(self, text: str | None) -> None:
        if self._session.lost is self._session.frozen is None:
            self._session.post("PUT", "label", LabelText(text=None if text is None else text[: LABEL_CHARACTERS + 1]))

    async def reset(self) -> None:
        answer = await completed(self._session.ask("POST", "reset"))
        view = SandboxView.model_validate_json(answer.content)
        if self._stream is not None:
            await completed(self._stream.finish())
        self._name = view.name or self._name
        self._seen = self._acknowledged = 0
        self._listen()

    # -- what it tried -----------------------------------------------------------------------------

    async def egress(self, after: int = 0, *, limit: int = 1000) -> list[EgressRecord]:
        """As of any sandbox; but a service that is gone has taken them with it: ``SandboxLost``."""
        if after < self._acknowledged:
            raise ValueError(f"after = {after}: records up to {self._acknowledged} were acknowledged and are not kept")
        if self.spec.network == "none":
            return []
        if self._left is not None:
            return [record for record in self._left if record.seq > after][:limit]
        if self._closing is not None and self._closing.done():
            raise SandboxLost("its records could not be had when it was closed")
        await self._session.all_posted()
        found = await fetched(self._session.connection, self._session.path, None, after, limit=limit)
        self._seen = max([self._seen, *(record.seq for record in found)])
        return found

    def acknowledge_egress(self, through: int) -> None:
        if through > self._seen:
            raise ValueError(f"through = {through}: the last number is {self._seen}")
        self._acknowledged = max(self._acknowledged, through)
        if self._left is None and through > 0:
            self._session.post("POST", "egress/acknowledge", Acknowledge(through=through))

    def _listen(self) -> None:
        if self._on_record is not None and self.spec.network == "watched":
            connection, path = self._session.connection, self._session.path
            self._stream = Stream(connection, path, self._name, self._on_record, self._on_statement)

    # -- freezing, looking, ending -----------------------------------------------------------------

    async def freeze(self, reason: str) -> None:
        if self._session.lost is not None:
            return
        if self._freezing is None:
            self._freezing = asyncio.ensure_future(self._freeze(reason, self._session.frozen))
            self._session.frozen = self._session.frozen or reason
        await completed(_await(self._freezing))

    async def _freeze(self, reason: str, before: str | None) -> None:
        try:
            with suppress(SandboxFrozen):  # it was, and has been closed since
                await self._session.asked("POST", "freeze", Freeze(reason=reason), again=True)
        except SandboxLost as error:
            self._session.frozen = before
            self._session.lose(str(error))

    async def inspect(self) -> Inspection:
        if self._session.lost is not None:
            self._session.refuse_if_gone()
        answer = await completed(self._session.asked("GET", "inspect", again=True))
        return Inspected.model_validate_json(answer.content).inside

    async def close(self) -> None:
        if self._closing is None:
            self._closing = asyncio.ensure_future(self._close())
        await completed(_await(self._closing))

    async def _close(self) -> None:
        self._session.end_beating()
        if self._freezing is not None:
            await asyncio.wait([self._freezing])
        with suppress(SandboxLost):
            await self._session.all_posted()
        try:
            await self._session.connection.ask("DELETE", self._session.path, again=True)
            self._left = await self._rest()
        except SandboxLost as error:
            log.warning("sandbox %s is not known to be closed; the service does it when idle: %s", self._name, error)
        finally:
            self._session.lose("it was closed")
            await self._session.connection.close()

    async def _rest(self) -> list[EgressRecord]:
        if self._stream is not None:
            await self._stream.finish()
        if self._on_record is not None or self.spec.network == "none":
            return []
        rest: list[EgressRecord] = []
        last = self._acknowledged
        while found := await fetched(self._session.connection, self._session.path, None, last):
            rest += found
            last = found[-1].seq
        self._seen = max(self._seen, last)
        return rest

    # -- requests ----------------------------------------------------------------------------------

    async def _run(self, method: str, verb: str, asked: BaseModel, call: str) -> ExecResult:
        try:
            answer = await self._session.ask(method, verb, asked)
        except asyncio.CancelledError:
            # End what was started before the caller goes on.
            await completed(self._cancelled(call))
            raise
        return Result.model_validate_json(answer.content).as_result()

    async def _cancelled(self, call: str) -> None:
        with suppress(SandboxLost, SandboxFrozen):  # the next call will say so
            await self._session.ask("DELETE", f"calls/{call}", again=True)


async def _await(task: "asyncio.Task[None]") -> None:
    await asyncio.shield(task)


def _sayable(path: str) -> str:
    """For what cannot be said in a request the ``OSError`` that a sandbox at hand would give."""
    code = 0 if path else errno.EISDIR
    try:
        path.encode()
    except UnicodeEncodeError:
        code = errno.EINVAL
    if code:
        raise OSError(code, os.strerror(code), path)
    return path
