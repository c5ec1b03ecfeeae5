"""The page of an environment's version in a real browser: it is tried, its tries come by themselves, it is deleted."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from engine.spec.environment import Household
from tests.browser.conftest import Web, sign_in
from tests.browser.test_accessibility import faults_of
from webapp.catalog.models import Environment
from webapp.catalog.services import publish_environment
from webapp.experiments.sample import Sample
from webapp.runs.models import Run, RunStatus

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.django_db(transaction=True)]
ALWAYS = {"success": 1.0, "low": 0.72, "high": 1.0, "episodes": 10}
ONCE = {"success": 0.1, "low": 0.02, "high": 0.4, "episodes": 10}


def picture(page: Page, name: str) -> None:
    if folder := os.environ.get("PALESTRA_PICTURES"):
        page.screenshot(path=Path(folder) / f"{name}.png", full_page=True)


def test_a_version_is_tried_on_its_page_and_deleted_when_nothing_needs_it(
    tab: Callable[..., Page], web: Web, sample: Sample, complaints: list[str]
) -> None:
    version = publish_environment(sample.team, "house", Household(levels=[1]), acting_user=sample.owner)
    page = tab(reduced_motion="reduce")
    sign_in(page, web, sample.owner)
    page.set_viewport_size({"width": 1440, "height": 900})
    page.goto(f"{web.url}/environments/{version.id}/")
    expect(page.get_by_text("Nobody has tried it")).to_be_visible()
    page.get_by_label("the script below").check()
    page.get_by_label("Script", exact=True).fill('{"answer": "done"}')
    page.get_by_role("button", name="Try it").click()
    expect(page.get_by_text("house v1 is being tried")).to_be_visible()
    run = Run.objects.get(name="Try house v1")
    picture(page, "environment-tried-1440")
    faults = faults_of(page, "a version that is being tried")
    Run.objects.filter(id=run.id).update(
        state=RunStatus.SUCCEEDED, summary={"evaluation": {"oracle": ALWAYS, "nop": ONCE, "script": ONCE}}
    )
    expect(page.get_by_text("Doing nothing succeeds now and then.")).to_be_visible(timeout=10_000)
    faults += faults_of(page, "a version that was tried")
    page.set_viewport_size({"width": 390, "height": 844})
    picture(page, "environment-tried-390")
    page.set_viewport_size({"width": 1440, "height": 900})
    picture(page, "environment-over-1440")
    page.reload()  # what the dialog says of runs is as old as the page
    page.get_by_role("button", name="Delete").first.click()
    faults += faults_of(page, "the dialog of deleting a version")
    page.get_by_label("Type house v1 to delete it").fill("house v1")
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    expect(page.get_by_text("house v1 is deleted")).to_be_visible()
    assert Environment.objects.get(id=version.id).deleted_at is not None
    assert (faults, complaints) == ([], [])
