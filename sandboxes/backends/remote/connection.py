"""HTTP to a sandbox service, for one sandbox.

Only what may be repeated is repeated: a request that reads, that says the same when it comes twice, or that
never left.  What runs code is sent once; if its answer does not come, the sandbox is lost.
"""

import asyncio
import os
import ssl
from collections.abc import Mapping
from functools import cache
from typing import Any

import httpx
from pydantic import BaseModel, ValidationError

from sandboxes.backends.remote.faults import MEDIA_TYPE, Problem, exception_of
from sandboxes.backends.remote.host_address import AddressFault, parsed, without_secrets
from sandboxes.interface import SandboxLost, SandboxUnavailable

URL, TOKEN = "PALESTRA_SANDBOX_URL", "PALESTRA_SANDBOX_TOKEN"
CONNECT_S = 10.0
KEEP_ALIVE_S = 30.0
"""Shorter than the service's: a connection that it has just closed is never used."""
PAUSES_S = (0.1, 0.5, 2.0)
"""So long is waited before each further try."""
MOST_PATIENCE_S = 120.0
"""How long quotas may hold a request up."""


class Connection:
    """Raises ``SandboxLost`` for a service that cannot be reached, and what the service says is wrong."""

    def __init__(self, url: str, token: str) -> None:
        verify = _trusted() if url.startswith("https:") else False
        self._client = httpx.AsyncClient(
            base_url=url.rstrip("/"),
            headers={"Authorization": f"Bearer {token}"},
            timeout=httpx.Timeout(None, connect=CONNECT_S),
            limits=httpx.Limits(max_connections=None, keepalive_expiry=KEEP_ALIVE_S),
            verify=verify,
            trust_env=False,  # no proxy of the environment sees the token
            follow_redirects=False,
        )

    @classmethod
    def of_environment(cls) -> "Connection":
        """Raises ``SandboxUnavailable`` if the environment names no service."""
        return cls(*_address())

    async def ask(
        self,
        method: str,
        path: str,
        body: BaseModel | None = None,
        *,
        again: bool,
        content: bytes | None = None,
        params: Mapping[str, str | int | float] | None = None,
        headers: dict[str, str] | None = None,
        timeout_s: float | None = None,
    ) -> httpx.Response:
        """``again``: whether it may be sent again when nobody knows what became of it."""
        sent: dict[str, Any] = {"params": params, "headers": dict(headers or {}), "content": content}
        if body is not None:
            sent["content"] = body.model_dump_json(exclude_defaults=True)
            sent["headers"]["Content-Type"] = "application/json"
        timeout = httpx.Timeout(timeout_s, connect=CONNECT_S)
        response = await self._sent(method, path, sent, timeout, again)
        if response.is_success:
            return response
        raise _exception(response)

    async def close(self) -> None:
        await self._client.aclose()

    async def _sent(
        self, method: str, path: str, sent: dict[str, Any], timeout: httpx.Timeout, again: bool
    ) -> httpx.Response:
        waited_s = 0.0
        pauses = list(PAUSES_S)
        while True:
            try:
                response = await self._client.request(method, path, timeout=timeout, **sent)
            except httpx.TransportError as error:
                never_left = isinstance(error, httpx.ConnectError | httpx.ConnectTimeout | httpx.PoolTimeout)
                if not pauses or not (again or never_left):
                    raise SandboxLost(_lost(error)) from error
                await asyncio.sleep(pauses.pop(0))
                continue
            if response.status_code != 429 or waited_s >= MOST_PATIENCE_S:
                return response
            pause_s = min(max(float(response.headers.get("Retry-After", 1)), 0.1), MOST_PATIENCE_S)
            waited_s += pause_s
            await asyncio.sleep(pause_s)


def _address() -> tuple[str, str]:
    url, token = os.environ.get(URL, ""), os.environ.get(TOKEN, "")
    try:
        parsed(url)
    except AddressFault as fault:
        raise SandboxUnavailable(
            f"{URL} = '{without_secrets(url)}': {fault}; a spec with place = 'service' needs the address of a sandbox "
            "service there, e.g. http://127.0.0.1:8750, without user or query"
        ) from fault
    if not token:
        raise SandboxUnavailable(f"{TOKEN} is not set: make one with `python -m sandboxes token create NAME`")
    return url, token


@cache
def _trusted() -> ssl.SSLContext:
    """Made once: reading the certificates takes longer than making a sandbox."""
    return ssl.create_default_context()


def _lost(error: httpx.TransportError) -> str:
    return f"the sandbox service does not answer: {type(error).__name__} {error}".rstrip()


def _exception(response: httpx.Response) -> Exception:
    if response.headers.get("Content-Type", "").partition(";")[0] == MEDIA_TYPE:
        try:
            return exception_of(Problem.model_validate_json(response.content))
        except ValidationError:
            pass  # told below like anything else that is no problem of the service's
    return SandboxLost(f"the sandbox service answers {response.status_code} without saying why")
