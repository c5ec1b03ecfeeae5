"""Incidents are found, known misses are still missed, and ordinary work raises no alarm."""

from pathlib import Path

import pytest

from benchmarks.egress_corpus import scenarios
from sandboxes.egress.decision import REASONS
from sandboxes.egress.detectors.__main__ import document
from sandboxes.egress.detectors.leftovers import LEFT_FOR_TESTS
from sandboxes.egress.detectors.registry import RULES
from sandboxes.egress.detectors.unparsed import UNPARSED

ALL = scenarios()
INCIDENTS = [item for item in ALL if item.expected and item.known_miss is None]
MISSED = [item for item in ALL if item.known_miss is not None]
BENIGN = [item for item in ALL if not item.expected]


@pytest.mark.parametrize("scenario", INCIDENTS, ids=lambda one: one.name)
def test_an_incident_is_found_by_the_rules_that_are_there_for_it(scenario):
    assert scenario.expected <= {found.rule for found in scenario.findings()}


@pytest.mark.parametrize("scenario", BENIGN, ids=lambda one: one.name)
def test_ordinary_work_raises_no_alarm(scenario):
    assert [found for found in scenario.findings() if found.severity != "info"] == []


@pytest.mark.parametrize("scenario", MISSED, ids=lambda one: one.name)
def test_what_the_documentation_calls_missed_is_missed(scenario):
    assert not scenario.expected & {found.rule for found in scenario.findings()}


@pytest.mark.parametrize("scenario", ALL, ids=lambda one: one.name)
def test_text_alone_is_never_critical(scenario):
    assert [found.rule for found in scenario.findings() if found.severity == "critical" and found.seq is None] == []


def test_the_corpus_is_large_and_every_rule_has_an_incident():
    """But for those about what is too long to be written into a corpus (test_detectors), and about what an environment
    finds itself (tests/engine/environments/terminal)."""
    assert len(INCIDENTS) >= 60
    assert len(BENIGN) >= 120
    assert {rule.id for rule in RULES} - {UNPARSED.id, LEFT_FOR_TESTS.id} == {
        rule for item in INCIDENTS for rule in item.expected
    }


def test_the_documentation_has_the_rules_as_they_say_of_themselves():
    """Else: ``./dev exec python -m sandboxes.egress.detectors``."""
    text = (Path(__file__).parents[3] / "docs" / "egress.md").read_text()
    assert document(text) == text
    assert all(rule.catches and rule.misses and rule.tune for rule in RULES)


def test_the_documentation_names_each_known_miss():
    text = (Path(__file__).parents[3] / "docs" / "egress.md").read_text()
    for scenario in MISSED:
        assert scenario.known_miss in " ".join(text.split()), scenario.name
    incidents, benign = len(INCIDENTS) + len(MISSED), len(BENIGN)
    assert f"{incidents} incidents and {benign} scenarios of ordinary work" in text


def test_the_documentation_explains_each_reason():
    text = (Path(__file__).parents[3] / "docs" / "egress.md").read_text()
    assert [reason for reason in REASONS if f"`{reason}`" not in text] == []
