"""The two pictures that the README opens with, taken of real runs.

``PALESTRA_README_PICTURES=docs/pictures ./dev test soak tests/end_to_end/test_readme_pictures.py`` takes them anew: of
the sample run to its end, and of a drill.  Without it a small drill is enough to see that both can be taken.
"""

import os
import struct
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, sync_playwright

from tests.end_to_end.stack import ROOT, Stack
from tests.end_to_end.test_drill import alerts, drill, in_training

pytestmark = [pytest.mark.stack, pytest.mark.slow, pytest.mark.browser, pytest.mark.soak, pytest.mark.timeout(1800)]
"""Soaked: test_pictures.py and test_security.py open such pages, and test_drill.py runs the drill."""

PICTURES = ("run.png", "alert.png")
SIZE = {"width": 1440, "height": 900}
PASSWORD = "a password for two pictures"
CHOOSE_PASSWORD = f"""
from webapp.accounts.models import User
owner = User.objects.get(email="owner@palestra.local")
owner.set_password("{PASSWORD}")
owner.must_change_password = False
owner.save()
"""
FLAGS = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]


@pytest.fixture
def page(stack: Stack) -> Iterator[Page]:
    stack.dev("exec", "python", "manage.py", "shell", "-v0", "-c", CHOOSE_PASSWORD)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=FLAGS)
        page = browser.new_context(viewport=SIZE, color_scheme="light").new_page()  # type: ignore[arg-type]
        page.set_default_timeout(60_000)
        page.goto(f"{stack.url}/sign-in")
        page.get_by_label("E-mail").fill("owner@palestra.local")
        page.get_by_label("Password").fill(PASSWORD)
        page.get_by_role("button", name="Sign in").click()
        page.wait_for_url(f"{stack.url}/")
        yield page
        browser.close()


def test_the_readme_opens_with_pictures_of_real_runs(stack: Stack, page: Page, tmp_path: Path) -> None:
    asked = os.environ.get("PALESTRA_README_PICTURES")
    folder = ROOT / asked if asked else tmp_path
    folder.mkdir(parents=True, exist_ok=True)
    drill_id = stack.launch(drill("drill", steps=200))
    stack.until("an alert in training", lambda: bool(in_training(alerts(stack, drill_id))), timeout_s=300)
    take_alert(stack, page, drill_id, folder / "alert.png")
    stack.ask("POST", f"/runs/{drill_id}/cancel")
    stack.until_ended(drill_id)
    learned = stack.launch(sample()) if asked else drill_id
    stack.until_ended(learned, timeout_s=3600)
    take_run(stack, page, learned, folder / "run.png")
    assert [size_of(folder / name) for name in PICTURES] == [(SIZE["width"], SIZE["height"])] * 2


def sample() -> dict[str, Any]:
    document = tomllib.loads((ROOT / "engine" / "spec" / "samples" / "python_math.toml").read_text())
    return document | {"seed": 0}


def take_alert(stack: Stack, page: Page, run_id: str, file: Path) -> None:
    alert = in_training(alerts(stack, run_id))[0]
    page.goto(f"{stack.url}/alerts/{alert['id']}/")
    page.get_by_role("heading", name=alert["title"]).wait_for()
    page.get_by_text("relay()").first.wait_for()
    page.screenshot(path=file)


def take_run(stack: Stack, page: Page, run_id: str, file: Path) -> None:
    page.goto(f"{stack.url}/runs/{run_id}/")
    # A curve that is level all along has no height, and a browser calls it hidden: its card tells that it is drawn.
    page.locator(".chart:visible .plot .main-svg").first.wait_for()
    page.locator(".chart:visible .plot .scatterlayer .trace").first.wait_for(state="attached")
    page.wait_for_load_state("networkidle")
    page.screenshot(path=file)


def size_of(file: Path) -> tuple[int, int]:
    """The width and height of a PNG, in pixels."""
    head = file.read_bytes()[:24]
    assert head[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", head[16:])
    return width, height
