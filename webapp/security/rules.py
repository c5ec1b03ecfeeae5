"""The detectors' rules for readers: what docs/egress.md says about each of them."""

import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from sandboxes.egress.detectors.suite import RULES

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "egress.md"


@dataclass(frozen=True)
class RuleText:
    id: str
    title: str
    severity: str
    """The highest that the rule gives."""
    category: str
    attack: str
    """MITRE ATT&CK technique."""
    catches: str
    tune: str


@lru_cache(maxsize=1)
def rule_texts() -> dict[str, RuleText]:
    """By id, in the document's order; a rule that the document does not describe is not among them."""
    titles = {rule.id: rule.title for rule in RULES}
    rows = re.findall(r"^\| `([\w-]+)` \|(.*)\|$", DOCUMENT.read_text(encoding="utf-8"), re.MULTILINE)
    cells = {name: [cell.strip().replace("`", "") for cell in rest.split("|")] for name, rest in rows}
    return {name: RuleText(name, titles[name], *row) for name, row in cells.items() if name in titles}
