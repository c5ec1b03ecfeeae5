"""All detectors of one sandbox.  ``feed`` an event, get what is new about it."""

from collections import OrderedDict

from sandboxes.egress.decision import may_resolve
from sandboxes.egress.detectors.call_texts import CallTexts
from sandboxes.egress.detectors.destinations import KEPT
from sandboxes.egress.detectors.detector import Context
from sandboxes.egress.detectors.exec_event import ExecEvent
from sandboxes.egress.detectors.finding import EVIDENCE_LINES, DetectorEvent, Finding, Severity
from sandboxes.egress.detectors.hints import Hints
from sandboxes.egress.detectors.judged_paths import PROTECTED
from sandboxes.egress.detectors.observed_action import ObservedAction
from sandboxes.egress.detectors.process_tree import ProcessTree
from sandboxes.egress.detectors.registry import DETECTORS, RULES
from sandboxes.egress.detectors.written_code import WrittenCode
from sandboxes.egress.policy import EgressPolicy

QUIET_S = 300.0
"""A finding of the same rule, subject and severity within this time is the same story."""
MOST_FINDINGS = 32
"""The most findings of one event: text of the policy's own must not be worth thousands of alerts."""
Story = tuple[str, str, Severity]
_GRAVEST_FIRST: tuple[Severity, ...] = ("critical", "warning", "info")


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
        self.policy = policy
        """What the sandbox may reach; another one holds from the next event on."""
        self._without = without
        self._reported: OrderedDict[Story, float] = OrderedDict()
        self._tree = ProcessTree()
        self._written = WrittenCode()
        self._hints = Hints()

        def allowed(host: str) -> bool:
            return may_resolve(self.policy, host)

        self._calls = CallTexts()
        context = Context(self._tree, self._calls, allowed, uploads, protected)
        self._detectors = tuple(detector(context) for detector in DETECTORS)

    def feed(self, event: DetectorEvent) -> list[Finding]:
        """Return what is new, of all detectors: every finding of an event, at most ``MOST_FINDINGS``."""
        if isinstance(event, ObservedAction):
            self._tree.add(event)
        found = self._hints.confirmed(event)
        for looked_at in (event, *self._written.run(event)):
            if isinstance(looked_at, ExecEvent):
                self._calls.remember(looked_at)
            for detector in self._detectors:
                found += [self._hints.weighed(looked_at, finding) for finding in detector.feed(looked_at)]
        new: dict[Story, Finding] = {}
        for finding in found:
            if finding.rule not in self._without and self._is_new(finding):
                new.setdefault(story_of(finding), finding)
        reported = _gravest(list(new.values()))
        for finding in reported:
            self._remember(finding)
        return reported

    def _is_new(self, finding: Finding) -> bool:
        reported_at = self._reported.get(story_of(finding))
        return reported_at is None or finding.at - reported_at >= QUIET_S

    def _remember(self, finding: Finding) -> None:
        self._reported[story_of(finding)] = finding.at
        self._reported.move_to_end(story_of(finding))
        if len(self._reported) > KEPT:
            self._reported.popitem(last=False)


def story_of(finding: Finding) -> Story:
    return finding.rule, finding.subject, finding.severity


def _gravest(findings: list[Finding]) -> list[Finding]:
    """All of them, or the ``MOST_FINDINGS`` gravest, the last of which says how many are left out."""
    if len(findings) <= MOST_FINDINGS:
        return findings
    kept = sorted(findings, key=lambda finding: _GRAVEST_FIRST.index(finding.severity))[:MOST_FINDINGS]
    left_out = f"and {len(findings) - MOST_FINDINGS} more findings in this event"
    return [*kept[:-1], kept[-1].model_copy(update={"evidence": (*kept[-1].evidence[: EVIDENCE_LINES - 1], left_out)})]
