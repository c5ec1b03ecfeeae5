"""What lies around the service is not for its users to open: its own loopback, private networks, metadata.

Egress policies come with the specs, so from whoever has a token, and the gateway dials from this host.  A rule
that names a special range opens it (docs/egress.md); here it is refused, unless the operator allows it.
"""

from sandboxes.backends.remote.faults import Fault
from sandboxes.egress.address import SPECIAL, covers
from sandboxes.service.refusals import Unusable
from sandboxes.spec import SandboxSpec


def refuse_neighbours(spec: SandboxSpec) -> None:
    """Raises ``Unusable``."""
    for place, rule in enumerate(spec.egress.rules if spec.egress is not None else ()):
        if rule.action != "allow":
            continue
        for opened in rule.networks:
            kind = next((kind for special, kind in SPECIAL if covers(special, opened)), None)
            if kind is not None:
                fault = Fault(
                    field=f"spec.egress.rules.{place}.cidrs",
                    value=str(opened),
                    message=f"rule '{rule.name}' opens a {kind} range, as seen from the service",
                    remedy="name public networks, or start the service with --special-egress",
                )
                raise Unusable("This service opens no special ranges", fault)
