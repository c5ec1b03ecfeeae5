"""A dataset from the browser: uploaded, mapped by its columns, repaired by the lines that were at fault, published."""

# ruff: noqa: E402 - models can be imported only after the setup
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import django
import pytest

django.setup()

from playwright.sync_api import Page, expect

from tests.browser.conftest import Web, sign_in
from tests.engine.datasets.sources import json_lines
from tests.webapp.datasets import ROWS
from webapp import queue
from webapp.catalog.models import DatasetVersion
from webapp.experiments.sample import Sample
from workers.dataset_store import store_dataset

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.django_db(transaction=True)]


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> Callable[[], DatasetVersion]:
    """Do what a worker would do for the newest version, until it waits or is done."""
    monkeypatch.setattr(queue, "send", lambda *_: None)

    def carry_out() -> DatasetVersion:
        version = DatasetVersion.objects.latest("id")
        while version.is_unfinished:
            store_dataset(str(version.id), version.progress_mark)
            version.refresh_from_db()
        return version

    return carry_out


def upload(page: Page, web: Web, file: Path) -> None:
    page.goto(f"{web.url}/datasets/new")
    page.locator("#upload-name").fill("sums")
    page.locator("#upload-files").set_input_files([file])
    page.get_by_role("button", name="Upload").click()
    page.wait_for_url(re.compile(r"/datasets/versions/\d+/"), timeout=60_000)


def test_a_file_with_faults_is_repaired_by_their_lines_and_published(
    web: Web, sample: Sample, tab: Callable[..., Page], tmp_path: Path, work: Callable[[], Any], complaints: list[str]
) -> None:
    page, file = tab(), tmp_path / "questions.jsonl"
    sign_in(page, web, sample.owner)
    lines = json_lines(ROWS).splitlines()
    file.write_bytes(b"\n".join([*lines[:10], b'{"prompt": 7}', *lines[11:20], b"no json", *lines[21:]]))
    upload(page, web, file)
    work()
    expect(page.get_by_role("heading", name="Which column is what?")).to_be_visible(timeout=30_000)
    expect(page.locator("#column-prompt")).to_have_value("prompt")
    expect(page.locator("#column-answer")).to_have_value("answer")
    page.get_by_role("button", name="Check all rows and publish").click()
    work()
    expect(page.get_by_text("2 faults; nothing was published")).to_be_visible(timeout=30_000)
    faults = page.get_by_role("group", name="Faults").locator("tbody tr")
    expect(faults).to_have_count(2)
    expect(faults.nth(0)).to_contain_text("11")
    expect(faults.nth(1)).to_contain_text("21")
    file.write_bytes(b"\n".join(lines))
    upload(page, web, file)
    work()
    page.get_by_role("button", name="Check all rows and publish").click(timeout=30_000)
    assert work().state == "ready"
    expect(page.get_by_role("heading", level=1)).to_have_text("sums@1", timeout=30_000)
    page.get_by_role("link", name="Rows").click()
    page.get_by_label("Text").fill("29 plus")
    page.keyboard.press("Enter")
    expect(page.get_by_role("group", name="Rows").locator("tbody tr")).to_have_count(1)
    assert not complaints


def test_what_the_server_refuses_stands_on_the_form(
    web: Web, sample: Sample, tab: Callable[..., Page], tmp_path: Path
) -> None:
    page = tab()
    sign_in(page, web, sample.owner)
    (tmp_path / "q.json").write_bytes(b"[]")
    page.goto(f"{web.url}/datasets/new")
    page.locator("#upload-name").fill("sums")
    page.locator("#upload-files").set_input_files([tmp_path / "q.json"])
    page.get_by_role("button", name="Upload").click()
    expect(page.locator("#upload-problem")).to_contain_text("write each of its objects on one line")
