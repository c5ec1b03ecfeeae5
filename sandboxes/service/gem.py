"""The GEM API: ``make``, ``reset``, ``step``, ``close`` over HTTP, as ROCK offers it (Let It Flow, 2.3).

One environment so far.  ``python``: an action is Python code, which runs in a session of a sandbox; the
observation is what it printed.  It sets no task, so every reward is 0 and no episode terminates by itself:
it is truncated after ``max_steps``.
"""

import time
from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Depends, Request
from pydantic import Field

from sandboxes.backends.remote.faults import Fault
from sandboxes.backends.remote.wire import IDLE_S, MOST_WAIT_S, QUEUE_S, CreateSandbox, Name, OnBehalf, Wire
from sandboxes.interface import ExecResult
from sandboxes.service.doors import PROBLEMS, AllSandboxes, Caller, Key
from sandboxes.service.hosted import HostedSandbox
from sandboxes.service.hosted_sandboxes import HostedSandboxes
from sandboxes.service.refusals import NotThere, Refusal, Unusable
from sandboxes.service.tokens import Token
from sandboxes.spec import SandboxSpec

router = APIRouter(prefix="/gem", tags=["gem"], responses=PROBLEMS)
ENVIRONMENTS = {"python": "Python code, run in a session; the observation is what it printed."}
GREETING = "A Python session. Send code; what it prints, and the value of its last expression, come back."
SEEDED = "import random as _r; _r.seed({seed}); del _r"
AS_A_PROGRAM = ["python3", "-I", "-"]
"""Isolated: of the files that an episode left, start-up files and modules among them, none is loaded by itself."""
Info = dict[str, str | int | float | bool | None]


class Make(Wire):
    env_id: str = Field(max_length=100)
    spec: SandboxSpec = SandboxSpec()
    max_steps: int = Field(default=32, ge=1, le=100_000)
    """After so many steps an episode is truncated."""
    user: Name | None = None
    idle_s: float = Field(default=IDLE_S, gt=0, le=86400)
    queue_s: float = Field(default=MOST_WAIT_S, ge=0, le=min(QUEUE_S, MOST_WAIT_S))
    """How long to wait for room on the host; without any, 503."""
    on_behalf: OnBehalf | None = None
    """For whom an admin of several hosts asks; from anybody else it is refused."""

    def sandbox(self) -> CreateSandbox:
        """Return what its sandbox is asked for with."""
        return CreateSandbox(
            spec=self.spec, user=self.user, idle_s=self.idle_s, queue_s=self.queue_s, wait_s=MOST_WAIT_S,
            on_behalf=self.on_behalf,
        )  # fmt: skip


class Made(Wire):
    instance: str
    """It is also the id of its sandbox in the Sandbox API."""
    env_id: str
    about: str


class Reset(Wire):
    instance: str
    seed: int = Field(default=0, ge=0, lt=2**63)
    """It seeds ``random`` in the session."""


class ResetResponse(Wire):
    observation: str
    info: Info


class Step(Wire):
    instance: str
    action: str
    alone: bool = False
    """Run the action as a program of its own: every other process of the sandbox is dead before, and the next action
    begins in a fresh session.  ``info.exit_code`` is then the kernel's word."""


class StepResponse(Wire):
    observation: str
    reward: float
    terminated: bool
    truncated: bool
    info: Info


class Close(Wire):
    instance: str


@dataclass
class PythonSession:
    hosted: HostedSandbox
    max_steps: int
    steps: int | None = None
    """It is None before the first ``reset``."""

    async def reset(self, sandboxes: HostedSandboxes, seed: int) -> str:
        await sandboxes.begin_episode(self.hosted)
        # As a prelude: a session whose interpreter was ended begins with the same numbers again.
        await self.hosted.busy(self.hosted.sandbox.set_prelude(SEEDED.format(seed=seed)))
        self.steps = 0
        return GREETING

    async def step(self, code: str, *, alone: bool = False) -> tuple[ExecResult, bool]:
        if self.steps is None:
            raise Refusal("the environment was never reset: POST /gem/reset first")
        if self.steps >= self.max_steps:
            raise Refusal(f"the episode was truncated after max_steps = {self.max_steps}: POST /gem/reset")
        self.steps += 1
        sandbox = self.hosted.sandbox
        work = sandbox.exec(AS_A_PROGRAM, stdin=code.encode("utf-8", "replace"), alone=True) if alone else None
        result = await self.hosted.call(None, work or sandbox.run_python(code))
        return result, self.steps >= self.max_steps


def refuse_unknown(env_id: str) -> None:
    """Raises ``Unusable``."""
    if env_id not in ENVIRONMENTS:
        known = ", ".join(sorted(ENVIRONMENTS))
        fault = Fault(field="env_id", value=env_id, message="not known here", remedy=f"use one of: {known}")
        raise Unusable("There is no such environment", fault)


class Environments:
    """Environments by the ids of their sandboxes.  The object belongs to one event loop."""

    def __init__(self, sandboxes: HostedSandboxes) -> None:
        self._sandboxes = sandboxes
        self._sessions: dict[str, PythonSession] = {}

    async def make(self, token: Token, wanted: Make, key: str | None) -> HostedSandbox:
        refuse_unknown(wanted.env_id)
        hosted = await self._sandboxes.create(token, wanted.sandbox(), key)
        self._sessions = {
            id_: python for id_, python in self._sessions.items() if python.hosted in self._sandboxes.all()
        }
        self._sessions.setdefault(hosted.id, PythonSession(hosted, wanted.max_steps))
        return hosted

    def find(self, instance: str, token: Token) -> PythonSession:
        hosted = self._sandboxes.find(instance, token)
        if instance not in self._sessions:
            raise NotThere(
                f"instance '{instance}': there is a sandbox of this id, but no environment in it: POST /gem/make"
            )
        return self._sessions[hosted.id]


async def environments_of(request: Request) -> Environments:
    environments: Environments = request.app.state.gem
    return environments


All = Annotated[Environments, Depends(environments_of)]


@router.get("/environments")
async def environments(_: Caller) -> dict[str, str]:
    """Return what can be made, with what it takes and answers."""
    return ENVIRONMENTS


@router.post("/make", status_code=201)
async def make(wanted: Make, token: Caller, all_: All, key: Key = None) -> Made:
    hosted = await all_.make(token, wanted, key)
    return Made(instance=hosted.id, env_id=wanted.env_id, about=ENVIRONMENTS[wanted.env_id])


@router.post("/reset")
async def reset(asked: Reset, token: Caller, all_: All, sandboxes: AllSandboxes) -> ResetResponse:
    observation = await all_.find(asked.instance, token).reset(sandboxes, asked.seed)
    return ResetResponse(observation=observation, info={"seed": asked.seed})


@router.post("/step")
async def step(asked: Step, token: Caller, all_: All, sandboxes: AllSandboxes) -> StepResponse:
    session = all_.find(asked.instance, token)
    sandboxes.usage.check_exec(token)
    started = time.monotonic()
    spent_s: float | None = None
    try:
        result, truncated = await session.step(asked.action, alone=asked.alone)
        spent_s = result.seconds
    finally:  # a step that costs the sandbox its life has run all the same
        sandboxes.usage.count_exec(token, time.monotonic() - started if spent_s is None else spent_s)
    info: Info = {
        "outcome": result.outcome, "exception": result.exception, "exit_code": result.exit_code, "step": session.steps
    }  # fmt: skip
    return StepResponse(
        observation=result.stdout + result.stderr, reward=0.0, terminated=False, truncated=truncated, info=info
    )


@router.post("/close", status_code=204)
async def close(asked: Close, token: Caller, all_: All, sandboxes: AllSandboxes) -> None:
    """Close the environment; a second call does nothing."""
    await sandboxes.end(all_.find(asked.instance, token).hosted, "its environment was closed")
