"""The tab that tells who works beside whom, and what everyone waits for."""

import re
import time
from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import ROOT, Engine, Web, sign_in
from tests.browser.story import Overlapping, Story
from webapp.experiments.sample import Sample
from webapp.runs.services import launch_experiment

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.django_db(transaction=True)]
PATIENCE_MS = 30_000
PICTURES = ROOT / "test-output" / "timeline"
BARS = """() => (document.querySelector('[data-chart="lanes"] .plot').data ?? [])
  .map((trace) => [trace.name, trace.x.length])"""
LANES = ["Rollouts", "Generation", "Environment", "Reward", "Training", "Weights"]


def opened(page: Page, web: Web, sample: Sample, story: Story, steps: int) -> Engine:
    """The Timeline of a run that has done so many steps."""
    run = launch_experiment(sample.experiment, acting_user=sample.owner)
    engine = Engine(web, run, story)
    engine.emit(story.beginning())
    for step in range(1, steps + 1):
        engine.emit(story.step(step), step)
    sign_in(page, web, sample.owner)
    page.goto(f"{web.url}/runs/{run.id}/?tab=timeline")
    page.wait_for_selector("#run[data-loaded]")
    return engine


def bars(page: Page) -> dict[str, int]:
    return dict(page.evaluate(BARS))


def test_lanes_follow_the_run_and_can_go_back_to_steps_that_the_page_has_not_kept(
    web: Web, sample: Sample, tab: Callable[..., Page], complaints: list[str]
) -> None:
    page = tab()
    story = Overlapping(steps=60, groups=1, group_size=2, begin_at=time.time() - 90)
    engine = opened(page, web, sample, story, steps=6)
    lanes = page.locator('[data-chart="lanes"]')
    expect(lanes.locator("[data-steps]")).to_have_text("steps 5 to 6", timeout=PATIENCE_MS)
    turns = {"Generation": 48, "Environment": 48}
    assert bars(page) == {"Rollouts": 6, **turns, "Reward": 24, "Training": 2, "Weights": 2}
    assert lanes.locator(".ytick text").all_text_contents() == LANES

    engine.emit(story.step(7), 7)
    expect(lanes.locator("[data-steps]")).to_have_text("steps 6 to 7", timeout=PATIENCE_MS)
    lanes.get_by_role("button", name="Earlier").focus()
    page.keyboard.press("Enter")
    expect(lanes.locator("[data-steps]")).to_have_text("steps 4 to 5", timeout=PATIENCE_MS)
    page.keyboard.press("Enter")
    page.keyboard.press("Enter")
    expect(lanes.locator("[data-steps]")).to_have_text("step 1", timeout=PATIENCE_MS)
    expect(lanes.get_by_role("button", name="Earlier")).to_be_disabled()
    engine.emit(story.step(8), 8)
    expect(page.locator(".waits")).to_contain_text("When step 8 took its batch", timeout=PATIENCE_MS)
    expect(lanes.locator("[data-steps]")).to_have_text("step 1")  # who looks back is not torn away
    lanes.get_by_role("button", name="Newest").click()
    expect(lanes.locator("[data-steps]")).to_have_text("steps 7 to 8", timeout=PATIENCE_MS)

    # Steps in sight stay there when the page lets them go, and when those before them cannot be fetched.
    earlier = lanes.get_by_role("button", name="Earlier")
    earlier.click()
    expect(lanes.locator("[data-steps]")).to_have_text("steps 5 to 6", timeout=PATIENCE_MS)
    later = [story.event("lanes", step=step, spans=story.spans(story.now, step)) for step in range(9, 32)]
    engine.emit([*later, *story.step(32)], 32)
    expect(page.locator(".waits")).to_contain_text("When step 32 took its batch", timeout=PATIENCE_MS)
    expect(lanes.locator("[data-steps]")).to_have_text("steps 5 to 6")
    page.route("**/lanes?*", lambda route: route.fulfill(status=503))
    earlier.click()
    expect(lanes.locator("[data-steps]")).to_have_text("could not be loaded", timeout=PATIENCE_MS)
    assert bars(page)["Training"] == 2
    page.unroute_all()
    earlier.click()
    expect(lanes.locator("[data-steps]")).to_have_text("steps 3 to 4", timeout=PATIENCE_MS)
    assert [text for text in complaints if "503" not in text] == []


def test_the_words_the_ages_and_the_buffer_stand_beside_the_lanes(
    web: Web, sample: Sample, tab: Callable[..., Page]
) -> None:
    page = tab()
    story = Overlapping(steps=60, groups=1, group_size=2, begin_at=time.time() - 90)
    opened(page, web, sample, story, steps=12)
    words = page.locator(".waits")
    expect(words).to_contain_text("Training waited")
    expect(words).to_contain_text("Rollouts are the slower side")
    expect(words).to_contain_text("the run expected")
    ages = page.locator('[data-chart="ages"]')
    expect(ages.locator(".legend")).to_contain_text("2 versions old", timeout=PATIENCE_MS)
    for chart in ("waits", "buffer", "redundancy", "estimate"):
        expect(page.locator(f'[data-chart="{chart}"].has-data')).to_be_visible(timeout=PATIENCE_MS)
    term = words.locator("[data-term='lane-environment']")
    term.focus()
    expect(page.locator("#glossary-tip")).to_contain_text("Tools run")
    assert page.locator("#other-charts h2", has_text="staleness/").count() == 0


def test_servers_and_processes_are_shown_and_follow_the_run(
    web: Web, sample: Sample, tab: Callable[..., Page], complaints: list[str]
) -> None:
    page = tab()
    story = Overlapping(steps=60, groups=1, group_size=2, begin_at=time.time() - 90)
    engine = opened(page, web, sample, story, steps=5)
    servers = page.get_by_label("Table of servers").locator("tbody tr")
    expect(servers).to_have_count(2)
    expect(servers.nth(1)).to_contain_text("Down, will be restarted no answer to 3 looks")
    expect(servers.nth(1)).to_contain_text("older")
    roles = page.get_by_label("Table of roles").locator("tbody tr")
    expect(roles).to_have_text([re.compile(name) for name in ("Loop", "Learner", "Generator", "Rollout workers")])
    engine.emit(story.step(6), 6)
    engine.emit(story.step(7), 7)
    expect(servers.nth(1)).to_contain_text("Up", timeout=PATIENCE_MS)  # the page asks every ten seconds
    expect(servers.nth(1).locator("td").nth(7)).to_have_text("1")
    expect(page.locator('[data-chart="processors"].has-data')).to_be_visible(timeout=PATIENCE_MS)
    term = roles.nth(0).locator("button")
    term.focus()
    expect(page.locator("#glossary-tip")).to_contain_text("Decides what happens next")
    assert complaints == []


def test_a_run_that_takes_turns_says_why_it_has_no_lanes(web: Web, sample: Sample, tab: Callable[..., Page]) -> None:
    page = tab()
    opened(page, web, sample, Story(steps=60, groups=1, group_size=2, begin_at=time.time() - 90), steps=3)
    expect(page.locator(".waits")).to_contain_text("take turns in this run")
    expect(page.locator('[data-chart="lanes"]')).to_be_hidden()
    expect(page.locator('[data-chart="ages"]')).to_be_hidden()
    expect(page.locator(".usage").nth(0)).to_contain_text("Nothing was measured yet")
    expect(page.locator(".usage").nth(1)).to_contain_text("samples without servers")


@pytest.mark.parametrize("theme", ["light", pytest.param("dark", marks=pytest.mark.soak)])
def test_a_picture_of_lanes_at_every_width(web: Web, sample: Sample, tab: Callable[..., Page], theme: str) -> None:
    page = tab(color_scheme=theme)
    PICTURES.mkdir(parents=True, exist_ok=True)
    story = Overlapping(steps=60, groups=1, group_size=2, begin_at=time.time() - 90)
    opened(page, web, sample, story, steps=20)
    for width, height in {1440: 900, 390: 844}.items():
        page.set_viewport_size({"width": width, "height": height})
        page.wait_for_function(BARS.replace("() =>", "() => 0 <", 1) + ".length", timeout=PATIENCE_MS)
        page.wait_for_timeout(700)  # charts are drawn again after they were measured
        page.screenshot(path=PICTURES / f"lanes-{width}-{theme}.png", full_page=True)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), f"wider than {width} px"
