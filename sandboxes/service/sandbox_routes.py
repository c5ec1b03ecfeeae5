"""The Sandbox API: ``/v1/sandboxes``.  Parse, find through the door, call one verb, answer."""

import time
from collections.abc import Coroutine
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from pydantic import TypeAdapter

from sandboxes.backends.remote.wire import (
    Acknowledge,
    Code,
    CreateSandbox,
    Exec,
    Freeze,
    Inspected,
    LabelText,
    ReadTree,
    Result,
    SandboxView,
    SandboxViews,
    SnapshotView,
    TreeView,
)
from sandboxes.bounds import MOST_READ_BYTES
from sandboxes.egress.record import EgressRecord
from sandboxes.interface import ExecResult, Snapshot
from sandboxes.service.doors import PROBLEMS, AllSandboxes, Caller, Key, LimitQuery, Mine, WaitQuery
from sandboxes.service.hosted import HostedSandbox
from sandboxes.service.hosted_sandboxes import HostedSandboxes
from sandboxes.service.tokens import Token
from sandboxes.tree import TreeLimits

router = APIRouter(prefix="/v1/sandboxes", tags=["sandboxes"], responses=PROBLEMS)
BYTES = "application/octet-stream"
RECORDS = TypeAdapter(list[EgressRecord])
Path = Annotated[str, Query(min_length=1, max_length=4096)]
ReadLimit = Annotated[int, Query(ge=0, le=MOST_READ_BYTES)]
AFile: dict[str, Any] = {"content": {BYTES: {"schema": {"type": "string", "format": "binary"}}}}


@router.post("", status_code=201, responses={202: {"model": SandboxView, "description": "It waits for room"}})
async def create(
    wanted: CreateSandbox, token: Caller, sandboxes: AllSandboxes, response: Response, key: Key = None
) -> SandboxView:
    """Make a sandbox.  201: it is open.  202: it is not yet; look at it with ``GET``, or close it to give up."""
    hosted = await sandboxes.create(token, wanted, key)
    response.headers["Location"] = f"/v1/sandboxes/{hosted.id}"
    if hosted.state in ("queued", "starting"):
        response.status_code = 202
    return sandboxes.view(hosted)


@router.get("")
async def list_own(token: Caller, sandboxes: AllSandboxes) -> SandboxViews:
    """The caller's sandboxes, also those that ended a short time ago."""
    return SandboxViews(sandboxes=[sandboxes.view(hosted) for hosted in sandboxes.of(token.owner)])


@router.get("/{id}")
async def get(hosted: Mine, sandboxes: AllSandboxes, wait_s: WaitQuery = 0) -> SandboxView:
    """With ``wait_s``: answer when it no longer waits for room, or the time is over.  It stays in use by this."""
    await hosted.settled(wait_s)
    if hosted.refused is not None:
        raise hosted.refused
    return sandboxes.view(hosted)


@router.delete("/{id}")
async def close(hosted: Mine, sandboxes: AllSandboxes) -> SandboxView:
    """End every process of the sandbox, or leave the queue.  Twice is fine."""
    await sandboxes.end(hosted, "it was closed")
    return sandboxes.view(hosted)


@router.post("/{id}/exec")
async def exec_program(asked: Exec, hosted: Mine, token: Caller, sandboxes: AllSandboxes) -> Result:
    sandbox = hosted.sandbox
    work = sandbox.exec(asked.argv, stdin=asked.stdin, env=asked.env, timeout_s=asked.timeout_s, alone=asked.alone)
    return await _called(sandboxes, token, hosted, asked.call, work)


@router.post("/{id}/python")
async def run_python(asked: Code, hosted: Mine, token: Caller, sandboxes: AllSandboxes) -> Result:
    """Run a cell in the sandbox's interpreter, whose variables live on."""
    work = hosted.sandbox.run_python(asked.code, timeout_s=asked.timeout_s)
    return await _called(sandboxes, token, hosted, asked.call, work)


@router.put("/{id}/prelude")
async def set_prelude(asked: Code, hosted: Mine, token: Caller, sandboxes: AllSandboxes) -> Result:
    """Run code now, and again first thing in every fresh interpreter."""
    work = hosted.sandbox.set_prelude(asked.code, timeout_s=asked.timeout_s)
    return await _called(sandboxes, token, hosted, asked.call, work)


@router.delete("/{id}/calls/{call}", status_code=204)
async def cancel(call: str, hosted: Mine) -> None:
    """End a call by its name.  When this answers nothing of it runs; one that comes later does not begin."""
    await hosted.cancel(call)


@router.get("/{id}/files", response_class=Response, responses={200: AFile})
async def read_file(path: Path, hosted: Mine, limit_bytes: ReadLimit = 2**20) -> Response:
    content = await hosted.busy(hosted.sandbox.read_file(path, limit_bytes=limit_bytes))
    return Response(content, media_type=BYTES)


@router.put("/{id}/files", status_code=204, openapi_extra={"requestBody": AFile})
async def write_file(path: Path, hosted: Mine, request: Request) -> None:
    await hosted.busy(hosted.sandbox.write_file(path, await request.body()))


@router.post("/{id}/tree")
async def read_tree(asked: ReadTree, hosted: Mine) -> TreeView:
    """Regular files and folders of /work, with what is in them.  409 for a link, a device, or more than was allowed."""
    limits = TreeLimits(asked.entries, asked.size_bytes, asked.partial)
    return TreeView.of(await hosted.busy(hosted.sandbox.read_tree(asked.paths, limits, alone=asked.alone)))


@router.put("/{id}/tree", status_code=204)
async def write_tree(asked: TreeView, hosted: Mine) -> None:
    """Write files and folders below /work; what is there is replaced, and no link is followed."""

    async def write() -> None:
        await hosted.sandbox.write_tree(asked.as_tree())

    await hosted.busy(write())


@router.post("/{id}/snapshots", status_code=201)
async def snapshot(hosted: Mine) -> SnapshotView:
    return SnapshotView(id=(await hosted.busy(hosted.sandbox.snapshot())).id)


@router.post("/{id}/snapshots/{snapshot_id}/restore", status_code=204)
async def restore(snapshot_id: str, hosted: Mine) -> None:
    await hosted.busy(hosted.sandbox.restore(Snapshot(snapshot_id)))


@router.delete("/{id}/snapshots/{snapshot_id}", status_code=204)
async def drop(snapshot_id: str, hosted: Mine) -> None:
    await hosted.busy(hosted.sandbox.drop(Snapshot(snapshot_id)))


@router.put("/{id}/label", status_code=204)
async def label(asked: LabelText, hosted: Mine) -> None:
    """Name what runs from now on: attempts to reach the network carry it in their records."""
    hosted.sandbox.label(asked.text)


@router.get("/{id}/egress", response_model=list[EgressRecord])
async def egress(
    hosted: Mine, name: str | None = None, after: int = 0, limit: LimitQuery = 1000, wait_s: WaitQuery = 0
) -> Response:
    """Return what it tried, beyond record ``after``; for some time after its end too.

    Of a sandbox that streams, ``wait_s`` waits for a record, and ``name`` may be the one it had before its last reset.
    """
    found = await hosted.records(name, after, limit, wait_s)
    return Response(RECORDS.dump_json(found), media_type="application/json")


@router.post("/{id}/egress/acknowledge", status_code=204)
async def acknowledge(asked: Acknowledge, hosted: Mine, name: str | None = None) -> None:
    """Forget the records up to this one: they are stored elsewhere."""
    hosted.acknowledge(name, asked.through)


@router.post("/{id}/freeze")
async def freeze(asked: Freeze, hosted: Mine, sandboxes: AllSandboxes) -> SandboxView:
    """Stop every process where it is; only inspecting and closing work from now on."""
    await sandboxes.freeze(hosted, asked.reason)
    return sandboxes.view(hosted)


@router.get("/{id}/inspect")
async def inspect(hosted: Mine, sandboxes: AllSandboxes) -> Inspected:
    """Its processes and files, seen from outside."""
    inside = await hosted.busy(hosted.sandbox.inspect())
    return Inspected(sandbox=sandboxes.view(hosted), execs=hosted.execs, inside=inside)


@router.post("/{id}/reset")
async def reset(hosted: Mine, sandboxes: AllSandboxes) -> SandboxView:
    """Make it as new, with another ``name``."""
    sandbox = hosted.sandbox
    await hosted.count_denied()
    await hosted.busy(sandbox.reset())
    return sandboxes.view(hosted)


async def _called(
    sandboxes: HostedSandboxes,
    token: Token,
    hosted: HostedSandbox,
    call: str | None,
    work: Coroutine[Any, Any, ExecResult],
) -> Result:
    try:
        sandboxes.usage.check_exec(token)
    except BaseException:
        work.close()
        raise
    started = time.monotonic()
    spent_s: float | None = None
    try:
        result = await hosted.call(call, work)
        spent_s = result.seconds
    finally:
        sandboxes.usage.count_exec(token, time.monotonic() - started if spent_s is None else spent_s)
    return Result.of(result)
