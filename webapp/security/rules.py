"""The detectors' rules for readers, as they say of themselves."""

from dataclasses import replace
from functools import lru_cache

from sandboxes.egress.detectors.finding import RuleInfo
from sandboxes.egress.detectors.registry import RULES


@lru_cache(maxsize=1)
def rule_texts() -> dict[str, RuleInfo]:
    """Return the texts by id, in the order of the rules, without the document's marks."""
    return {
        rule.id: replace(rule, catches=_plain(rule.catches), misses=_plain(rule.misses), tune=_plain(rule.tune))
        for rule in RULES
    }


def _plain(marked: str) -> str:
    return marked.replace("`", "")
