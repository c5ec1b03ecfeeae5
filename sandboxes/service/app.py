"""The ASGI application, put together."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI
from fastapi.responses import PlainTextResponse

from sandboxes.backends.remote.wire import Health
from sandboxes.service import gem, host_routes, sandbox_routes
from sandboxes.service.doors import PROBLEMS, AllSandboxes, Caller
from sandboxes.service.hosted_sandboxes import HostedSandboxes
from sandboxes.service.limits import BodyLimit
from sandboxes.service.metrics import Stats, prometheus_text, stats_of
from sandboxes.service.responses import add_problems
from sandboxes.service.settings import Settings
from sandboxes.service.tokens import Tokens

ABOUT = "Sandboxes in which code runs that nobody trusts, and environments in them."


def make_app(settings: Settings, tokens: Tokens | None = None) -> FastAPI:
    """Starts and closes its sandboxes with the ASGI lifespan.  ``tokens``: in place of those of the file."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        app.state.sandboxes = HostedSandboxes(settings)
        app.state.gem = gem.Environments(app.state.sandboxes)
        try:
            yield
        finally:
            await app.state.sandboxes.close()

    app = FastAPI(
        title="Palestra sandbox service",
        version="1",
        description=ABOUT,
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
    )
    app.state.tokens = tokens or Tokens(settings.tokens)
    app.add_middleware(BodyLimit, most_bytes=settings.body_bytes)
    add_problems(app)
    app.include_router(sandbox_routes.router)
    app.include_router(gem.router)
    app.include_router(host_routes.router)

    @app.get("/healthz", tags=["service"])
    async def healthz(sandboxes: AllSandboxes) -> Health:
        """Whether new sandboxes are taken; the only answer besides this document that needs no token."""
        return Health(status="draining" if sandboxes.draining else "ok")

    @app.get("/v1/stats", tags=["service"], responses=PROBLEMS)
    async def stats(sandboxes: AllSandboxes, _: Caller) -> Stats:
        return stats_of(sandboxes)

    @app.get("/metrics", tags=["service"], responses=PROBLEMS, response_class=PlainTextResponse)
    async def metrics(sandboxes: AllSandboxes, _: Caller) -> PlainTextResponse:
        """For Prometheus."""
        return PlainTextResponse(prometheus_text(stats_of(sandboxes)), media_type="text/plain; version=0.0.4")

    return app
