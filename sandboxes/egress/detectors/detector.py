"""What every detector is: rules that say what it finds, and ``feed``, which yields as much as there is to find.

A new one is a module of its own, and its class one entry in ``registry``.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import ClassVar

from sandboxes.egress.detectors.call_texts import CallTexts
from sandboxes.egress.detectors.finding import DetectorEvent, Finding, RuleInfo
from sandboxes.egress.detectors.judged_paths import PROTECTED
from sandboxes.egress.detectors.process_tree import ProcessTree


def _nobody(host: str) -> bool:
    return False


@dataclass(frozen=True, slots=True)
class Context:
    """What the detectors of one sandbox may ask about it."""

    tree: ProcessTree = field(default_factory=ProcessTree)
    """Fed before the detectors are."""
    calls: CallTexts = field(default_factory=CallTexts)
    """Fed before the detectors are, too."""
    allowed: Callable[[str], bool] = _nobody
    """Whether a host is one of the policy's."""
    uploads: tuple[str, ...] = ()
    """Names to which much may be sent."""
    protected: tuple[str, ...] = PROTECTED
    """Patterns of paths that judge the policy."""


class Detector(ABC):
    """One per sandbox.  ``feed`` gets the sandbox's events in order of time, keeps bounded state and never waits."""

    rules: ClassVar[tuple[RuleInfo, ...]] = ()
    """Those that this detector brings; it may also find by rules of another one."""

    def __init__(self, context: Context) -> None:
        self._tree, self._calls = context.tree, context.calls

    @abstractmethod
    def feed(self, event: DetectorEvent) -> Iterator[Finding]:
        """Return what is new since this event, finding by finding.  What was found is known once all are taken."""
