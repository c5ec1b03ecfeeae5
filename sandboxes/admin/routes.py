"""The Sandbox API and the GEM API of an admin.  Parse, find through the door, route, hand back.

What is asked of one sandbox is asked of its host as it came; docs/sandbox-service.md has the list.
"""

import time
from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response

from sandboxes.admin.forwarding import RUNS, asked, forwarded, forwarded_run, handed_back
from sandboxes.admin.host import HostUnreachable
from sandboxes.admin.hosts_file import HostEntry
from sandboxes.admin.routed import RoutedSandbox
from sandboxes.admin.routed_sandboxes import RoutedSandboxes
from sandboxes.backends.remote.wire import CreateSandbox, HostName, SandboxView, SandboxViews
from sandboxes.interface import SandboxLost
from sandboxes.service.doors import PROBLEMS, Bearer, Caller, Key, WaitQuery
from sandboxes.service.gem import ENVIRONMENTS, Close, Made, Make, Reset, Step, refuse_unknown
from sandboxes.service.refusals import NotAllowed, Refusal
from sandboxes.service.registration import RegisterHost

router = APIRouter(responses=PROBLEMS)


async def routed_sandboxes(request: Request) -> RoutedSandboxes:
    sandboxes: RoutedSandboxes = request.app.state.sandboxes
    return sandboxes


Routed = Annotated[RoutedSandboxes, Depends(routed_sandboxes)]


async def mine(id: str, token: Caller, sandboxes: Routed) -> RoutedSandbox:
    """The caller's sandbox; a stranger's is not there."""
    return sandboxes.find(id, token)


Mine = Annotated[RoutedSandbox, Depends(mine)]


@router.post("/v1/sandboxes", status_code=201, responses={202: {"model": SandboxView}}, tags=["sandboxes"])
async def create(
    wanted: CreateSandbox, token: Caller, sandboxes: Routed, request: Request, response: Response, key: Key = None
) -> SandboxView:
    """Make a sandbox at the host that has most room.  201: it is open.  202: it is not yet."""
    routed = await sandboxes.create(token, wanted, key)
    response.headers["Location"] = f"/v1/sandboxes/{routed.id}"
    if routed.state in ("queued", "starting"):
        response.status_code = 202
    return await _shown(routed, sandboxes)


@router.get("/v1/sandboxes", tags=["sandboxes"])
async def list_own(token: Caller, sandboxes: Routed) -> SandboxViews:
    """The caller's sandboxes at all hosts, also those that ended a short time ago."""
    return SandboxViews(sandboxes=await sandboxes.views_of(token.owner))


@router.get("/v1/sandboxes/{id}", tags=["sandboxes"])
async def get(routed: Mine, sandboxes: Routed, wait_s: WaitQuery = 0) -> SandboxView:
    """With ``wait_s``: answer when it no longer waits for room, or the time is over.  It stays in use by this."""
    await routed.settled(wait_s)
    if routed.refused is not None:
        raise routed.refused
    return await _shown(routed, sandboxes)


@router.delete("/v1/sandboxes/{id}", tags=["sandboxes"], response_model=SandboxView)
async def close(routed: Mine, sandboxes: Routed, request: Request) -> SandboxView | Response:
    """End every process of the sandbox, or leave the queue.  Twice is fine."""
    if routed.placed_at is None:
        await sandboxes.give_up(routed, "it was closed")
    elif routed.state != "lost":
        response = await forwarded(routed, None, request)
        if not response.is_success:
            return handed_back(response)
        view = SandboxView.model_validate_json(response.content)
        sandboxes.at_end(routed, view)
        return view
    return sandboxes.view(routed)


@router.get("/v1/sandboxes/{id}/{verb:path}", tags=["sandboxes"], operation_id="read")
@router.post("/v1/sandboxes/{id}/{verb:path}", tags=["sandboxes"], operation_id="run")
@router.put("/v1/sandboxes/{id}/{verb:path}", tags=["sandboxes"], operation_id="write")
@router.delete("/v1/sandboxes/{id}/{verb:path}", tags=["sandboxes"], operation_id="drop")
async def verb(verb: str, routed: Mine, token: Caller, sandboxes: Routed, request: Request) -> Response:
    """Anything that one sandbox can do: its host answers."""
    if (request.method, verb) in RUNS:
        return handed_back(await forwarded_run(routed, verb, request, token, sandboxes.usage))
    return handed_back(await forwarded(routed, verb, request))


def _is_lost(routed: RoutedSandbox) -> bool:
    return routed.state == "lost"


async def _shown(routed: RoutedSandbox, sandboxes: RoutedSandboxes) -> SandboxView:
    """Return what its host says of it; what the admin knows where there is no host, or none that answers."""
    if _is_lost(routed) or routed.placed_at is None or routed.host is None:
        return sandboxes.view(routed)
    try:
        response = await routed.host.ask("GET", f"/v1/sandboxes/{routed.id}", again=True)
    except HostUnreachable:
        if _is_lost(routed):  # since we asked
            return sandboxes.view(routed)
        raise
    if not response.is_success:
        raise SandboxLost(f"host '{routed.host.name}' answers {response.status_code} about the sandbox")
    return SandboxView.model_validate_json(response.content)


# -- GEM -----------------------------------------------------------------------------------------------


@router.get("/gem/environments", tags=["gem"])
async def environments(_: Caller) -> dict[str, str]:
    """Return what can be made, with what it takes and answers."""
    return ENVIRONMENTS


@router.post("/gem/make", status_code=201, tags=["gem"])
async def make(wanted: Make, token: Caller, sandboxes: Routed, key: Key = None) -> Made:
    refuse_unknown(wanted.env_id)
    routed = await sandboxes.create(token, wanted, key)
    if routed.state in ("queued", "starting"):
        raise Refusal(
            f"instance '{routed.id}' is {routed.state}: wait until it is open (GET /v1/sandboxes/{routed.id})"
        )
    return Made(instance=routed.id, env_id=wanted.env_id, about=ENVIRONMENTS[wanted.env_id])


@router.post("/gem/reset", tags=["gem"])
async def reset(wanted: Reset, token: Caller, sandboxes: Routed, request: Request) -> Response:
    return await _gem(sandboxes.find(wanted.instance, token), request)


@router.post("/gem/step", tags=["gem"])
async def step(wanted: Step, token: Caller, sandboxes: Routed, request: Request) -> Response:
    routed = sandboxes.find(wanted.instance, token)
    sandboxes.usage.check_exec(token)
    started = time.monotonic()
    try:
        return await _gem(routed, request)
    finally:
        sandboxes.usage.count_exec(token, time.monotonic() - started)


@router.post("/gem/close", status_code=204, tags=["gem"])
async def close_environment(wanted: Close, token: Caller, sandboxes: Routed, request: Request) -> Response:
    """Close the environment; a second call does nothing."""
    return await _gem(sandboxes.find(wanted.instance, token), request)


async def _gem(routed: RoutedSandbox, request: Request) -> Response:
    return handed_back(await asked(routed, request.url.path, request, await request.body(), again=False))


# -- hosts ---------------------------------------------------------------------------------------------


@router.put("/v1/hosts/{name}", status_code=204, tags=["hosts"])
async def register(name: HostName, wanted: RegisterHost, token: Bearer, sandboxes: Routed) -> None:
    """A host says where it is, and with which token it is asked; as often as it likes."""
    if token.role != "host":
        raise NotAllowed(f"token '{token.name}' registers no hosts: make one with --role host")
    entry = HostEntry(name=name, url=wanted.url, token=wanted.token, registered_by=token.id)
    sandboxes.file.register(entry, down=[host.name for host in sandboxes.fleet.hosts.values() if host.is_down])
