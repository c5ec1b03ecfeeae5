"""All detectors, one entry each, in the order in which an event is shown to them."""

from sandboxes.egress.detectors.beaconing import Beacons
from sandboxes.egress.detectors.credentials import Credentials
from sandboxes.egress.detectors.detector import Detector
from sandboxes.egress.detectors.exfiltration import Drops, Volume
from sandboxes.egress.detectors.finding import RuleInfo
from sandboxes.egress.detectors.hidden_code import HiddenCode
from sandboxes.egress.detectors.installs import Installs
from sandboxes.egress.detectors.interception import Interception
from sandboxes.egress.detectors.interpreter_hooks import InterpreterHooks
from sandboxes.egress.detectors.judgement import Judgement
from sandboxes.egress.detectors.leftovers import LEFT_FOR_TESTS
from sandboxes.egress.detectors.mining import Mining
from sandboxes.egress.detectors.names import Names
from sandboxes.egress.detectors.persistence import Persistence
from sandboxes.egress.detectors.processes import ForkBombs, Privileges
from sandboxes.egress.detectors.reverse_shells import ReverseShells
from sandboxes.egress.detectors.scans import Metadata, Scanners, Scans
from sandboxes.egress.detectors.sent_files import Sent
from sandboxes.egress.detectors.tunnels import Tunnels
from sandboxes.egress.detectors.unparsed import Unparsed

DETECTORS: tuple[type[Detector], ...] = (
    Mining,
    Tunnels,
    ReverseShells,
    Scans,
    Scanners,
    Metadata,
    Names,
    Volume,
    Drops,
    Sent,
    Beacons,
    Credentials,
    ForkBombs,
    Privileges,
    Installs,
    Interception,
    InterpreterHooks,
    Judgement,
    Persistence,
    HiddenCode,
    Unparsed,
)

RULES: tuple[RuleInfo, ...] = (*(rule for detector in DETECTORS for rule in detector.rules), LEFT_FOR_TESTS)
"""What each rule catches, misses, and how it is tuned is said there and nowhere else; docs/egress.md is made of it."""
