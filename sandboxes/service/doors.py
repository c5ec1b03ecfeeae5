"""Who asks, and for what: every endpoint finds its token and its sandbox here, and nowhere else."""

from typing import Annotated, Any

from fastapi import Depends, Header, Query, Request

from sandboxes.backends.remote.faults import MEDIA_TYPE, Problem
from sandboxes.backends.remote.wire import MOST_RECORDS, Wait
from sandboxes.service.hosted import HostedSandbox
from sandboxes.service.hosted_sandboxes import HostedSandboxes
from sandboxes.service.quotas import Usage
from sandboxes.service.refusals import NotAllowed, NoToken
from sandboxes.service.tokens import Token, Tokens

PROBLEMS: dict[int | str, dict[str, Any]] = {
    "default": {"description": "What went wrong", "content": {MEDIA_TYPE: {"schema": Problem.model_json_schema()}}}
}


# FastAPI would run a dependency that is not async in a thread, which costs more than all of these.
async def sandboxes_of(request: Request) -> HostedSandboxes:
    sandboxes: HostedSandboxes = request.app.state.sandboxes
    return sandboxes


AllSandboxes = Annotated[HostedSandboxes, Depends(sandboxes_of)]


async def bearer(request: Request) -> Token:
    """Return the token of the request, whatever its role.  Raises ``NoToken``."""
    tokens: Tokens = request.app.state.tokens
    scheme, _, text = request.headers.get("Authorization", "").partition(" ")
    token = tokens.find(text.strip()) if scheme.lower() == "bearer" else None
    if token is None:
        raise NoToken("send a token of this service: Authorization: Bearer pst_... (python -m sandboxes token create)")
    return token


Bearer = Annotated[Token, Depends(bearer)]


async def caller(request: Request, token: Bearer) -> Token:
    """Return the token of somebody who has sandboxes.

    Raises ``NotAllowed`` for one that has none, and ``TooMuch`` for one request too many that changes something.
    """
    if token.role == "host":
        raise NotAllowed(f"token '{token.name}' registers a host, and has no sandboxes: make one with --role user")
    if request.method != "GET":
        usage: Usage = request.app.state.sandboxes.usage
        usage.count_request(token)
    return token


Caller = Annotated[Token, Depends(caller)]


async def admin(token: Bearer) -> Token:
    """Return the token of an admin of several hosts, of which this is one.  Raises ``NotAllowed``."""
    if token.role != "admin":
        raise NotAllowed(f"token '{token.name}' is no admin's: make one with --role admin")
    return token


Admin = Annotated[Token, Depends(admin)]


async def mine(id: str, token: Caller, sandboxes: AllSandboxes) -> HostedSandbox:
    """The caller's sandbox; a stranger's is not there."""
    return sandboxes.find(id, token)


Mine = Annotated[HostedSandbox, Depends(mine)]
Key = Annotated[str | None, Header(alias="Idempotency-Key", max_length=200)]
WaitQuery = Annotated[Wait, Query()]
LimitQuery = Annotated[int, Query(ge=1, le=MOST_RECORDS)]
