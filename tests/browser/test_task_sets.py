"""A set of tasks from the browser: uploaded, refused by its faults, checked as one looks on, and published."""

# ruff: noqa: E402 - models can be imported only after the setup
import re
from collections.abc import Callable
from pathlib import Path

import django
import pytest

django.setup()

from playwright.sync_api import Page, expect

from tests.browser.conftest import Web, sign_in
from tests.engine.environments.terminal.tasks import write_task
from tests.webapp.task_sets import tar_of
from webapp import queue
from webapp.catalog.models import TaskSetVersion, TaskTrial
from webapp.experiments.sample import Sample
from workers.task_store import store_tasks

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.django_db(transaction=True)]


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> Callable[[], TaskSetVersion]:
    """Do what a worker would do for the newest version, until it is stored or refused."""
    monkeypatch.setattr(queue, "send", lambda *_: None)

    def carry_out() -> TaskSetVersion:
        version = TaskSetVersion.objects.latest("id")
        while version.state in ("importing", "reading"):
            store_tasks(str(version.id), version.progress_mark)
            version.refresh_from_db()
        return version

    return carry_out


def upload(page: Page, web: Web, file: Path) -> None:
    page.goto(f"{web.url}/task-sets/new")
    page.locator("#upload-name").fill("shell")
    page.locator("#upload-files").set_input_files([file])
    page.get_by_role("button", name="Upload").click()
    page.wait_for_url(re.compile(r"/task-sets/versions/\d+/"), timeout=60_000)


def test_tasks_are_mended_by_their_faults_checked_as_one_looks_on_and_published(
    web: Web, sample: Sample, tab: Callable[..., Page], tmp_path: Path, work: Callable[[], TaskSetVersion],
    complaints: list[str],
) -> None:  # fmt: skip
    page, file = tab(), tmp_path / "tasks.tar"
    sign_in(page, web, sample.owner)
    write_task(tmp_path / "tasks", "copy")
    (tmp_path / "tasks/copy/tests/test.sh").rename(tmp_path / "test.sh")
    file.write_bytes(tar_of(tmp_path / "tasks"))
    upload(page, web, file)
    work()
    faults = page.get_by_role("group", name="Faults").locator("tbody tr")
    expect(faults).to_have_count(1, timeout=30_000)
    expect(faults.nth(0)).to_contain_text("copy/tests/test.sh")
    (tmp_path / "test.sh").rename(tmp_path / "tasks/copy/tests/test.sh")
    file.write_bytes(tar_of(tmp_path / "tasks"))
    upload(page, web, file)
    version = work()
    page.get_by_label("Tries of each").fill("1", timeout=30_000)
    page.get_by_role("button", name="Check", exact=True).click()
    expect(page.get_by_text("0 of 2 trials")).to_be_visible(timeout=30_000)
    task = version.tasks.get()
    TaskTrial.objects.create(task=task, kind="nop", repetition=0, reward=0, seconds=1)
    expect(page.get_by_text("1 of 2 trials")).to_be_visible(timeout=30_000)
    TaskTrial.objects.create(task=task, kind="oracle", repetition=0, reward=1, seconds=1)
    TaskSetVersion.objects.filter(id=version.id).update(state="stored")
    page.get_by_role("button", name="Publish").click(timeout=30_000)
    expect(page.get_by_role("heading", level=1)).to_have_text("shell@1", timeout=30_000)
    expect(page.get_by_text('environment.catalog = "shell@1"')).to_be_visible()
    assert not complaints


def test_a_policy_is_judged_as_it_is_typed(
    web: Web, sample: Sample, tab: Callable[..., Page], complaints: list[str]
) -> None:
    page = tab()
    sign_in(page, web, sample.owner)
    page.goto(f"{web.url}/egress/")
    expect(page.locator("#result")).to_contain_text("It would pass, by the rule pypi")
    page.locator("#to").fill("example.org")
    expect(page.locator("#result")).to_contain_text("no rule allows it", timeout=15_000)
    page.locator("#policy").fill('[[rules]]\nname = "a"\naction = "allow"\nhosts = ["*"]\n')
    expect(page.locator("#result")).to_contain_text("problem", timeout=15_000)
    expect(page.locator("#result")).to_contain_text("rules.0")
    assert not complaints
