"""Writes the table of rules into docs/egress.md: ``./dev exec python -m sandboxes.egress.detectors``.

The rules say what they are (``RuleInfo``) and the document repeats it; a test fails where the two differ.
"""

import re
from pathlib import Path

from sandboxes.egress.detectors.registry import RULES

DOCUMENT = Path(__file__).resolve().parents[3] / "docs" / "egress.md"
BEGIN = "<!-- rules: written by `python -m sandboxes.egress.detectors` -->"
END = "<!-- end of rules -->"


def table() -> str:
    head = "| rule | severity | category | technique | catches | misses | tune |\n|---|---|---|---|---|---|---|"
    rows = [
        f"| `{rule.id}` | {rule.severity} | {rule.category} | {rule.attack} "
        f"| {rule.catches} | {rule.misses} | {rule.tune} |"
        for rule in RULES
    ]
    return "\n".join((head, *rows))


def document(text: str) -> str:
    """The document with the present rules in it."""
    found = re.compile(f"{re.escape(BEGIN)}\n.*?\n{re.escape(END)}", re.S)
    if len(found.findall(text)) != 1:
        raise ValueError(f"{DOCUMENT}: the rules stand between '{BEGIN}' and '{END}', once")
    return found.sub(lambda _: f"{BEGIN}\n{table()}\n{END}", text)


if __name__ == "__main__":
    DOCUMENT.write_text(document(DOCUMENT.read_text(encoding="utf-8")), encoding="utf-8")
