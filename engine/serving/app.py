"""The endpoints: GEM as ROCK speaks it, and OpenEnv.  Trust: none; whoever may reach it plays, and nothing more.

    POST /apis/v1/envs/gem/make {env_id}, reset {sandbox_id, seed}, step {sandbox_id, action}, close {sandbox_id}
    WS   /openenv/NAME/ws       {"type": "reset" | "step" | "state" | "close", "data": {...}}

Every connection of OpenEnv has an episode of its own, which ends with it.
"""

import asyncio
import json
import logging
import secrets
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Request, WebSocket, WebSocketDisconnect
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field
from starlette.types import ASGIApp, Receive, Scope, Send

from engine.environments.contract import VerifierFailed
from engine.rollout.faults import EnvironmentFailed
from engine.serving.episodes import Episode, Episodes, ServingRefused, Step, message_of, message_of_fields
from engine.spec.trajectory import Split
from sandboxes.interface import PoolClosed, SandboxFrozen, SandboxLost, SandboxUnavailable

BODY_BYTES = 2**20
SWEEP_S = 5.0
LARGEST_SEED = 2**63
FAILURES = (EnvironmentFailed, VerifierFailed, SandboxLost, SandboxFrozen, SandboxUnavailable, PoolClosed)
log = logging.getLogger(__name__)


class Body(BaseModel):
    """Unknown fields are let pass: clients of either protocol may send their own."""

    model_config = ConfigDict(frozen=True)


class Make(Body):
    env_id: str = Field(max_length=200)
    split: Split = "train"
    max_steps: int | None = Field(default=None, ge=1, le=100_000)
    """After so many turns an episode is truncated; by default the environment's ``max_turns``."""


class Instance(Body):
    sandbox_id: str = Field(max_length=64)
    """As ``make`` gave it.  ROCK's name for an instance."""


class Reset(Instance):
    seed: int = Field(default=0, ge=0, lt=LARGEST_SEED)
    """The number of the task."""


class Act(Instance):
    action: str = Field(max_length=BODY_BYTES)


class OpenEnvReset(Body):
    seed: int | None = Field(default=None, ge=0, lt=LARGEST_SEED)
    split: Split = "train"


class Door:
    """Who may ask, and how much: a token where there is one, and a body of a known and bounded size."""

    def __init__(self, app: ASGIApp, token: str | None) -> None:
        self._app, self._token = app, token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        refused = self._refusal(scope, headers)
        if refused is None:
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            status, reason = refused
            await JSONResponse({"detail": reason}, status)(scope, receive, send)
        else:
            await receive()
            await send({"type": "websocket.close", "code": 1008, "reason": refused[1]})

    def _refusal(self, scope: Scope, headers: Mapping[bytes, bytes]) -> tuple[int, str] | None:
        if self._token is not None:
            _, _, given = headers.get(b"authorization", b"").partition(b" ")
            if not secrets.compare_digest(given, self._token.encode()):
                return 401, "send the server's token: Authorization: Bearer ..."
        if scope["type"] == "http" and scope["method"] == "POST":
            size = headers.get(b"content-length", b"")
            if not size.isdigit():
                return 411, "say how long the body is"
            if int(size) > BODY_BYTES:
                return 413, f"a body of more than {BODY_BYTES} bytes"
        return None


def application(episodes: Episodes, token: str | None) -> FastAPI:
    """The application; its episodes end with it."""

    @asynccontextmanager
    async def life(_: FastAPI) -> AsyncIterator[None]:
        sweeping = asyncio.create_task(_sweep(episodes))
        try:
            yield
        finally:
            sweeping.cancel()
            await episodes.close_all()
            for served in episodes.served.values():
                await served.pool.close()

    app = FastAPI(title="Palestra's environments", lifespan=life, docs_url=None, redoc_url=None)
    app.state.episodes = episodes
    app.add_middleware(Door, token=token)
    app.add_exception_handler(ServingRefused, _refused)
    for failure in FAILURES:
        app.add_exception_handler(failure, _failed)
    _add_gem(app)
    _add_openenv(app)
    return app


async def episodes_of(request: Request) -> Episodes:
    episodes: Episodes = request.app.state.episodes
    return episodes


All = Annotated[Episodes, Depends(episodes_of)]


def _add_gem(app: FastAPI) -> None:
    prefix = "/apis/v1/envs/gem"

    @app.get(f"{prefix}/environments")
    async def environments(all_: All) -> dict[str, Any]:
        """What can be made, with how many tasks."""
        return {name: _described(all_, name) for name in all_.served}

    @app.post(f"{prefix}/make")
    async def make(wanted: Make, all_: All) -> dict[str, str]:
        id_, _ = all_.make(wanted.env_id, wanted.split, wanted.max_steps)
        return {"sandbox_id": id_, "env_id": wanted.env_id}

    @app.post(f"{prefix}/reset")
    async def reset(asked: Reset, all_: All) -> dict[str, Any]:
        observation, info = await all_.find(asked.sandbox_id).reset(asked.seed)
        return {"observation": observation, "info": info}

    @app.post(f"{prefix}/step")
    async def step(asked: Act, all_: All) -> dict[str, Any]:
        return vars(await all_.find(asked.sandbox_id).step(message_of(asked.action)))

    @app.post(f"{prefix}/close")
    async def close(asked: Instance, all_: All) -> dict[str, str]:
        await all_.close(asked.sandbox_id)
        return {"sandbox_id": asked.sandbox_id}


def _add_openenv(app: FastAPI) -> None:
    @app.get("/openenv/{name}/health")
    async def health(name: str) -> dict[str, str]:
        return {"status": "healthy"}

    @app.websocket("/openenv/{name}/ws")
    async def connection(socket: WebSocket, name: str) -> None:
        episodes: Episodes = socket.app.state.episodes
        await socket.accept()
        id_ = None
        try:
            id_, episode = episodes.make(name, "train", None)
            while await _answered(socket, episode):
                pass
        except ServingRefused as refused:
            await socket.send_json(_error(str(refused), "SESSION_ERROR"))
        except WebSocketDisconnect:
            return
        finally:
            if id_ is not None:
                await episodes.close(id_)
        with suppress(RuntimeError):  # the client was faster
            await socket.close()


async def _answered(socket: WebSocket, episode: Episode) -> bool:
    """Answer one message; False when the client says that it is the last."""
    try:
        message = json.loads(await socket.receive_text())
        kind, data = (message.get("type"), message.get("data", {})) if isinstance(message, dict) else (None, {})
    except (ValueError, RecursionError, KeyError):
        await socket.send_json(_error("no JSON", "INVALID_JSON"))
        return True
    if kind == "close":
        return False
    try:
        await socket.send_json(await _openenv(kind, data, episode))
    except (ServingRefused, ValueError) as refused:
        await socket.send_json(_error(str(refused), "VALIDATION_ERROR"))
    except FAILURES as failed:
        log.warning("an episode failed: %s", failed)
        await socket.send_json(_error(str(failed), "EXECUTION_ERROR"))
    return True


async def _openenv(kind: Any, data: Any, episode: Episode) -> dict[str, Any]:
    match kind, data:
        case "reset", dict():
            asked = OpenEnvReset.model_validate(data)
            text, info = await episode.reset(asked.seed or 0, asked.split)
            return {"type": "observation", "data": _observed(text, info, 0.0, False)}
        case "step", {"action": str(action), **others} if not others:
            step = await episode.step(message_of(action))
        case "step", dict():
            step = await episode.step(message_of_fields(data))
        case "state", _:
            return {"type": "state", "data": {"episode_id": episode.served.name, "step_count": episode.turns}}
        case _:
            return _error(f"unknown message {str(kind)[:100]!r}", "UNKNOWN_TYPE")
    info = step.info | {"truncated": step.truncated}
    return {"type": "observation", "data": _observed(step.observation, info, step.reward, _is_over(step))}


def _observed(text: str, info: Mapping[str, Any], reward: float, done: bool) -> dict[str, Any]:
    return {"observation": {"text": text, "info": dict(info)}, "reward": reward, "done": done}


def _is_over(step: Step) -> bool:
    return step.terminated or step.truncated


def _described(episodes: Episodes, name: str) -> dict[str, Any]:
    served = episodes.served[name]
    return {"kind": served.spec.id, "train": len(served.environment.tasks("train")), "max_steps": served.spec.max_turns}


def _error(message: str, code: str) -> dict[str, Any]:
    return {"type": "error", "data": {"message": message[:2000], "code": code}}


async def _refused(_: Request, refused: Exception) -> JSONResponse:
    assert isinstance(refused, ServingRefused)
    return JSONResponse({"detail": str(refused)}, refused.status)


async def _failed(_: Request, failed: Exception) -> JSONResponse:
    log.warning("an episode failed: %s", failed)
    return JSONResponse({"detail": f"the environment failed: {str(failed)[:2000]}"}, 502)


async def _sweep(episodes: Episodes) -> None:
    while True:
        await asyncio.sleep(SWEEP_S)
        await episodes.sweep()
