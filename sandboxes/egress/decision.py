"""Whether an attempt may go on.  ``decide`` is pure: the same three inputs give the same decision.

First match wins, and what no rule allows is denied.  Names count only as far as *we* resolved them
(``resolved``); what the sandbox claims in SNI or Host can only pick one of those names, never add one.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from sandboxes.egress.address import Address, ip, special_range
from sandboxes.egress.connection_attempt import ConnectionAttempt, Frozen, Label, Name
from sandboxes.egress.policy import RESOLVED_TYPES, EgressPolicy, Quotas
from sandboxes.egress.rule import FORWARDED, Rule
from sandboxes.egress.rule_checks import is_host_name

Reason = Literal[
    "allowed-by-rule",
    "denied-by-rule",
    "no-rule",
    "special-range",
    "not-resolved",
    "name-mismatch",
    "method-not-allowed",
    "protocol-not-forwarded",
    "dns-type-not-allowed",
    "malformed",
    "unreadable",
    "upgrade-not-allowed",
    "quota-bytes-up",
    "quota-bytes-down",
    "quota-connections",
    "quota-rate",
    "gateway-failed",
]
REASONS: tuple[Reason, ...] = get_args(Reason)

WHY: Mapping[Reason, str] = {
    "allowed-by-rule": "a rule allows it",
    "denied-by-rule": "a rule denies it",
    "no-rule": "no rule allows it",
    "special-range": "private, link-local, loopback, metadata and multicast addresses need a rule naming their range",
    "not-resolved": "this address was not resolved from an allowed name; connect by name",
    "name-mismatch": "the name in the request is not the one that was resolved to this address",
    "method-not-allowed": "the rule does not allow this HTTP method, or it cannot be read",
    "protocol-not-forwarded": "this protocol is never forwarded",
    "dns-type-not-allowed": "only A and AAAA records are answered",
    "malformed": "it names no usable destination",
    "unreadable": "the next request on this connection cannot be read, so the connection ends",
    "upgrade-not-allowed": "the rule limits methods, and no method can be read after a change of protocol",
    "quota-bytes-up": "the quota of bytes sent is used up",
    "quota-bytes-down": "the quota of bytes received is used up",
    "quota-connections": "the quota of connections is used up",
    "quota-rate": "too many attempts per minute",
    "gateway-failed": "the gateway could not decide, so it denied",
}
"""What the agent reads; one line each."""

Resolved = Mapping[str, Collection[str]]
"""Normalised address -> the allowed names for which our resolver answered it and whose answer is still valid."""


class EgressDecision(Frozen):
    allowed: bool
    policy: Label
    rule: Name | None = None
    """The rule that decided, or that would have allowed it but for ``reason``."""
    reason: Reason


@dataclass(frozen=True, slots=True)
class Usage:
    """What a sandbox, and the connection in question, have used up so far."""

    connection_up_bytes: int = 0
    connection_down_bytes: int = 0
    sandbox_up_bytes: int = 0
    sandbox_down_bytes: int = 0
    connections: int = 0
    """Open at this moment, the one in question not counted."""
    attempts_last_minute: int = 0
    """The one in question not counted."""


UNUSED = Usage()


def decide(
    policy: EgressPolicy, attempt: ConnectionAttempt, resolved: Resolved, usage: Usage = UNUSED
) -> EgressDecision:
    """The decision on one attempt.

    At stage ``connect`` "allowed" means that it may be allowed once its first bytes are known: ask
    again at stage ``opening`` before a byte is forwarded.  Quotas of ``usage`` can only deny.
    """
    decision = _by_name(policy, attempt) if attempt.protocol == "dns" else _by_address(policy, attempt, resolved)
    spent = quota_reason(policy.quotas, usage, attempt) if decision.allowed else None
    return (
        decision
        if spent is None
        else EgressDecision(allowed=False, policy=policy.name, rule=decision.rule, reason=spent)
    )


def failed_closed(policy: EgressPolicy) -> EgressDecision:
    """For whoever could not decide: a bug or a lost peer never lets anything through."""
    return EgressDecision(allowed=False, policy=policy.name, reason="gateway-failed")


def sentence(decision: EgressDecision, attempt: ConnectionAttempt) -> str:
    """One line for the agent's own error message."""
    who = f"policy '{decision.policy}'" + (f" (rule '{decision.rule}')" if decision.rule else "")
    return f"{who} {'allowed' if decision.allowed else 'denied'} {attempt.target}: {WHY[decision.reason]}"


def quota_reason(quotas: Quotas, usage: Usage, attempt: ConnectionAttempt | None = None) -> Reason | None:
    """Return which quota is used up.  With an attempt, those on beginning something are looked at too."""
    if usage.connection_up_bytes >= quotas.connection_up_bytes or usage.sandbox_up_bytes >= quotas.sandbox_up_bytes:
        return "quota-bytes-up"
    if (
        usage.connection_down_bytes >= quotas.connection_down_bytes
        or usage.sandbox_down_bytes >= quotas.sandbox_down_bytes
    ):
        return "quota-bytes-down"
    if attempt is None:
        return None
    if attempt.protocol != "dns" and usage.connections >= quotas.connections:
        return "quota-connections"
    return "quota-rate" if usage.attempts_last_minute >= quotas.attempts_per_minute else None


def may_resolve(policy: EgressPolicy, name: str) -> bool:
    """Return whether our resolver may answer for the name: exactly those that some reachable allow rule names."""
    return is_host_name(name) and _name_rule(policy, name)[1]


def _by_name(policy: EgressPolicy, attempt: ConnectionAttempt) -> EgressDecision:
    if not attempt.name or not is_host_name(attempt.name):
        return EgressDecision(allowed=False, policy=policy.name, reason="malformed")
    rule, allowed = _name_rule(policy, attempt.name)
    if rule is None:
        return EgressDecision(allowed=False, policy=policy.name, reason="no-rule")
    if not allowed:
        return EgressDecision(allowed=False, policy=policy.name, rule=rule.name, reason="denied-by-rule")
    if attempt.query_type not in RESOLVED_TYPES:
        return EgressDecision(allowed=False, policy=policy.name, rule=rule.name, reason="dns-type-not-allowed")
    return EgressDecision(allowed=True, policy=policy.name, rule=rule.name, reason="allowed-by-rule")


def _name_rule(policy: EgressPolicy, name: str) -> tuple[Rule | None, bool]:
    """The rule that decides on resolving a name, and whether it may be.

    A deny rule speaks against an allow rule behind it if nothing that the latter allows for the name is left.
    """
    denying: list[Rule] = []
    for rule in policy.rules:
        if not rule.names_host(name):
            continue
        if rule.action == "deny":
            denying.append(rule)
        elif not any(earlier.shuts(rule) for earlier in denying):
            return rule, True
    return (denying[0], False) if denying else (None, False)


def _by_address(policy: EgressPolicy, attempt: ConnectionAttempt, resolved: Resolved) -> EgressDecision:
    if attempt.protocol not in FORWARDED:
        return EgressDecision(allowed=False, policy=policy.name, reason="protocol-not-forwarded")
    if attempt.address is None or not attempt.port:
        return EgressDecision(allowed=False, policy=policy.name, reason="malformed")
    address = ip(attempt.address)
    pinned = frozenset(resolved.get(attempt.address, ()))
    claims = _claims(attempt)
    rule = _first(policy, attempt, address, _believed(pinned, claims), pinned | claims)
    if rule is not None:
        allowed = rule.action == "allow"
        reason: Reason = "allowed-by-rule" if allowed else "denied-by-rule"
        return EgressDecision(allowed=allowed, policy=policy.name, rule=rule.name, reason=reason)
    return _no_match(policy, attempt, address, pinned, claims)


def _claims(attempt: ConnectionAttempt) -> frozenset[str]:
    """The names that the sandbox's first bytes speak of.  Its destination's own address is no claim."""
    claimed = {name for name in (attempt.sni, _without_port(attempt.host)) if name}
    return frozenset(claimed - {attempt.address})


def _believed(pinned: frozenset[str], claims: frozenset[str]) -> frozenset[str]:
    """The names by which an allow rule may match.  Where SNI says one and Host another, neither is believed."""
    if not claims:
        return pinned
    return pinned & claims if len(claims) == 1 else frozenset()


def _without_port(host: str | None) -> str | None:
    if host is None:
        return None
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0].removesuffix(".")


def _first(
    policy: EgressPolicy,
    attempt: ConnectionAttempt,
    address: Address,
    believed: frozenset[str],
    suspected: frozenset[str],
) -> Rule | None:
    """A sandbox that claims a name which it did not resolve must not slip past a deny rule on the true one."""
    denied_by = believed or suspected
    for rule in policy.rules:
        names = believed if rule.action == "allow" else denied_by
        if _matches(rule, attempt, address, names) and _method_fits(rule, attempt):
            return rule
    return None


def _matches(rule: Rule, attempt: ConnectionAttempt, address: Address, names: Collection[str]) -> bool:
    """Whether protocol, port and destination are the rule's, its methods aside."""
    if attempt.protocol not in rule.protocols or not rule.has_port(attempt.port or 0):
        return False
    if rule.hosts and not any(rule.names_host(name) for name in names):
        return False
    if rule.action == "deny":
        return not rule.cidrs or any(address in inside for inside in rule.networks)
    return rule.reaches(address)


def _method_fits(rule: Rule, attempt: ConnectionAttempt) -> bool:
    """Fail closed: once the first bytes are there, an unreadable method is denied and never allowed."""
    if not rule.methods:
        return True
    if attempt.stage == "connect":
        return rule.action == "allow"
    if attempt.method is None:
        return rule.action == "deny"
    return attempt.method.upper() in rule.methods


def _no_match(
    policy: EgressPolicy, attempt: ConnectionAttempt, address: Address, pinned: frozenset[str], claims: frozenset[str]
) -> EgressDecision:
    """Why nothing matched: the nearest rule, as far as there is one."""

    def denied(reason: Reason, rule: Rule | None = None) -> EgressDecision:
        return EgressDecision(allowed=False, policy=policy.name, rule=rule.name if rule else None, reason=reason)

    allowing = [rule for rule in policy.rules if rule.action == "allow"]
    wrong_method = _nearest(allowing, attempt, address, _believed(pinned, claims))
    if wrong_method is not None:
        return denied("method-not-allowed", wrong_method)
    other_name = _nearest(allowing, attempt, address, pinned)
    if other_name is not None:
        return denied("name-mismatch", other_name)
    if special_range(address) is not None:
        return denied("special-range")
    unpinned = _nearest([rule for rule in allowing if rule.hosts], attempt, address, claims)
    if unpinned is not None:
        return denied("not-resolved", unpinned)
    return denied("no-rule")


def _nearest(rules: list[Rule], attempt: ConnectionAttempt, address: Address, names: Collection[str]) -> Rule | None:
    return next((rule for rule in rules if _matches(rule, attempt, address, names)), None)
