"""The pages of serving keys in a real browser: a key is made, shown once, used and revoked."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.utils import timezone
from playwright.sync_api import Page, expect

from tests.browser.conftest import Web, sign_in
from tests.browser.test_accessibility import faults_of
from tests.webapp.models import ready_version
from webapp.catalog.models import ModelVersion
from webapp.experiments.sample import Sample
from webapp.serving.models import ServingKey, ServingUsage

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.django_db(transaction=True)]


@pytest.fixture
def version(sample: Sample, settings: Any, tmp_path: Path) -> ModelVersion:
    settings.PALESTRA_MODELS = tmp_path
    return ready_version(sample.team, "qwen3-4b")


def picture(page: Page, name: str) -> None:
    if folder := os.environ.get("PALESTRA_PICTURES"):
        page.screenshot(path=Path(folder) / f"{name}.png", full_page=True)


def test_a_key_is_made_shown_once_and_revoked(
    tab: Callable[..., Page], web: Web, sample: Sample, version: ModelVersion, complaints: list[str]
) -> None:
    page = tab(reduced_motion="reduce")
    sign_in(page, web, sample.owner)
    page.goto(f"{web.url}/serving/")
    faults = faults_of(page, "serving without keys")
    page.set_viewport_size({"width": 1440, "height": 900})
    page.get_by_role("button", name="Create a key").click()
    picture(page, "serving-new-1440")
    faults += faults_of(page, "the dialog of a new key")
    page.set_viewport_size({"width": 1440, "height": 900})
    page.get_by_label("Name").fill("nightly evaluation")
    page.get_by_label("Model").select_option(label=str(version))
    page.get_by_label("Tokens a day").fill("100000")
    page.get_by_role("button", name="Create the key").click()
    expect(page.get_by_text("it is not shown again")).to_be_visible()
    picture(page, "serving-made-1440")
    faults += faults_of(page, "a key that was just made")
    key = ServingKey.objects.get()
    ServingUsage.objects.create(
        key=key, day=timezone.now().date(), outcome="answered", calls=42, prompt_tokens=9001, sampled_tokens=1234
    )
    ServingUsage.objects.create(key=key, day=timezone.now().date(), outcome="rate", calls=3)
    page.set_viewport_size({"width": 1440, "height": 900})
    page.goto(f"{web.url}/serving/")
    expect(page.get_by_role("row", name="nightly evaluation")).to_contain_text("9001")
    page.get_by_role("link", name="nightly evaluation").click()
    expect(page.get_by_role("table")).to_contain_text("rate 3")
    picture(page, "serving-key-1440")
    faults += faults_of(page, "a key")
    page.emulate_media(color_scheme="dark")
    page.goto(f"{web.url}/serving/")
    page.set_viewport_size({"width": 390, "height": 844})
    picture(page, "serving-390")
    faults += faults_of(page, "serving")
    page.set_viewport_size({"width": 1440, "height": 900})
    page.get_by_role("button", name="Revoke").click()
    page.get_by_role("button", name="Revoke the key").click()
    expect(page.get_by_text("opens nothing any more")).to_be_visible()
    assert page.get_by_role("button", name="Revoke").count() == 0
    assert faults == []
    assert complaints == []
