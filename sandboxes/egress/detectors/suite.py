"""All detectors of one sandbox.  ``feed`` an event, get what is new about it."""

from collections import OrderedDict

from sandboxes.egress.decision import may_resolve
from sandboxes.egress.detectors.destinations import KEPT
from sandboxes.egress.detectors.detector import Context
from sandboxes.egress.detectors.finding import DetectorEvent, Finding
from sandboxes.egress.detectors.hints import Hints
from sandboxes.egress.detectors.judged_paths import PROTECTED
from sandboxes.egress.detectors.observed_action import ObservedAction
from sandboxes.egress.detectors.process_tree import ProcessTree
from sandboxes.egress.detectors.registry import DETECTORS, RULES
from sandboxes.egress.detectors.written_code import WrittenCode
from sandboxes.egress.policy import EgressPolicy

QUIET_S = 300.0
"""A finding of the same rule, subject and severity within this time is the same story."""


class Suite:
    """One per sandbox; not for several threads at once.

    ``without`` are ids of rules that an environment does not want.  ``uploads`` are names to which much
    may be sent, ``protected`` patterns of paths that judge the agent.
    """

    def __init__(
        self,
        policy: EgressPolicy,
        *,
        without: frozenset[str] = frozenset(),
        uploads: tuple[str, ...] = (),
        protected: tuple[str, ...] = PROTECTED,
    ) -> None:
        if unknown := without - {rule.id for rule in RULES}:
            raise ValueError(f"without = {sorted(unknown)}: no such rule; there are: {', '.join(r.id for r in RULES)}")
        self._without = without
        self._reported: OrderedDict[tuple[str, str, str], float] = OrderedDict()
        self._tree = ProcessTree()
        self._written = WrittenCode()
        self._hints = Hints()

        def allowed(host: str) -> bool:
            return may_resolve(policy, host)

        context = Context(self._tree, allowed, uploads, protected)
        self._detectors = tuple(detector(context) for detector in DETECTORS)

    def feed(self, event: DetectorEvent) -> list[Finding]:
        if isinstance(event, ObservedAction):
            self._tree.add(event)
        found = self._hints.confirmed(event)
        for looked_at in (event, *self._written.run(event)):
            evidence = [detector.feed(looked_at) for detector in self._detectors]
            found += [self._hints.weighed(looked_at, finding) for finding in evidence if finding is not None]
        return [finding for finding in found if finding.rule not in self._without and self._is_new(finding)]

    def _is_new(self, finding: Finding) -> bool:
        key = (finding.rule, finding.subject, finding.severity)
        evidence = self._reported.get(key)
        if evidence is not None and finding.at - evidence < QUIET_S:
            return False
        self._reported[key] = finding.at
        self._reported.move_to_end(key)
        if len(self._reported) > KEPT:
            self._reported.popitem(last=False)
        return True
