"""What the curves of a run page let a reader do, and that no axis lies."""

import re
import time
from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import Engine, Web, sign_in
from tests.browser.story import Story
from webapp.experiments.sample import Sample
from webapp.runs.services import launch_experiment

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.django_db(transaction=True)]
PATIENCE_MS = 60_000
DRAWN = "(id) => Boolean(document.querySelector(`[data-chart='${id}'] .plot`)?._fullLayout?.xaxis)"
AXES = """(id) => {
  const { xaxis, yaxis } = document.querySelector(`[data-chart="${id}"] .plot`)._fullLayout;
  const range = yaxis.type === "log" ? yaxis.range.map((power) => 10 ** power) : [...yaxis.range];
  return { type: yaxis.type, x: [...xaxis.range], y: range };
}"""
TICKS = """(id) => [...document.querySelectorAll(`[data-chart="${id}"] .ytick text`)].map((tick) => tick.textContent)"""
CUT = """() => [...document.querySelectorAll("#charts .card:not([hidden])")].flatMap((card) => {
  const box = card.getBoundingClientRect();
  return [...card.querySelectorAll(".xtick text, .ytick text, .y2tick text")].filter((tick) => {
    const { left, right } = tick.getBoundingClientRect();
    return left === right || left < box.left || right > box.right;
  }).map((tick) => `${card.dataset.chart}: ${tick.textContent}`);
})"""


@pytest.fixture
def engine(web: Web, sample: Sample) -> Engine:
    run = launch_experiment(sample.experiment, acting_user=sample.owner)
    engine = Engine(web, run, Story(steps=40, groups=1, group_size=2, begin_at=time.time()))
    engine.run_url = f"{web.url}/runs/{run.id}/"  # type: ignore[attr-defined]
    return engine


@pytest.fixture
def page(web: Web, sample: Sample, tab: Callable[..., Page]) -> Page:
    opened = tab()
    sign_in(opened, web, sample.owner)
    return opened


def metric(engine: Engine, step: int, **values: float) -> dict[str, Any]:
    return engine.story.event("metric", step=step, values={key.replace("__", "/"): v for key, v in values.items()})


def drawn(page: Page, *charts: str) -> None:
    for chart in charts:
        page.wait_for_function(DRAWN, arg=chart, timeout=PATIENCE_MS)


def test_a_cold_start_is_shown_first_counts_its_steps_and_gives_way(
    engine: Any, page: Page, complaints: list[str]
) -> None:
    begun = engine.story.event("started", from_step=0, total_steps=40)
    phase = engine.story.event("phase", step=0, phase="cold-start")
    points = [metric(engine, step, sft__loss=2.0) for step in range(10, 301, 10)]
    engine.emit([begun, phase, *points], phase="cold-start")
    page.goto(engine.run_url)
    expect(page.locator("#now")).to_contain_text(re.compile("Now: supervised cold start, 300 of [0-9]+, about"))
    expect(page.locator("#charts > :first-child")).to_have_attribute("data-chart", "cold-start")
    drawn(page, "cold-start")
    term = page.locator("#phase-term")
    expect(term).to_have_text("Supervised cold start")
    term.focus()
    expect(page.locator("#glossary-tip")).to_contain_text("imitates recorded solutions")
    page.keyboard.press("Escape")
    expect(page.locator("#glossary-tip")).to_be_hidden()

    engine.emit([metric(engine, 310, sft__loss=1.9)], phase="cold-start")
    expect(page.locator("#step")).to_have_text("310", timeout=PATIENCE_MS)
    phase = engine.story.event("phase", step=0, phase="evaluate")
    values = {"eval__success_greedy": 0.25, "train__staleness_max": 0.0}
    engine.emit([phase, metric(engine, 0, **values)], phase="evaluate")
    expect(page.locator("#charts > :first-child")).to_have_attribute("data-chart", "reward", timeout=PATIENCE_MS)
    expect(page.locator("#now")).to_have_text("Now: evaluation on held-out tasks, before step 1. Next: 40 steps of RL.")
    drawn(page, "heldout", "staleness")
    one = page.evaluate(AXES, "heldout")
    assert one["x"] == [0, 1], "a point alone stands between its neighbours, and there is no step before 0"
    assert 0 >= one["y"][0] > -0.05
    assert 1 <= one["y"][1] < 1.05
    assert page.evaluate(AXES, "staleness")["y"] == [0, 1], "nothing but 0 does not reach from -1 to 1"
    assert complaints == []


@pytest.fixture
def long_run(engine: Any, page: Page) -> Page:
    engine.emit(engine.story.beginning())
    for step in range(1, 22):
        rate = {"eval__level_1_greedy": 1.0, "eval__level_2_greedy": 0.0 if step < 6 else 1.0}
        engine.emit([*engine.story.step(step), metric(engine, step, **rate)], step)
    page.goto(engine.run_url)
    drawn(page, "reward", "levels", "entropy", "ratio", "loss", "time")
    return page


def test_every_chart_is_drawn_and_no_label_is_cut_and_a_logarithm_holds_rates_and_zeros(long_run: Page) -> None:
    page = long_run
    for name in ("No values yet", "Drawing…", "Loading…"):
        assert page.locator(".chart:not([hidden]) .no-data:visible", has_text=name).count() == 0
    assert page.evaluate(CUT) == []
    page.get_by_role("button", name="Log axis").click()
    page.wait_for_function(f"() => ({AXES})('levels').type === 'log'", timeout=PATIENCE_MS)
    assert page.evaluate(AXES, "levels")["y"][1] < 1.1
    levels = page.evaluate(TICKS, "levels")
    assert levels.count("0%") == 1
    assert max(float(tick.rstrip("%")) for tick in levels) == 100
    curves = page.evaluate("""() => document.querySelector('[data-chart="levels"] .plot').data
      .filter((trace) => trace.mode !== "markers").map((trace) => Math.min(...trace.y.filter((y) => y !== null)))""")
    assert min(curves) > 0, "what is 0 is a mark, no line falls to it"
    page.wait_for_function(f"() => ({AXES})('entropy').type === 'log'", timeout=PATIENCE_MS)
    entropy = [float(tick) for tick in page.evaluate(TICKS, "entropy")]
    low, high = page.evaluate(AXES, "entropy")["y"]
    assert len(entropy) > 1
    assert all(low <= tick <= high for tick in entropy), f"each is the whole name of its value: {entropy}"


def test_a_zoom_is_of_all_charts_the_pointer_names_its_step_and_a_click_leads_to_it(
    long_run: Page, complaints: list[str]
) -> None:
    page = long_run
    area = page.locator('[data-chart="reward"] .nsewdrag')
    before = page.evaluate(AXES, "reward")
    box = area.bounding_box()
    assert box
    middle = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + 0.55 * box["width"], middle)
    cursor = page.locator('[data-chart="reward"] .cursor')
    expect(cursor).to_have_text("step 12")
    expect(page.locator('[data-chart="levels"] .cursor')).to_have_text("step 12")
    page.mouse.down()
    page.mouse.move(box["x"] + 0.9 * box["width"], middle, steps=8)
    page.mouse.up()
    page.wait_for_function(f"() => ({AXES})('entropy').x[0] > 11", timeout=PATIENCE_MS)
    for chart in ("reward", "levels", "time"):
        page.wait_for_function(f"() => ({AXES})('{chart}').x[0] > 11", timeout=PATIENCE_MS)
    expect(cursor).to_be_hidden()
    assert page.evaluate(AXES, "reward")["y"] != before["y"], "the height fits what is in sight"
    page.get_by_role("button", name="Reset zoom").click()
    page.wait_for_function(f"() => ({AXES})('entropy').x[0] < 2", timeout=PATIENCE_MS)
    page.wait_for_function(f"() => ({AXES})('reward').x[0] < 2", timeout=PATIENCE_MS)
    assert page.evaluate(AXES, "reward") == before
    expect(page.get_by_role("button", name="Reset zoom")).to_be_hidden()

    area.click(position={"x": 0.55 * box["width"], "y": box["height"] / 2})
    page.wait_for_url("**/?tab=trajectories&step=12&purpose=train", timeout=PATIENCE_MS)
    expect(page.locator("#trajectories tbody tr[data-step]")).to_have_count(2, timeout=PATIENCE_MS)
    expect(page.locator('#trajectories tr[data-step="12"]')).to_have_count(2)
    assert complaints == []


def test_a_run_that_ended_early_shows_what_came_and_no_empty_cards(
    engine: Any, page: Page, complaints: list[str]
) -> None:
    begun = engine.story.event("started", from_step=0, total_steps=40)
    phase = engine.story.event("phase", step=0, phase="cold-start")
    engine.emit([begun, phase, metric(engine, 10, sft__loss=2.0), metric(engine, 20, sft__loss=1.9)])
    page.goto(engine.run_url)
    drawn(page, "cold-start")
    expect(page.locator('[data-chart="heldout"]')).to_contain_text("No values yet")
    engine.emit([engine.story.event("finished", outcome="failed", reason="the disk is full")])
    expect(page.locator("#state")).to_have_text("Failed", timeout=PATIENCE_MS)
    for _ in ("as it ended", "opened again"):
        expect(page.locator('[data-chart="heldout"]')).to_be_hidden(timeout=PATIENCE_MS)
        expect(page.locator("#charts .chart:visible")).to_have_count(1)
        expect(page.locator("#no-curves")).to_be_hidden()
        page.reload()
        drawn(page, "cold-start")

    # On a phone the tab that is open is in sight, wherever in the row it stands.
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto(f"{engine.run_url}?tab=history")
    page.wait_for_selector("#run[data-loaded]")
    expect(page.locator('[data-tab="history"]')).to_be_in_viewport(ratio=0.9)
    assert complaints == []
