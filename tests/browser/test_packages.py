"""A package from the browser: refused by its fault, played as one looks on, published, made an environment."""

# ruff: noqa: E402 - models can be imported only after the setup
import re
from collections.abc import Callable
from pathlib import Path

import django
import pytest

django.setup()

from playwright.sync_api import Page, expect

from tests.browser.conftest import Web, sign_in
from tests.engine.environments.process.packages import wheel_of
from tests.webapp.packages import GOOD
from webapp import queue
from webapp.catalog.models import PackageVersion
from webapp.experiments.sample import Sample
from workers.package_store import store_package

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.django_db(transaction=True)]


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> Callable[[], PackageVersion]:
    """Do what a worker would do for the newest version, until it is stored or refused."""
    monkeypatch.setattr(queue, "send", lambda *_: None)

    def carry_out() -> PackageVersion:
        version = PackageVersion.objects.latest("id")
        while version.state in ("importing", "reading"):
            store_package(str(version.id), version.progress_mark)
            version.refresh_from_db()
        return version

    return carry_out


def upload(page: Page, web: Web, file: Path) -> None:
    page.goto(f"{web.url}/packages/new")
    page.locator("#upload-name").fill("game")
    page.locator("#upload-files").set_input_files([file])
    page.get_by_role("button", name="Upload").click()
    page.wait_for_url(re.compile(r"/packages/versions/\d+/"), timeout=60_000)


def test_a_package_is_mended_played_as_one_looks_on_published_and_made_an_environment(
    web: Web, sample: Sample, tab: Callable[..., Page], tmp_path: Path, work: Callable[[], PackageVersion],
    complaints: list[str],
) -> None:  # fmt: skip
    page, file = tab(), tmp_path / "guessing-1.0-py3-none-any.whl"
    sign_in(page, web, sample.owner)
    file.write_bytes(b"no archive")
    upload(page, web, file)
    work()
    faults = page.get_by_role("group", name="Faults").locator("tbody tr")
    expect(faults).to_have_count(1, timeout=30_000)
    expect(faults.nth(0)).to_contain_text("no wheel", ignore_case=True)
    file.write_bytes(wheel_of())
    upload(page, web, file)
    version = work()
    page.get_by_label("Options").fill('{"every": 0}', timeout=30_000)
    page.get_by_role("button", name="Check", exact=True).click()
    expect(page.get_by_text("it is installed and played")).to_be_visible(timeout=30_000)
    report = GOOD.model_dump(mode="json")
    PackageVersion.objects.filter(id=version.id).update(state="stored", report=report)
    page.get_by_role("button", name="Publish").click(timeout=30_000)
    expect(page.get_by_role("heading", level=1)).to_have_text("game@1", timeout=30_000)
    page.get_by_role("link", name="Environment with it").click()
    expect(page.locator("textarea[name=environment]")).to_have_value(re.compile(r'catalog = "game@1"'))
    page.get_by_role("button", name="Publish").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("game v1", timeout=30_000)
    assert not complaints
