"""What a person does with the console, in a real browser against a real web process."""

import re
import signal
import time
from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.sessions.models import Session
from playwright.sync_api import Page, expect

from tests.browser.conftest import PASSWORD, ROOT, Engine, Web, sign_in
from tests.browser.story import Story
from tests.browser.test_security import HeldList
from webapp.experiments.sample import Sample
from webapp.runs.models import Run
from webapp.runs.services import launch_experiment

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.django_db(transaction=True)]
PATIENCE_MS = 30_000
PICTURES = ROOT / "test-output" / "pages"

STEPS_DRAWN = """() => {
  const traces = document.querySelector('[data-chart="reward"] .plot').data ?? [];
  return traces.length ? Array.from(traces.at(-1).x) : [];
}"""


WAIT_FOR_CHECKPOINTS = """() => {
  const panel = document.querySelector('[data-panel="checkpoints"]');
  window.answered = new Promise((done) => panel.addEventListener("htmx:afterOnLoad", () => done(true), { once: true }));
}"""


WHEN_THE_LIST_HAS_COME = """(action) => {
  const list = document.getElementById("trajectories");
  const act = {
    filter: () => {
      const purpose = list.querySelector('[name="purpose"]');
      purpose.value = "train";
      purpose.dispatchEvent(new Event("change", { bubbles: true }));
    },
    clear: () => list.querySelector("form a").click(),
  }[action];
  // Nobody is quicker: before anything else is done, once the list is there and its scripts are through.
  list.addEventListener("htmx:afterSwap", () => queueMicrotask(act), { once: true });
  window.stayed = true;
}"""


def wait_for_steps(page: Page, last: int) -> list[int]:
    """The steps of the reward curve once it has been drawn up to ``last``."""
    page.wait_for_function(f"() => ({STEPS_DRAWN})().at(-1) >= {last}", timeout=PATIENCE_MS)
    return page.evaluate(STEPS_DRAWN)


def test_sign_in_launch_watch_look_inside_and_cancel(
    web: Web, sample: Sample, tab: Callable[..., Page], complaints: list[str]
) -> None:
    page = tab()
    sign_in(page, web, sample.owner)
    page.get_by_role("link", name="Experiments").click()
    page.get_by_role("link", name=sample.experiment.name).click()
    page.get_by_role("button", name="Launch").click()
    page.wait_for_url("**/runs/*/")
    expect(page.locator("#state")).to_have_text("Queued")
    expect(page.locator("#link-state")).to_have_text("Live", timeout=PATIENCE_MS)

    run = Run.objects.get()
    engine = Engine(web, run, Story(steps=12, groups=2, group_size=4, begin_at=time.time()))
    engine.emit(engine.story.beginning())
    expect(page.locator("#state")).to_have_text("Running", timeout=PATIENCE_MS)
    for step in range(1, 5):
        engine.emit(engine.story.step(step), step)
        assert wait_for_steps(page, step) == list(range(1, step + 1))
    expect(page.locator('[data-figure="train/reward"] b')).not_to_have_text("–")
    marked = page.locator('[data-chart="reward"] .xtick text').all_text_contents()
    assert all(re.fullmatch(r"−?\d+", text) for text in marked), f"a step is whole: {marked}"

    page.locator('[data-tab="trajectories"]').click()
    newest = page.locator('#trajectories tr[data-step="4"]')
    expect(newest).to_have_count(8, timeout=PATIENCE_MS)
    engine.emit(engine.story.step(5), 5)
    expect(page.locator('#trajectories tr[data-step="5"]')).to_have_count(8, timeout=PATIENCE_MS)
    expect(page.locator("#rewards h2")).to_have_text("Rewards of step 5", timeout=PATIENCE_MS)
    count = int(page.locator("#bin-1 b").inner_text())
    page.locator("#bin-1").press("Enter")
    expect(page.locator("#bin-1")).to_have_attribute("aria-current", "true", timeout=PATIENCE_MS)
    expect(page.locator("#bin-1")).to_be_focused()
    expect(page.locator("#trajectories tbody tr[data-step]")).to_have_count(count)
    expect(page.locator('#trajectories tr[data-step="5"]')).to_have_count(count)
    page.locator("#bin-1").press("Enter")
    expect(page.locator("#bin-1")).not_to_have_attribute("aria-current", "true", timeout=PATIENCE_MS)
    page.locator("#rewards-newest").click()
    expect(page.locator('#trajectories tr[data-step="4"]')).to_have_count(8, timeout=PATIENCE_MS)
    page.get_by_label("Purpose").select_option("eval-greedy")
    expect(page.locator("#trajectories tbody tr td[data-cell='purpose']").first).to_have_text(
        "eval-greedy", timeout=PATIENCE_MS
    )

    page.locator('[data-tab="logs"]').click()
    expect(page.locator("#log")).to_contain_text("attempt 1 begins at step 0")

    page.goto(f"{web.url}/runs/{run.id}/trajectories/train-4-0/")
    tokens = page.locator(".tok[data-id]")
    tokens.nth(1).hover()
    expect(page.locator("#tip")).to_contain_text("Log-prob, sampled")
    page.keyboard.press("c")
    expect(page.locator("#turns")).to_have_attribute("data-colour", "logprob")
    page.keyboard.press("j")
    page.wait_for_url("**/train-4-1/?colour=logprob")
    page.keyboard.press("?")
    expect(page.locator("#keys-dialog")).to_contain_text("Next trajectory")
    page.keyboard.press("Escape")

    # A checkpoint that comes takes nothing away that somebody types about another.
    Run.objects.filter(id=run.id).update(spec=run.spec | {"model": {"kind": "pretrained", "path": "tiny"}})
    engine.emit([_checkpoint(engine, 4)], 5)
    page.goto(f"{web.url}/runs/{run.id}/?tab=checkpoints")
    expect(page.locator("#link-state")).to_have_text("Live", timeout=PATIENCE_MS)
    page.get_by_role("button", name="Make it a model").click()
    page.get_by_label("Name of the model").fill("mine")
    page.evaluate(WAIT_FOR_CHECKPOINTS)
    engine.emit([_checkpoint(engine, 5)], 5)
    page.evaluate("() => window.answered")
    expect(page.get_by_label("Name of the model")).to_have_value("mine")
    rows = page.get_by_label("Table of checkpoints").locator("tbody tr")
    assert rows.count() == 1
    page.get_by_role("button", name="Not now").click()
    expect(rows).to_have_count(2, timeout=PATIENCE_MS)

    page.goto(f"{web.url}/runs/{run.id}/")
    page.get_by_role("button", name="Cancel").click()
    page.get_by_role("button", name="Cancel the run").click()
    expect(page.get_by_text("Cancelling…")).to_be_visible(timeout=PATIENCE_MS)
    engine.emit(engine.story.step(6), 6)
    assert engine.desired == "cancel"
    engine.emit([engine.story.event("finished", outcome="cancelled", reason="told to")], 6)
    expect(page.locator("#state")).to_have_text("Cancelled", timeout=PATIENCE_MS)
    assert complaints == []


def test_filters_stand_in_the_address_a_form_is_sent_once_and_an_ended_session_is_reported(
    web: Web, sample: Sample, tab: Callable[..., Page], complaints: list[str]
) -> None:
    page = tab()
    sign_in(page, web, sample.owner)
    page.goto(f"{web.url}/experiments/{sample.experiment.id}/")
    posts: list[str] = []
    page.on("request", lambda request: posts.append(request.url) if request.method == "POST" else None)
    page.evaluate("""() => {
      const launch = document.getElementById("launch");
      launch.click();
      queueMicrotask(() => launch.click());
      setTimeout(() => launch.click(), 20);
    }""")
    page.wait_for_url("**/runs/*/")
    assert len(posts) == 1
    run = Run.objects.get()
    expect(page.locator("#phase")).to_contain_text("waits for a worker", timeout=PATIENCE_MS)
    engine = Engine(web, run, Story(steps=12, groups=2, group_size=4, begin_at=time.time()))
    engine.emit(engine.story.beginning())
    engine.emit(engine.story.step(1), 1)

    # In the tab of the live page, and on the list's own page.
    rows = page.locator("#trajectories tbody tr[data-step]")
    page.goto(f"{web.url}/runs/{run.id}/?tab=trajectories&purpose=eval-greedy")
    expect(rows).to_have_count(6, timeout=PATIENCE_MS)
    page.get_by_label("Purpose").select_option("train")
    expect(rows).to_have_count(8, timeout=PATIENCE_MS)
    page.wait_for_url("**/?tab=trajectories&purpose=train")
    page.locator('[data-tab="logs"]').click()
    page.locator('[data-tab="trajectories"]').click()
    page.reload()
    expect(rows).to_have_count(8, timeout=PATIENCE_MS)
    page.goto(f"{web.url}/runs/{run.id}/trajectories/")
    expect(rows).to_have_count(14)
    page.get_by_label("Purpose").select_option("train")
    expect(rows).to_have_count(8, timeout=PATIENCE_MS)
    rows.last.get_by_role("link").click()
    page.wait_for_url("**/trajectories/train-*/")
    page.go_back()
    expect(rows).to_have_count(8, timeout=PATIENCE_MS)
    expect(page.get_by_label("Purpose")).to_have_value("train")
    page.go_back()
    expect(rows).to_have_count(14, timeout=PATIENCE_MS)
    before = page.locator("html").get_attribute("data-theme")
    page.get_by_role("button", name="Dark theme").click()
    assert page.locator("html").get_attribute("data-theme") != before

    # The session ends in another tab, while the server restarts; the list of runs asks by itself.
    page.goto(f"{web.url}/runs/{run.id}/?tab=logs")
    expect(page.locator("#link-state")).to_have_text("Live", timeout=PATIENCE_MS)
    overview = page.context.new_page()
    overview.goto(web.url)
    table = overview.locator("#runs").inner_text()
    Session.objects.all().delete()
    web.stop(signal.SIGKILL)
    web.start()
    for reported in (page, overview):
        expect(reported.locator("#signed-out")).to_contain_text("You are signed out.", timeout=PATIENCE_MS)
    expect(page.locator("#link-state")).to_have_text("Signed out")
    assert overview.locator("#runs").inner_text().split("\n")[0] == table.split("\n")[0]
    page.get_by_role("link", name="Sign in again").click()
    page.get_by_label("E-mail").fill(sample.owner.email)
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Sign in").click()
    page.wait_for_url(f"**/runs/{run.id}/?tab=logs")
    expect(page.locator("#link-state")).to_have_text("Live", timeout=PATIENCE_MS)
    expect(page.locator("#signed-out")).to_be_hidden()
    overview.get_by_role("link", name="Sign in again").click()
    overview.wait_for_url(f"{web.url}/")
    assert [text for text in complaints if "401" not in text] == []


def test_a_filter_and_a_link_of_a_list_that_was_just_fetched_again_are_heard_at_once(
    web: Web, sample: Sample, tab: Callable[..., Page], complaints: list[str]
) -> None:
    run = launch_experiment(sample.experiment, acting_user=sample.owner)
    engine = Engine(web, run, Story(steps=12, groups=2, group_size=4, begin_at=time.time()))
    engine.emit(engine.story.beginning())
    engine.emit(engine.story.step(1), 1)
    page = tab()
    sign_in(page, web, sample.owner)
    page.goto(f"{web.url}/runs/{run.id}/trajectories/")
    rows = page.locator("#trajectories tbody tr[data-step]")
    for action, shown in (("filter", 8), ("clear", 14)):
        page.evaluate(WHEN_THE_LIST_HAS_COME, action)
        page.get_by_label("Purpose").select_option("eval-greedy")
        expect(rows).to_have_count(shown, timeout=PATIENCE_MS)
        assert page.evaluate("() => window.stayed"), "the link was followed to another page"
    assert complaints == []


def test_a_killed_web_process_leaves_no_gap_and_no_double_in_the_curve(
    web: Web, sample: Sample, tab: Callable[..., Page]
) -> None:
    run = launch_experiment(sample.experiment, acting_user=sample.owner)
    engine = Engine(web, run, Story(steps=12, groups=1, group_size=2, begin_at=time.time()))
    engine.emit(engine.story.beginning())
    page = tab()
    sign_in(page, web, sample.owner)
    page.goto(f"{web.url}/runs/{run.id}/")
    expect(page.locator("#link-state")).to_have_text("Live", timeout=PATIENCE_MS)
    for step in range(1, 4):
        engine.emit(engine.story.step(step), step)
    wait_for_steps(page, 3)
    web.stop(signal.SIGKILL)
    expect(page.locator("#link-state")).to_have_text("Reconnecting", timeout=PATIENCE_MS)
    web.start()
    for step in range(4, 8):
        engine.emit(engine.story.step(step), step)
    assert wait_for_steps(page, 7) == list(range(1, 8))
    expect(page.locator("#link-state")).to_have_text("Live", timeout=PATIENCE_MS)


def test_a_new_attempt_takes_back_what_the_old_one_said(web: Web, sample: Sample, tab: Callable[..., Page]) -> None:
    run = launch_experiment(sample.experiment, acting_user=sample.owner)
    engine = Engine(web, run, Story(steps=12, groups=1, group_size=2, begin_at=time.time()))
    engine.emit(engine.story.beginning())
    page = tab()
    sign_in(page, web, sample.owner)
    page.goto(f"{web.url}/runs/{run.id}/")
    for step in range(1, 6):
        engine.emit(engine.story.step(step), step)
    wait_for_steps(page, 5)
    engine.emit([engine.story.event("started", from_step=2, total_steps=12)], 2)
    page.wait_for_function(f"() => ({STEPS_DRAWN})().at(-1) === 2", timeout=PATIENCE_MS)
    badge = page.locator('[data-count="trajectories"]')
    expect(badge).to_have_text(str(6 + 2 * 2), timeout=PATIENCE_MS)
    engine.emit(engine.story.step(3), 3)
    assert wait_for_steps(page, 3) == [1, 2, 3]
    page.reload()
    assert wait_for_steps(page, 3) == [1, 2, 3]

    # What it evaluates again replaces what the old one reported.
    page.locator('[data-tab="trajectories"]').click()
    rows = page.locator("#trajectories tbody tr[data-step]")
    expect(rows).to_have_count(6 + 3 * 2, timeout=PATIENCE_MS)
    expect(rows.first).to_have_attribute("data-step", "3")
    engine.emit(engine.story.evaluation(0), 3)
    expect(rows.first).to_have_attribute("data-step", "0", timeout=PATIENCE_MS)
    expect(rows).to_have_count(6 + 3 * 2)
    expect(badge).to_have_text(str(6 + 3 * 2))


def test_the_editor_shows_an_error_next_to_its_field(
    web: Web, sample: Sample, tab: Callable[..., Page], complaints: list[str]
) -> None:
    page = tab()
    sign_in(page, web, sample.owner)
    page.goto(f"{web.url}/experiments/{sample.experiment.id}/")
    page.get_by_label("Group size").fill("1")
    page.get_by_role("button", name="TOML").click()
    expect(page.locator("#toml")).to_have_value(re.compile("^group_size = 1$", re.MULTILINE))
    page.get_by_role("button", name="Form").click()
    expect(page.get_by_label("Group size")).to_have_value("1")
    page.get_by_role("button", name="Launch").click()
    expect(page.locator("#f-schedule-group_size-about .error")).to_contain_text("use at least 2")
    expect(page.get_by_label("Group size")).to_have_value("1")
    assert not Run.objects.exists()
    assert [text for text in complaints if "422" not in text] == []


def test_a_zoomed_curve_is_fetched_finer_keeps_its_spike_and_hears_what_happens(
    web: Web, sample: Sample, tab: Callable[..., Page], complaints: list[str]
) -> None:
    run = launch_experiment(sample.experiment, acting_user=sample.owner)
    engine = Engine(web, run, Story(steps=60_000, begin_at=time.time()))
    engine.emit([engine.story.event("started", from_step=0, total_steps=60_000)])
    for begin in range(0, 50_000, 1000):
        engine.emit([_reward(engine, step, 1000.0 if step == 31_415 else 1.0) for step in range(begin, begin + 1000)])
    page = tab()
    sign_in(page, web, sample.owner)
    page.goto(f"{web.url}/runs/{run.id}/")
    whole = wait_for_steps(page, 49_999)
    assert 31_415 not in whole
    assert page.evaluate(HIGHEST_DRAWN) == 1000.0
    page.screenshot(path=PICTURES / "zoom-whole.png")

    _drag(page, 0.60, 0.65)
    page.wait_for_function(f"() => {{ const x = ({STEPS_DRAWN})(); return x[2] - x[1] === 10; }}", timeout=PATIENCE_MS)
    assert page.evaluate(HIGHEST_DRAWN) == 1000.0
    _drag(page, 0.40, 0.70)
    page.wait_for_function(f"() => ({STEPS_DRAWN})().includes(31415)", timeout=PATIENCE_MS)
    near = page.evaluate(STEPS_DRAWN)
    assert near == list(range(near[0], near[-1] + 1))
    assert page.evaluate(HIGHEST_DRAWN) == 1000.0
    page.screenshot(path=PICTURES / "zoom-near.png")

    engine.emit([_reward(engine, 50_000, 2.0)])
    assert wait_for_steps(page, 50_000) == [*near, 50_000]
    page.locator('[data-chart="reward"] .nsewdrag').dblclick()
    page.wait_for_function(f"() => ({STEPS_DRAWN})()[0] < 100", timeout=PATIENCE_MS)
    assert page.evaluate(STEPS_DRAWN) == [*whole, 50_000]
    assert complaints == []


HIGHEST_DRAWN = """() => {
  const { data } = document.querySelector('[data-chart="reward"] .plot');
  return Math.max(...data.flatMap((trace) => Array.from(trace.y)));
}"""


def _checkpoint(engine: Engine, step: int) -> dict[str, Any]:
    return engine.story.event("checkpoint", step=step, path=f"/x/step-{step}", size_bytes=1, seconds=0.1)


def _reward(engine: Engine, step: int, value: float) -> dict[str, Any]:
    return engine.story.event("metric", step=step, values={"train/reward": value})


def _drag(page: Page, begin: float, end: float) -> None:
    """Over a part of the reward curve's width, level, so that the height stays."""
    box = page.locator('[data-chart="reward"] .nsewdrag').bounding_box()
    height = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + begin * box["width"], height)
    page.mouse.down()
    page.mouse.move(box["x"] + end * box["width"], height, steps=5)
    page.mouse.up()


def test_a_second_filter_of_trajectories_is_kept_while_the_list_of_the_first_is_on_its_way(
    web: Web, sample: Sample, tab: Callable[..., Page]
) -> None:
    run = launch_experiment(sample.experiment, acting_user=sample.owner)
    engine = Engine(web, run, Story(steps=12, groups=2, group_size=4, begin_at=time.time()))
    engine.emit([*engine.story.beginning(), *engine.story.step(1)], 1)
    page = tab()
    sign_in(page, web, sample.owner)
    page.goto(f"{web.url}/runs/{run.id}/trajectories/")
    rows = page.locator("#trajectories tbody tr[data-step]")
    expect(rows).to_have_count(14, timeout=PATIENCE_MS)
    held = HeldList(page, f"/runs/{run.id}/trajectories/")
    page.get_by_label("Purpose").select_option("train")
    held.wait()
    page.get_by_label("Outcome").select_option("wrong")
    wrong = run.trajectories.filter(purpose="train", success=False).count()
    assert 0 < wrong < 8
    expect(rows).to_have_count(wrong, timeout=PATIENCE_MS)
    expect(page.get_by_label("Purpose")).to_have_value("train")
    expect(page.get_by_label("Outcome")).to_have_value("wrong")
    expect(page).to_have_url(re.compile("purpose=train.*outcome=wrong"), timeout=PATIENCE_MS)
