"""What a sandbox may reach.  Published: whoever writes a policy gets it checked here, the gateway obeys it.

Rules are read in order and the first match wins; what none matches is denied.  A policy that could be
understood in two ways is refused (``conflicts``), as is a rule that can never apply.  docs/egress.md.
"""

from typing import Self

from pydantic import Field, model_validator

from sandboxes.egress.conflicts import conflict_between
from sandboxes.egress.connection_attempt import Frozen
from sandboxes.egress.refusal import refused
from sandboxes.egress.rule import NAME, Rule

RESOLVED_TYPES: frozenset[str | None] = frozenset({"A", "AAAA"})
"""Record types that the resolver answers: others carry data and no addresses."""
RULES_LIMIT = 200
DESTINATIONS_LIMIT = 1000
"""The most destinations of all rules together: each is compared with each when a policy is read."""


class Quotas(Frozen):
    """Upper bounds; what is over one is denied or cut, and recorded."""

    connection_up_bytes: int = Field(default=16 * 2**20, ge=0)
    """Sent by the sandbox in one connection."""
    connection_down_bytes: int = Field(default=2**30, ge=0)
    sandbox_up_bytes: int = Field(default=64 * 2**20, ge=0)
    """Sent by the sandbox over its whole life."""
    sandbox_down_bytes: int = Field(default=4 * 2**30, ge=0)
    connections: int = Field(default=64, ge=0)
    """Open at once."""
    attempts_per_minute: int = Field(default=600, ge=0)
    """Allowed attempts, DNS queries included; over it they are denied."""


class EgressPolicy(Frozen):
    """Default deny.  Names that may be resolved are exactly those of allow rules."""

    name: str = Field(default="default-deny", pattern=NAME)
    """Said to the agent with every denial."""
    rules: tuple[Rule, ...] = Field(default=(), max_length=RULES_LIMIT)
    quotas: Quotas = Quotas()

    def limits_methods(self, name: str | None) -> bool:
        """Return whether the rule of this name allows some HTTP methods only."""
        return any(rule.name == name and rule.methods for rule in self.rules)

    @model_validator(mode="after")
    def _can_be_understood_in_one_way(self) -> Self:
        places: dict[str, int] = {}
        destinations = sum(rule.destinations for rule in self.rules)
        if destinations > DESTINATIONS_LIMIT:
            raise refused("rules", destinations, "too many destinations", f"name {DESTINATIONS_LIMIT} at most in all")
        for place, rule in enumerate(self.rules):
            if rule.name in places:
                raise refused(
                    f"rules.{place}.name", rule.name, f"rule {places[rule.name]} has the same name", "rename one"
                )
            places[rule.name] = place
            conflict = conflict_between(self.rules[:place], rule)
            if conflict is not None:
                raise refused(f"rules.{place}.{conflict.field}", conflict.value, conflict.problem, conflict.remedy)
        return self
