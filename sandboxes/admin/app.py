"""The ASGI application of an admin, put together."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, Request
from fastapi.responses import PlainTextResponse, Response

from sandboxes.admin.host import HostUnreachable
from sandboxes.admin.metrics import AdminStats, admin_text, stats_of
from sandboxes.admin.routed_sandboxes import RoutedSandboxes
from sandboxes.admin.routes import Routed, router
from sandboxes.admin.settings import AdminSettings
from sandboxes.backends.remote.wire import Health
from sandboxes.interface import SandboxLost
from sandboxes.service.doors import PROBLEMS, Caller
from sandboxes.service.limits import BodyLimit
from sandboxes.service.responses import add_problems, of_the_sandbox
from sandboxes.service.tokens import Tokens

ABOUT = "Sandboxes on several hosts behind one address; what one sandbox can do is what a sandbox service says."


def make_app(settings: AdminSettings) -> FastAPI:
    """Finds its hosts' sandboxes when it starts, and ends none when it stops."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        app.state.sandboxes = RoutedSandboxes(settings)
        await app.state.sandboxes.start()
        try:
            yield
        finally:
            await app.state.sandboxes.close()

    app = FastAPI(
        title="Palestra sandbox admin", version="1", description=ABOUT, lifespan=lifespan, docs_url=None, redoc_url=None
    )  # fmt: skip
    app.state.tokens = Tokens(settings.tokens)
    app.add_middleware(BodyLimit, most_bytes=settings.body_bytes)
    add_problems(app)
    app.add_exception_handler(HostUnreachable, _unreachable)
    app.include_router(router)

    @app.get("/healthz", tags=["service"])
    async def healthz(sandboxes: Routed) -> Health:
        """Whether new sandboxes are taken; the only answer besides this document that needs no token."""
        return Health(status="draining" if sandboxes.draining else "ok")

    @app.get("/v1/stats", tags=["service"], responses=PROBLEMS)
    async def stats(sandboxes: Routed, _: Caller) -> AdminStats:
        return stats_of(sandboxes)

    @app.get("/metrics", tags=["service"], responses=PROBLEMS, response_class=PlainTextResponse)
    async def metrics(sandboxes: Routed, _: Caller) -> PlainTextResponse:
        """For Prometheus."""
        return PlainTextResponse(admin_text(stats_of(sandboxes)), media_type="text/plain; version=0.0.4")

    return app


def _unreachable(request: Request, error: Exception) -> Response:
    return of_the_sandbox(request, SandboxLost(str(error)))
