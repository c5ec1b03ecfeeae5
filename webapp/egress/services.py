"""Reading an egress policy, and whether a connection would pass it and by which rule; nothing is stored.

What decides is ``sandboxes.egress.decision.decide``, the same pure function that the gateway asks.  Page, REST and
``manage.py egress_policy`` call this module.
"""

from dataclasses import dataclass
from typing import Any, Literal

from pydantic import Field, ValidationError, field_validator

from engine.spec.problems import problems_in
from engine.spec.strict import Strict
from engine.spec.toml_document import BadToml, toml_document
from sandboxes.egress.address import ip, normalised, special_range
from sandboxes.egress.connection_attempt import ConnectionAttempt, host_name
from sandboxes.egress.decision import Resolved, decide, may_resolve, sentence
from sandboxes.egress.policy import EgressPolicy
from webapp.refusals import Invalid

PUBLIC_ADDRESS = "203.0.113.1"
"""What a name is taken to resolve to where nobody says: an address of no special range, kept for documentation."""
LONGEST_TEXT = 2**16


class Connection(Strict):
    """A connection that code in a sandbox might try."""

    to: str = Field(min_length=1, max_length=253)
    """A host name, which the sandbox resolves first, or an address."""
    port: int = Field(ge=1, le=65535)
    protocol: Literal["tcp", "udp"] = "tcp"
    scheme: Literal["tls", "http", "other"] = "tls"
    """What its first bytes are: a TLS hello that names the host, a plain HTTP request, or what cannot be read."""
    method: str = Field(default="GET", pattern=r"^[A-Z][A-Z-]{0,31}$")
    """The method of a plain HTTP request."""
    resolves_to: str | None = None
    """What the host name resolves to, where that matters to the rules; a public address otherwise."""

    @field_validator("resolves_to")
    @classmethod
    def _is_an_address(cls, given: str | None) -> str | None:
        if given is not None:
            ip(given)
        return given

    @property
    def name(self) -> str | None:
        """The host name; None where ``to`` is an address."""
        try:
            ip(self.to)
        except ValueError:
            return host_name(self.to)
        return None

    @property
    def address(self) -> str:
        return normalised(self.to if self.name is None else self.resolves_to or PUBLIC_ADDRESS)


@dataclass(frozen=True)
class Stage:
    """What was decided about one step of a connection."""

    stage: Literal["resolve", "connect", "request"]
    allowed: bool
    rule: str | None
    reason: str
    sentence: str
    """What the agent reads."""


@dataclass(frozen=True)
class ConnectionAnswer:
    """Whether a connection would pass, and why: the last stage is the one that decided."""

    connection: Connection
    address: str
    special_range: str | None
    """The special range that the address is in, if any."""
    stages: list[Stage]

    @property
    def passes(self) -> bool:
        return all(stage.allowed for stage in self.stages)

    @property
    def deciding(self) -> Stage:
        return self.stages[-1]


def policy_of_text(text: str) -> EgressPolicy:
    """The policy that a TOML document describes.  Raises Invalid with everything that is wrong."""
    try:
        document = toml_document(text, longest=LONGEST_TEXT)
    except BadToml as bad:
        raise Invalid("the policy cannot be read", [bad.problem("policy")]) from bad
    return policy_of(document)


def policy_of(document: dict[str, Any]) -> EgressPolicy:
    """Raises Invalid with everything that is wrong: the first fault of each rule, and of the rules together."""
    try:
        return EgressPolicy.model_validate(document)
    except ValidationError as error:
        raise Invalid("the policy cannot be used", problems_in(error, EgressPolicy)) from error


def connection_of(document: dict[str, Any]) -> Connection:
    """Raises Invalid."""
    try:
        return Connection.model_validate(document)
    except ValidationError as error:
        raise Invalid("the connection cannot be tried", problems_in(error, Connection)) from error


def tried(policy: EgressPolicy, connection: Connection) -> ConnectionAnswer:
    """What the gateway would decide about the connection: name, address and first bytes, one after the other."""
    address = connection.address
    special = special_range(ip(address))
    stages = list[Stage]()
    if connection.name is not None:
        stages.append(_stage("resolve", policy, _query(connection), {}))
    pins: Resolved = {address: [connection.name]} if connection.name and may_resolve(policy, connection.name) else {}
    if all(stage.allowed for stage in stages):
        stages.append(_stage("connect", policy, _attempt(connection, "connect"), pins))
    if all(stage.allowed for stage in stages):
        stages.append(_stage("request", policy, _attempt(connection, "opening"), pins))
    return ConnectionAnswer(connection, address, None if special is None else special[1], stages)


def _stage(
    stage: Literal["resolve", "connect", "request"], policy: EgressPolicy, attempt: ConnectionAttempt, pins: Resolved
) -> Stage:
    decision = decide(policy, attempt, pins)
    return Stage(stage, decision.allowed, decision.rule, decision.reason, sentence(decision, attempt))


def _query(connection: Connection) -> ConnectionAttempt:
    return ConnectionAttempt(
        sandbox="", sequence=1, at=0, protocol="dns", address="127.0.0.53", port=53, name=connection.name,
        query_type="A",
    )  # fmt: skip


def _attempt(connection: Connection, stage: Literal["connect", "opening"]) -> ConnectionAttempt:
    is_opening = stage == "opening"
    is_http = is_opening and connection.scheme == "http"
    return ConnectionAttempt(
        sandbox="", sequence=2, at=0, protocol=connection.protocol, address=connection.address, port=connection.port,
        stage=stage, sni=connection.name if is_opening and connection.scheme == "tls" else None,
        host=(connection.name or connection.to) if is_http else None, method=connection.method if is_http else None,
    )  # fmt: skip


def as_document(policy: EgressPolicy) -> dict[str, Any]:
    """The policy as a spec has it, without what is as always."""
    return policy.model_dump(mode="json", exclude_defaults=True) | {"name": policy.name}
