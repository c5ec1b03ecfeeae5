"""The ASGI application, put together."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI
from fastapi.responses import PlainTextResponse

from sandboxes.backends.remote.wire import Health
from sandboxes.service import box_routes, gem
from sandboxes.service.answers import add_problems
from sandboxes.service.boxes import Boxes
from sandboxes.service.doors import PROBLEMS, AllBoxes, Caller
from sandboxes.service.limits import BodyLimit
from sandboxes.service.metrics import Stats, prometheus_text, stats_of
from sandboxes.service.settings import Settings
from sandboxes.service.tokens import Tokens

ABOUT = "Boxes in which code runs that nobody trusts, and environments in them."


def make_app(settings: Settings) -> FastAPI:
    """Starts and closes its boxes with the ASGI lifespan."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        app.state.boxes = Boxes(settings)
        app.state.gem = gem.Environments(app.state.boxes)
        try:
            yield
        finally:
            await app.state.boxes.close()

    app = FastAPI(
        title="Palestra sandbox service",
        version="1",
        description=ABOUT,
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
    )
    app.state.tokens = Tokens(settings.tokens)
    app.add_middleware(BodyLimit, most_bytes=settings.body_bytes)
    add_problems(app)
    app.include_router(box_routes.router)
    app.include_router(gem.router)

    @app.get("/healthz", tags=["service"])
    async def healthz(boxes: AllBoxes) -> Health:
        """Whether new boxes are taken; the only answer besides this document that needs no token."""
        return Health(status="draining" if boxes.draining else "ok")

    @app.get("/v1/stats", tags=["service"], responses=PROBLEMS)
    async def stats(boxes: AllBoxes, _: Caller) -> Stats:
        return stats_of(boxes)

    @app.get("/metrics", tags=["service"], responses=PROBLEMS, response_class=PlainTextResponse)
    async def metrics(boxes: AllBoxes, _: Caller) -> PlainTextResponse:
        """For Prometheus."""
        return PlainTextResponse(prometheus_text(stats_of(boxes)), media_type="text/plain; version=0.0.4")

    return app
