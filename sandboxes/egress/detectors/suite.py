"""All detectors of one box.  ``feed`` an event, get what is new about it."""

from collections import OrderedDict

from sandboxes.egress.detectors.beaconing import Beacons
from sandboxes.egress.detectors.credentials import Credentials
from sandboxes.egress.detectors.destinations import KEPT
from sandboxes.egress.detectors.exfiltration import Drops, Volume
from sandboxes.egress.detectors.finding import Detector, Event, Finding, RuleInfo
from sandboxes.egress.detectors.hidden_code import HiddenCode
from sandboxes.egress.detectors.hints import Hints
from sandboxes.egress.detectors.installs import Installs
from sandboxes.egress.detectors.interception import Interception
from sandboxes.egress.detectors.interpreter_hooks import InterpreterHooks
from sandboxes.egress.detectors.judged_paths import PROTECTED
from sandboxes.egress.detectors.judgement import Judgement
from sandboxes.egress.detectors.mining import Mining
from sandboxes.egress.detectors.names import Names
from sandboxes.egress.detectors.observed_action import ObservedAction
from sandboxes.egress.detectors.persistence import Persistence
from sandboxes.egress.detectors.process_tree import ProcessTree
from sandboxes.egress.detectors.processes import ForkBombs, Privileges
from sandboxes.egress.detectors.reverse_shells import ReverseShells
from sandboxes.egress.detectors.scans import Metadata, Scanners, Scans
from sandboxes.egress.detectors.sent_files import Sent
from sandboxes.egress.detectors.tunnels import Tunnels
from sandboxes.egress.detectors.unparsed import Unparsed
from sandboxes.egress.detectors.written_code import WrittenCode
from sandboxes.egress.policy import EgressPolicy
from sandboxes.egress.verdict import may_resolve

QUIET_S = 300.0
"""A finding of the same rule, subject and severity within this time is the same story."""

_KINDS = (Mining, Tunnels, Scans, Scanners, Metadata, Names, Volume, Drops, Beacons, Credentials, ForkBombs, Privileges,
          Installs, Interception, InterpreterHooks, Judgement, Persistence, HiddenCode, Unparsed)  # fmt: skip

RULES: tuple[RuleInfo, ...] = tuple(rule for kind in _KINDS for rule in kind.rules)


class Suite:
    """One per box; not for several threads at once.

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
        self._said: OrderedDict[tuple[str, str, str], float] = OrderedDict()
        self._tree = ProcessTree()
        self._written = WrittenCode()
        self._hints = Hints()

        def allowed(host: str) -> bool:
            return may_resolve(policy, host)

        self._detectors: tuple[Detector, ...] = (
            Mining(), Tunnels(), ReverseShells(self._tree), Scans(), Scanners(), Metadata(), Names(), Volume(uploads),
            Drops(self._tree, allowed), Sent(), Beacons(), Credentials(self._tree), ForkBombs(self._tree), Privileges(),
            Installs(self._tree, allowed), Interception(), InterpreterHooks(self._tree),
            Judgement(protected, self._tree),
            Persistence(self._tree), HiddenCode(self._tree), Unparsed(),
        )  # fmt: skip

    def feed(self, event: Event) -> list[Finding]:
        if isinstance(event, ObservedAction):
            self._tree.add(event)
        found = self._hints.confirmed(event)
        for looked_at in (event, *self._written.run(event)):
            told = [detector.feed(looked_at) for detector in self._detectors]
            found += [self._hints.weighed(looked_at, one) for one in told if one is not None]
        return [one for one in found if one.rule not in self._without and self._is_new(one)]

    def _is_new(self, one: Finding) -> bool:
        key = (one.rule, one.subject, one.severity)
        told = self._said.get(key)
        if told is not None and one.at - told < QUIET_S:
            return False
        self._said[key] = one.at
        self._said.move_to_end(key)
        if len(self._said) > KEPT:
            self._said.popitem(last=False)
        return True
