"""A real web process, a real Chromium, and a script that speaks as an engine would."""

# ruff: noqa: E402 - models can be imported only after the setup
import asyncio
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import django
import pytest

django.setup()

from django.db import connection
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, sync_playwright

from tests.browser.story import Event, Story
from webapp.accounts.models import User
from webapp.experiments.sample import Sample, ensure_sample
from webapp.runs.models import Run, RunStatus
from webapp.runs.tokens import attempt_token

ROOT = Path(__file__).parents[2]
PASSWORD = "a password for the browser"
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
         "--disable-component-update", "--disable-sync"]  # fmt: skip


def pytest_configure(config: pytest.Config) -> None:
    """A connection that a test leaves open keeps the test database from being removed: that is a fault."""
    config.addinivalue_line("filterwarnings", "error:Error when trying to teardown test databases")


@pytest.fixture(autouse=True)
def _django_beside_playwright(monkeypatch: pytest.MonkeyPatch) -> None:
    """Playwright's loop runs in this thread; Django takes that for an asynchronous caller."""
    monkeypatch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "1")


@pytest.fixture
def sample(transactional_db: None) -> Sample:
    """The sample team; its owner has chosen a password."""
    made = ensure_sample()
    made.owner.set_password(PASSWORD)
    made.owner.must_change_password = False
    made.owner.save()
    return made


class WebZygote:
    """Forks web processes of this session's database, all at one address."""

    def __init__(self, log: Path) -> None:
        database = f"postgres://palestra@/{connection.settings_dict['NAME']}?host={connection.settings_dict['OPTIONS']['host']}"
        with open(log, "wb") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.browser.web_zygote"],
                env=os.environ | {"DATABASE_URL": database}, cwd=ROOT, start_new_session=True,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True,
            )  # fmt: skip
        self._log = log
        self.port = self._number()

    def fork(self, log: Path) -> int:
        """The id of a new web process."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{log}\n")
        self._process.stdin.flush()
        return self._number()

    def _number(self) -> int:
        assert self._process.stdout is not None
        return int(self._process.stdout.readline() or pytest.fail(f"no web process:\n{self._log.read_text()[-2000:]}"))

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(20)


class Web:
    """The web process; it can be stopped and started again at the same address."""

    def __init__(self, zygote: WebZygote, log: Path) -> None:
        self._zygote, self.log = zygote, log
        self.port = zygote.port
        self.url = f"http://127.0.0.1:{self.port}"
        self._process: int | None = None
        """Its descriptor, for it is the zygote's child."""

    def start(self) -> None:
        self._process = os.pidfd_open(self._zygote.fork(self.log))
        deadline = time.monotonic() + 60
        while not self.answers():
            if _ended(self._process, within_s=0) or time.monotonic() > deadline:
                pytest.fail(f"the web process did not start:\n{self.log.read_text()[-2000:]}")
            time.sleep(0.05)

    def answers(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def stop(self, how: signal.Signals = signal.SIGTERM) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        for last in (how, signal.SIGKILL):
            if not _ended(process, within_s=0):
                signal.pidfd_send_signal(process, last)
            if _ended(process, within_s=20):
                break
        os.close(process)


def _ended(process: int, *, within_s: float) -> bool:
    return bool(select.select([process], [], [], within_s)[0])


@pytest.fixture(scope="session")
def web_zygote(
    django_db_setup: None, valkey_server: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[WebZygote]:
    zygote = WebZygote(tmp_path_factory.mktemp("web") / "zygote.log")
    yield zygote
    zygote.close()


@pytest.fixture
def web(sample: Sample, web_zygote: WebZygote, tmp_path: Path) -> Iterator[Web]:
    server = Web(web_zygote, tmp_path / "web.log")
    server.start()
    yield server
    server.stop()


@dataclass(frozen=True)
class Chromium:
    """One for all tests.  Its loop runs in this thread, where Django's database would take it for its caller's."""

    browser: Browser
    loop: asyncio.AbstractEventLoop

    @contextmanager
    def used(self) -> Iterator[Browser]:
        """Only meanwhile does this thread have the loop: what is async elsewhere has another one."""
        asyncio._set_running_loop(self.loop)
        try:
            yield self.browser
        finally:
            asyncio._set_running_loop(None)


@pytest.fixture(scope="session")
def one_chromium() -> Iterator[Chromium]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=FLAGS)
        chromium = Chromium(browser, asyncio.get_running_loop())
        asyncio._set_running_loop(None)
        yield chromium
        asyncio._set_running_loop(chromium.loop)
        browser.close()


@pytest.fixture
def chromium(sample: Sample, one_chromium: Chromium) -> Iterator[Browser]:
    """Its loop rests before the database is emptied."""
    with one_chromium.used() as browser:
        yield browser
        connection.close()  # Django's second one: it keeps one apart for callers beside a running loop


@pytest.fixture
def complaints() -> list[str]:
    """What the browser complained about: errors of scripts, and what the content security policy stopped."""
    return []


@pytest.fixture
def tab(chromium: Browser, complaints: list[str]) -> Iterator[Callable[..., Page]]:
    """Opens tabs, each with cookies of its own."""
    contexts: list[BrowserContext] = []

    def heard(message: ConsoleMessage) -> None:
        if (
            message.type == "error"
            and "WebSocket connection" not in message.text
            and "ERR_CONNECTION_REFUSED" not in message.text
        ):
            complaints.append(message.text)

    def open_tab(**options: Any) -> Page:
        contexts.append(chromium.new_context(viewport={"width": 1440, "height": 900}, **options))
        page = contexts[-1].new_page()
        page.on("console", heard)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        return page

    yield open_tab
    for context in contexts:
        context.close()


def sign_in(page: Page, web: Web, user: User) -> None:
    page.goto(f"{web.url}/sign-in")
    page.get_by_label("E-mail").fill(user.email)
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Sign in").click()
    page.wait_for_url(f"{web.url}/")


class Engine:
    """Attempt 1 of a run, told over HTTP."""

    def __init__(self, web: Web, run: Run, story: Story) -> None:
        assert run.move_to(RunStatus.LAUNCHING, by="worker", attempt=1, submission_id=f"run-{run.id}-1")
        self.story, self.desired = story, "run"
        self.url = f"{web.url}/ingest/v1/runs/{run.id}/batches"
        self.token = attempt_token(run.id, 1)

    def emit(self, events: list[Event], step: int = 0, phase: str = "collect") -> None:
        heartbeat = {
            "step": step,
            "total_steps": self.story.steps,
            "phase": phase,
            "phase_since": time.time(),
            "eta_s": 61.0,
            "usage": self.story.usage(step),
        }
        body = {"attempt": 1, "first_seq": events[0]["seq"], "heartbeat": heartbeat, "events": events}
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"}
        request = urllib.request.Request(self.url, json.dumps(body).encode(), headers)
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                self.desired = json.load(answer)["desired"]
        except urllib.error.HTTPError as error:
            pytest.fail(f"the ingest refused: {error.code} {error.read().decode()[:500]}")
