"""What a host says to its admin (``sandboxes.admin``): what it has room for, and which of its sandboxes it has."""

from fastapi import APIRouter

from sandboxes.backends.remote.wire import OnBehalf, SandboxState, SandboxView, Wire
from sandboxes.service.doors import PROBLEMS, Admin, AllSandboxes
from sandboxes.service.hosted import HostedSandbox
from sandboxes.service.hosted_sandboxes import HostedSandboxes
from sandboxes.service.metrics import Stats, stats_of
from sandboxes.service.tokens import Token

router = APIRouter(prefix="/v1/host", tags=["host"], responses=PROBLEMS)


class HostView(Wire):
    instance: str
    """Another one after each start of the host."""
    draining: bool
    stats: Stats
    others_sandboxes: int
    """Sandboxes here that are not the asking admin's, and the memory that they may fill."""
    others_memory_mib: int
    states: dict[str, SandboxState]
    """The states of the asking admin's sandboxes, those that ended a short time ago too."""


class HostedForAdmin(Wire):
    """One sandbox that an admin asked for."""

    sandbox: SandboxView
    on_behalf: OnBehalf


@router.get("")
async def host(token: Admin, sandboxes: AllSandboxes) -> HostView:
    """What the admin asks every second or so."""
    own = _of(token, sandboxes)
    let_in_mib = [memory_mib for hosted in own if (memory_mib := sandboxes.memory_mib_of(hosted))]
    return HostView(
        instance=sandboxes.instance,
        draining=sandboxes.draining,
        stats=stats_of(sandboxes),
        others_sandboxes=sandboxes.gate.sandboxes - len(let_in_mib),
        others_memory_mib=sandboxes.gate.memory_mib - sum(let_in_mib),
        states={hosted.id: hosted.state for hosted in own},
    )


@router.get("/sandboxes")
async def of_admin(token: Admin, sandboxes: AllSandboxes) -> list[HostedForAdmin]:
    """The admin's sandboxes with all that it needs to have them again after a start of its own."""
    return [
        HostedForAdmin(sandbox=sandboxes.view(hosted), on_behalf=hosted.wanted.on_behalf)
        for hosted in _of(token, sandboxes)
        if hosted.wanted.on_behalf is not None
    ]


def _of(token: Token, sandboxes: HostedSandboxes) -> list[HostedSandbox]:
    return [hosted for hosted in sandboxes.of(token.owner) if hosted.wanted.on_behalf is not None]
