"""What text alone says of an observed sandbox is a hint; a deed in the same tool call makes it a warning.

The deed that counts is a call outside that the policy denies: text that names a miner, a tunnel or a download and then
calls nobody did nothing.  Of a fork bomb it is as many processes as the sandbox may have, or half as
many.  Other deeds have rules of their own.
"""

from collections import OrderedDict

from sandboxes.egress.detectors.destinations import REGISTRIES, below, names_of, special_kind
from sandboxes.egress.detectors.exec_event import ExecEvent
from sandboxes.egress.detectors.finding import DetectorEvent, Finding
from sandboxes.egress.detectors.observed_action import ObservedAction
from sandboxes.egress.record import EgressRecord

UNOBSERVED = frozenset({"credential-read"})
"""What an interpreter reads by itself no observer sees (ADR 16): that its code names the file is all there is."""
UNREAD = frozenset({"unread-command"})
"""What was not read of a deed is as little a deed as text is."""
MULTIPLIES = frozenset({"fork-bomb"})
"""Text that as many processes as a sandbox may have confirm, or half as many."""
KEPT_HINTS = 64


class Hints:
    """One per sandbox."""

    def __init__(self) -> None:
        self._hints: OrderedDict[tuple[str, str, str], Finding] = OrderedDict()
        self._called: str | None = None
        """The latest tool call that called outside."""

    def weighed(self, event: DetectorEvent, found: Finding) -> Finding:
        if not _is_hint(event, found):
            return found
        if found.severity == "info" or found.rule in UNOBSERVED:
            return found
        if found.label is None or found.label == self._called or found.label != event.label:
            return found  # an alarm of an earlier call is none of this text
        self._hints[found.label, found.rule, found.subject] = found
        if len(self._hints) > KEPT_HINTS:
            self._hints.popitem(last=False)
        return found.model_copy(update={"severity": "info"})

    def confirmed(self, event: DetectorEvent) -> list[Finding]:
        """Hints of the tool call that has just called somebody outside, or met the limit on processes."""
        if isinstance(event, ObservedAction) and event.kind == "refused" and event.call in {"fork", "crowd"}:
            return self._multiplied(event)
        if not isinstance(event, EgressRecord) or not calls_outside(event) or event.label is None:
            return []
        self._called = event.label
        found = [hint for (label, _, _), hint in self._hints.items() if label == event.label]
        self._hints = OrderedDict((key, hint) for key, hint in self._hints.items() if key[0] != event.label)
        where = event.attempt.target
        return [
            hint.model_copy(update={"at": event.last_at, "seq": event.seq, "evidence": (*hint.evidence[:7], where)})
            for hint in found
        ]

    def _multiplied(self, refused: ObservedAction) -> list[Finding]:
        keys = [key for key in self._hints if key[0] == refused.label and key[1] in MULTIPLIES]
        return [self._hints.pop(key).model_copy(update={"at": refused.at}) for key in keys]


def _is_hint(event: DetectorEvent, found: Finding) -> bool:
    if isinstance(event, ObservedAction):
        return found.rule in UNREAD
    return isinstance(event, ExecEvent) and event.observed and event.writes is None


def calls_outside(record: EgressRecord) -> bool:
    if record.phase != "attempt" or record.decision.allowed:
        return False
    here = special_kind(record.attempt) in {"loopback", "unspecified"}
    return not here and not any(below(name, REGISTRIES) for name in names_of(record.attempt))
