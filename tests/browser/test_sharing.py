"""What tests in a browser share, and what each has of its own."""

import asyncio
import signal
from collections.abc import Callable

import pytest
from playwright.sync_api import Page

from tests.browser.conftest import Chromium, Web, sign_in
from webapp.experiments.sample import Sample

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.django_db(transaction=True)]


@pytest.mark.parametrize("turn", ["first", "second"])
def test_nobody_is_signed_in_when_a_test_begins(web: Web, sample: Sample, tab: Callable[..., Page], turn: str) -> None:
    page = tab()
    page.goto(web.url)
    page.wait_for_url("**/sign-in**")
    sign_in(page, web, sample.owner)


def test_the_loop_of_the_browser_rests_where_no_test_has_it(one_chromium: Chromium) -> None:
    assert one_chromium.browser.is_connected()
    with pytest.raises(RuntimeError, match="no running event loop"):
        asyncio.get_running_loop()
    asyncio.run(asyncio.sleep(0))
    with one_chromium.used():
        assert asyncio.get_running_loop() is one_chromium.loop


def test_an_address_whose_web_process_was_killed_refuses_until_another_one_listens(web: Web) -> None:
    assert web.answers()
    web.stop(signal.SIGKILL)
    assert not web.answers()
    web.start()
    assert web.answers()
