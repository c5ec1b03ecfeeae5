"""A model uploaded from a browser, over a web process that is killed on the way."""

import re
import signal
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
from playwright.sync_api import Page, Route, expect

from tests.browser.conftest import Web, sign_in
from webapp.catalog.models import ModelVersion, UploadPart
from webapp.catalog.storage import part_file
from webapp.catalog.uploads import PART_BYTES
from webapp.experiments.sample import Sample

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.django_db(transaction=True)]


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    """Weights of three parts, and a config."""
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(Random(0).randbytes(2 * PART_BYTES + 5))
    return [tmp_path / "config.json", tmp_path / "model.safetensors"]


def choose(page: Page, web: Web, files: list[Path]) -> None:
    page.goto(f"{web.url}/models/new")
    page.locator("#upload-name").fill("mine")
    page.locator("#upload-files").set_input_files(files)
    page.get_by_role("button", name="Upload").click()


def test_an_upload_that_is_cut_by_a_kill_goes_on_where_it_stopped(
    web: Web, sample: Sample, tab: Callable[..., Page], files: list[Path]
) -> None:
    page, put = tab(), list[str]()
    sign_in(page, web, sample.owner)
    page.route(re.compile("files/1/parts/2"), lambda route: route.abort())
    choose(page, web, files)
    expect(page.locator("#upload-progress span")).to_contain_text("32.0 of 32.0 MiB", timeout=60_000)
    page.get_by_role("button", name="Stop").click()
    expect(page.locator("#upload-problem")).to_contain_text("choose the same files")
    web.stop(signal.SIGKILL)
    web.start()
    assert UploadPart.objects.count() == 3
    page.unroute_all()

    def counted(route: Route) -> None:
        put.append(route.request.url)
        route.continue_()

    page.route(re.compile("/parts/"), counted)
    choose(page, web, files)
    page.wait_for_url(re.compile(r"/models/versions/\d+/"), timeout=60_000)
    assert [re.search(r"files/(\d)/parts/(\d)", url).groups() for url in put] == [("1", "2")]  # type: ignore[union-attr]
    version = ModelVersion.objects.get()
    expect(page.get_by_role("heading", level=1)).to_have_text("mine")
    weights = b"".join(
        part_file(version.upload.id, 1, part.number, part.sha256).read_bytes()
        for part in version.upload.parts.filter(file=1).order_by("number")
    )
    assert weights == files[1].read_bytes()


def test_what_the_server_refuses_stands_on_the_form(
    web: Web, sample: Sample, tab: Callable[..., Page], tmp_path: Path
) -> None:
    page = tab()
    sign_in(page, web, sample.owner)
    (tmp_path / "pytorch_model.bin").write_bytes(b"x")
    choose(page, web, [tmp_path / "pytorch_model.bin"])
    expect(page.locator("#upload-problem")).to_contain_text("pytorch_model.bin: pickled weights run whatever code")
    assert not UploadPart.objects.exists()
