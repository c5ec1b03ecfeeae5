"""Who asks, and for what: every endpoint finds its token and its sandbox here, and nowhere else."""

from typing import Annotated, Any

from fastapi import Depends, Header, Query, Request

from sandboxes.backends.remote.faults import MEDIA_TYPE, Problem
from sandboxes.backends.remote.wire import MOST_RECORDS, Wait
from sandboxes.service.hosted import HostedSandbox
from sandboxes.service.hosted_sandboxes import HostedSandboxes
from sandboxes.service.refusals import NoToken
from sandboxes.service.tokens import Token, Tokens

PROBLEMS: dict[int | str, dict[str, Any]] = {
    "default": {"description": "What went wrong", "content": {MEDIA_TYPE: {"schema": Problem.model_json_schema()}}}
}


# FastAPI would run a dependency that is not async in a thread, which costs more than all of these.
async def sandboxes_of(request: Request) -> HostedSandboxes:
    sandboxes: HostedSandboxes = request.app.state.sandboxes
    return sandboxes


AllSandboxes = Annotated[HostedSandboxes, Depends(sandboxes_of)]


async def caller(request: Request, sandboxes: AllSandboxes) -> Token:
    """Raises ``NoToken``, and ``TooMuch`` for one request too many that changes something."""
    tokens: Tokens = request.app.state.tokens
    scheme, _, text = request.headers.get("Authorization", "").partition(" ")
    token = tokens.find(text.strip()) if scheme.lower() == "bearer" else None
    if token is None:
        raise NoToken("send a token of this service: Authorization: Bearer pst_... (python -m sandboxes token create)")
    if request.method != "GET":
        sandboxes.usage.count_request(token)
    return token


Caller = Annotated[Token, Depends(caller)]


async def mine(id: str, token: Caller, sandboxes: AllSandboxes) -> HostedSandbox:
    """The caller's sandbox; a stranger's is not there."""
    return sandboxes.find(id, token)


Mine = Annotated[HostedSandbox, Depends(mine)]
Key = Annotated[str | None, Header(alias="Idempotency-Key", max_length=200)]
WaitQuery = Annotated[Wait, Query()]
LimitQuery = Annotated[int, Query(ge=1, le=MOST_RECORDS)]
