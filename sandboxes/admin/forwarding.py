"""A request about a sandbox, handed to the host that has it, and the host's answer, handed back.

Only verbs of the Sandbox API go through, each part of the path quoted: nobody reaches another endpoint of a host by the
admin's token.  Of the answer go back its status, its body, and no header but those of ``KEPT``.
"""

import time
from urllib.parse import quote

import httpx
from fastapi import Request, Response
from pydantic import ValidationError

from sandboxes.admin.host import HostUnreachable
from sandboxes.admin.routed import RoutedSandbox
from sandboxes.backends.remote.wire import Result
from sandboxes.interface import SandboxLost
from sandboxes.service.quotas import Usage
from sandboxes.service.refusals import NotThere
from sandboxes.service.tokens import Token

RUNS = {("POST", "exec"), ("POST", "python"), ("PUT", "prelude")}
"""What counts as execution."""
VERBS = {
    "exec", "python", "prelude", "calls", "files", "tree", "snapshots", "label", "egress", "freeze", "inspect", "reset"
}  # fmt: skip
REPEATED = {"GET", "DELETE"}
"""What reads, and what says the same when it comes twice; besides labels and acknowledgements."""
ALSO_REPEATED = {"label", "egress/acknowledge", "freeze"}
KEPT = ("content-type", "retry-after")


async def forwarded(routed: RoutedSandbox, verb: str | None, request: Request) -> httpx.Response:
    """``verb``: None asks about the sandbox itself.

    Raises ``SandboxLost`` if the host gives no answer: nobody knows whether what was asked has been done."""
    here = f"/v1/sandboxes/{routed.id}"
    again = request.method in REPEATED or verb in ALSO_REPEATED
    path = here if verb is None else f"{here}/{_quoted(verb)}"
    return await asked(routed, path, request, await request.body(), again=again)


async def asked(routed: RoutedSandbox, path: str, request: Request, body: bytes, *, again: bool) -> httpx.Response:
    host = routed.at_host
    kind = request.headers.get("Content-Type")
    try:
        return await host.ask(
            request.method, path, again=again, content=body or None,
            params=request.query_params.multi_items(), headers={"Content-Type": kind} if kind else None,
        )  # fmt: skip
    except HostUnreachable as error:
        raise SandboxLost(str(error)) from error


async def forwarded_run(
    routed: RoutedSandbox, verb: str, request: Request, token: Token, usage: Usage
) -> httpx.Response:
    """Raises ``TooMuch`` once the token's seconds of execution are used up."""
    usage.check_exec(token)
    started = time.monotonic()
    spent_s: float | None = None
    try:
        response = await forwarded(routed, verb, request)
        spent_s = _seconds(response)
        return response
    finally:
        usage.count_exec(token, time.monotonic() - started if spent_s is None else spent_s)


def handed_back(response: httpx.Response) -> Response:
    headers = {name: response.headers[name] for name in KEPT if name in response.headers}
    return Response(response.content, response.status_code, headers)


def _seconds(response: httpx.Response) -> float | None:
    try:
        return Result.model_validate_json(response.content).seconds if response.is_success else None
    except ValidationError:
        return None


def _quoted(verb: str) -> str:
    parts = verb.split("/")
    if parts[0] not in VERBS or any(part in ("", ".", "..") for part in parts):
        raise NotThere(f"'{verb}': sandboxes have no such endpoint; see /openapi.json of a sandbox service")
    return "/".join(quote(part, safe="") for part in parts)
