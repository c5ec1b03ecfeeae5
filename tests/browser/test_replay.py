"""The replay of a trajectory: turn by turn in order of time, by keys and buttons, through its tree of calls."""

import time
from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import Engine, Web, sign_in
from tests.browser.story import Story
from tests.browser.test_accessibility import faults_of
from tests.webapp.test_pages_outline import tree
from webapp.experiments.sample import Sample
from webapp.runs.services import launch_experiment

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.django_db(transaction=True)]


def test_the_replay_walks_through_the_turns_in_order_of_time_and_dims_the_others(
    web: Web, sample: Sample, tab: Callable[..., Page], complaints: list[str]
) -> None:
    run = launch_experiment(sample.experiment, acting_user=sample.owner)
    story = Story(steps=4, groups=1, group_size=2, begin_at=time.time())
    Engine(web, run, story).emit([*story.beginning(), story.stored(tree(story))])
    page = tab()
    sign_in(page, web, sample.owner)
    page.goto(f"{web.url}/runs/{run.id}/trajectories/train-0-0/#turn-2")
    shown, current = page.locator(".turn.is-shown"), page.locator("#outline [aria-current]")
    expect(page.locator("#replay")).to_be_visible()
    walked = []
    for press in ("n", "n", "n", "p"):
        page.keyboard.press(press)
        expect(shown).to_have_count(1)
        walked.append((shown.get_attribute("id"), current.inner_text()))
    assert walked == [(f"turn-{n}", f"Turn {n}") for n in (2, 3, 4, 3)]
    expect(page.locator("#turn-1")).to_have_css("opacity", "0.35")
    expect(page.locator("#turn-3")).to_have_css("opacity", "1")
    page.locator("#outline").get_by_role("link", name="Turn 5", exact=True).click()
    expect(shown).to_have_id("turn-5")
    page.locator("#replay-next").click()
    expect(shown).to_have_id("turn-5")
    page.keyboard.press("Escape")
    expect(page.locator("#turn-1")).to_have_css("opacity", "1")
    assert complaints == []


def test_axe_finds_no_violation_beside_a_tree_of_calls(web: Web, sample: Sample, tab: Callable[..., Page]) -> None:
    run = launch_experiment(sample.experiment, acting_user=sample.owner)
    story = Story(steps=4, groups=1, group_size=2, begin_at=time.time())
    Engine(web, run, story).emit([*story.beginning(), story.stored(tree(story))])
    page = tab(reduced_motion="reduce")
    sign_in(page, web, sample.owner)
    page.goto(f"{web.url}/runs/{run.id}/trajectories/")
    faults = faults_of(page, "list")
    page.goto(f"{web.url}/runs/{run.id}/trajectories/train-0-0/")
    page.get_by_text("What changed against segment 1").click()
    faults += faults_of(page, "tree")
    assert faults == []
