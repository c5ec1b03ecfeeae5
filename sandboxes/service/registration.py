"""A host that tells its admin where it is, and with which token it is asked.

The token is made at each start, is kept in memory by both sides, and is valid for this host alone.
"""

import asyncio
import logging
from dataclasses import dataclass, field

import httpx
from pydantic import Field

from sandboxes.backends.remote.host_address import HostUrl
from sandboxes.backends.remote.wire import HostName, Wire
from sandboxes.service.tokens import Quota, Token, minted

log = logging.getLogger(__name__)
EVERY_S = 10.0
"""An admin that was started anew learns of its hosts from its file; one whose file is gone, within so long."""
AGAIN_S = 1.0


class RegisterHost(Wire):
    url: HostUrl
    """Where the admin reaches the host: scheme, address and port."""
    token: str = Field(min_length=1, max_length=300)
    """With which the admin asks it."""


@dataclass
class Registration:
    admin_url: str
    join_token: str = field(repr=False)
    """The token of the role ``host``."""
    name: HostName
    advertised: str
    """The address by which the admin reaches this machine."""

    def __post_init__(self) -> None:
        self.token: Token
        self.token, self._text = minted("admin", "admin", Quota(), "admin")

    def url(self, port: int) -> str:
        """Where the admin reaches the host."""
        address = f"[{self.advertised}]" if ":" in self.advertised else self.advertised
        return f"http://{address}:{port}"

    async def keep(self, port: int) -> None:
        """Register, and again every now and then, until it is cancelled."""
        body = RegisterHost(url=self.url(port), token=self._text)
        headers = {"Authorization": f"Bearer {self.join_token}"}
        async with httpx.AsyncClient(base_url=self.admin_url, headers=headers, trust_env=False, timeout=10) as client:
            known: str | None = None
            while True:
                found = await self._registered(client, body)
                if found != known:
                    log.log(logging.WARNING if found else logging.INFO, found or "registered", extra=self._shown())
                known = found
                await asyncio.sleep(AGAIN_S if found else EVERY_S)

    async def _registered(self, client: httpx.AsyncClient, body: RegisterHost) -> str:
        """Return why it is not registered; nothing if it is."""
        try:
            response = await client.put(f"/v1/hosts/{self.name}", json=body.model_dump())
        except httpx.TransportError as error:
            return f"the admin does not answer: {type(error).__name__}"
        return "" if response.is_success else f"the admin answers {response.status_code}: {response.text[:300]}"

    def _shown(self) -> dict[str, str]:
        return {"admin": self.admin_url, "host_name": self.name}
