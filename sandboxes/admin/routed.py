"""One sandbox of an admin: for whom it is, and which host has it."""

from sandboxes.admin.host import Host
from sandboxes.backends.remote.faults import Problem
from sandboxes.backends.remote.wire import LIVING, CreateSandbox, OnBehalf, SandboxState, SandboxView
from sandboxes.interface import SandboxLost
from sandboxes.service.capacity import Ticket
from sandboxes.service.host_routes import HostedForAdmin
from sandboxes.service.life import Life
from sandboxes.service.refusals import Refusal


class PassedOn(Refusal):
    """A host's own refusal."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.detail)
        self.status = problem.status
        self._problem = problem

    def problem(self) -> Problem:
        return self._problem


class RoutedSandbox(Life):
    """Belongs to one event loop.  ``RoutedSandboxes`` decides over its life."""

    def __init__(
        self, wanted: CreateSandbox, on_behalf: OnBehalf, ticket: Ticket | None, state: SandboxState = "queued"
    ) -> None:
        super().__init__(state)
        self.id = on_behalf.id
        self.owner = on_behalf.owner
        self.user = wanted.user or on_behalf.owner
        self.wanted = wanted
        self.on_behalf = on_behalf
        self.ticket = ticket
        """None once it has left its room."""
        self.host: Host | None = None
        """Who has it, or had it; None while it waits."""
        self.placed_at: float | None = None
        """When its host said that it has it, by the loop's clock."""
        self.was_found_ended = False
        """It is what one host remembers of it: another may have it, made after that."""

    @classmethod
    def found(cls, host: Host, found: HostedForAdmin, ticket: Ticket | None, at: float) -> "RoutedSandbox":
        """Return one that a host had before this admin was started."""
        view = found.sandbox
        wanted = CreateSandbox(spec=view.spec, user=view.user, idle_s=view.idle_s)
        state: SandboxState = "starting" if view.state == "queued" else view.state
        routed = cls(wanted, found.on_behalf, ticket, state)
        routed.reason, routed.created_at = view.reason, view.created_at
        routed.host, routed.placed_at, routed.was_found_ended = host, at, state not in LIVING
        return routed

    @property
    def at_host(self) -> Host:
        """Raises ``SandboxLost`` for one that nobody has any more, ``Refusal`` for one that nobody has yet."""
        if self.state == "lost" or self.host is None and self.state == "closed":
            raise SandboxLost(self.reason)
        if self.host is None or self.placed_at is None:
            raise Refusal(f"the sandbox is {self.state}: wait until it is open (GET /v1/sandboxes/{self.id}?wait_s=30)")
        return self.host

    def view(self, position: int | None) -> SandboxView:
        """Return what the admin knows by itself; of an open one its host knows more."""
        return SandboxView(
            id=self.id, owner=self.owner, user=self.user, state=self.state, position=position, reason=self.reason,
            spec=self.wanted.spec, idle_s=self.wanted.idle_s, created_at=self.created_at, unused_s=0.0,
        )  # fmt: skip
