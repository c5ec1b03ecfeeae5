"""The spec editor and the pages of repaired trajectories, as a person uses them."""

import re
import time
from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import ROOT, Engine, Web, sign_in
from tests.browser.story import Event, Story
from webapp.experiments.sample import Sample
from webapp.runs.services import launch_experiment

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.django_db(transaction=True)]
PATIENCE_MS = 30_000
PICTURES = ROOT / "test-output" / "pages"


@pytest.fixture
def editor(web: Web, sample: Sample, tab: Callable[..., Page]) -> Page:
    """The sample's editor, its owner signed in."""
    PICTURES.mkdir(parents=True, exist_ok=True)
    page = tab()
    sign_in(page, web, sample.owner)
    page.goto(f"{web.url}/experiments/{sample.experiment.id}/")
    return page


def test_another_credit_shows_its_own_fields_and_keeps_what_was_typed(
    editor: Page, sample: Sample, complaints: list[str]
) -> None:
    editor.locator("#f-seed").fill("77")
    credit = editor.locator("#f-recipe-credit-kind")
    credit.select_option("gae")
    expect(editor.locator("#f-recipe-credit-lam")).to_have_value("1.0", timeout=PATIENCE_MS)
    expect(editor.locator("#f-seed")).to_have_value("77")
    editor.locator("#f-recipe-credit-lam").fill("0.9")
    editor.locator("#f-recipe-credit-whiten").uncheck()
    editor.locator("#algorithm").screenshot(path=PICTURES / "editor-algorithm.png")
    editor.get_by_role("button", name="Save").click()
    expect(editor.get_by_text("The experiment is saved.")).to_be_visible(timeout=PATIENCE_MS)
    sample.experiment.refresh_from_db()
    credit_text = sample.experiment.run_spec.recipe.credit.model_dump()
    assert (credit_text["kind"], credit_text["lam"], credit_text["whiten"]) == ("gae", 0.9, False)
    assert sample.experiment.run_spec.seed == 77
    assert complaints == []


def test_a_switch_shows_its_fields_at_once_and_a_row_can_be_added(
    editor: Page, sample: Sample, complaints: list[str]
) -> None:
    top_k = editor.locator("#f-recipe-experience-top_k")
    expect(top_k).to_be_hidden()
    editor.locator("label", has=editor.locator("#s-recipe-experience-on")).click()
    expect(top_k).to_be_visible()
    editor.get_by_role("button", name="Add to pool").click()
    editor.locator("#f-recipe-experience-pool-0-when_to_use").fill("a sum", timeout=PATIENCE_MS)
    editor.locator("#f-recipe-experience-pool-0-content").fill("use the tool")
    editor.locator("#rollouts").screenshot(path=PICTURES / "editor-rollouts.png")
    editor.get_by_role("button", name="Save").click()
    expect(editor.get_by_text("The experiment is saved.")).to_be_visible(timeout=PATIENCE_MS)
    sample.experiment.refresh_from_db()
    experience = sample.experiment.run_spec.recipe.experience
    assert experience is not None
    assert [item.content for item in experience.pool] == ["use the tool"]
    assert complaints == []


def test_a_problem_is_named_where_it_is_and_nothing_lies_over_anything(editor: Page, complaints: list[str]) -> None:
    editor.locator("#f-schedule-steps").fill("0")
    editor.locator("#f-recipe-reward-wrong").fill("much")
    editor.get_by_role("button", name="Save").click()
    summary = editor.get_by_role("alert")
    expect(summary).to_contain_text("Steps (schedule.steps): 0 is less than 1; give 1 or more.", timeout=PATIENCE_MS)
    expect(editor.locator("#f-recipe-reward-wrong")).to_be_focused(timeout=PATIENCE_MS)
    expect(editor.get_by_text("What this amounts to")).to_be_visible()
    for width in (1440, 390):
        editor.set_viewport_size({"width": width, "height": 900})
        notice = summary.bounding_box()
        assert notice is not None
        for beside in (".editor-bar", ".on-page", "#preset-now"):
            box = editor.locator(beside).bounding_box()
            assert box is not None
            assert box["y"] >= notice["y"] + notice["height"], f"the notice lies over {beside} at {width}"
        summary.scroll_into_view_if_needed()
        editor.screenshot(path=PICTURES / f"editor-problem-{width}.png", caret="initial")
    summary.get_by_role("link", name="Steps (schedule.steps)").click()
    steps = editor.locator("#f-schedule-steps")
    expect(steps).to_be_focused()
    expect(steps).to_be_in_viewport()
    expect(steps).to_have_attribute("aria-invalid", "true")
    assert [text for text in complaints if "422" not in text] == []


def test_a_preset_is_chosen_from_the_list(editor: Page, sample: Sample, complaints: list[str]) -> None:
    editor.get_by_text("Choose a preset").click()
    # Hiding the caret would leave style attributes behind, which htmx would then copy against our policy.
    editor.screenshot(path=PICTURES / "editor-presets.png", caret="initial")
    search = editor.get_by_role("searchbox", name="Search the presets")
    search.fill("gigpo self_imitation")
    choices = editor.locator(".preset-list > li:visible")
    expect(choices.first).to_contain_text("gigpo")
    expect(editor.locator("#presets-found")).to_have_text(re.compile(r"^\d of \d\d presets$"))
    expect(editor.get_by_role("button", name=re.compile("^sft"))).to_have_count(0)
    search.press("Enter")
    choices.filter(has_text="spear-gigpo").get_by_text("Changes credit.kind").first.click()
    expect(choices.filter(has_text="spear-gigpo").locator("dt").first).to_have_text("credit.kind")
    editor.screenshot(path=PICTURES / "editor-presets-searched.png", caret="initial")
    editor.get_by_role("button", name=re.compile("^spear-gigpo")).click()
    expect(editor.locator("#f-recipe-credit-kind")).to_have_value("gigpo", timeout=PATIENCE_MS)
    expect(editor.locator("#s-recipe-self_imitation-on")).to_be_checked()
    expect(editor.locator("#preset-now b")).to_have_text("spear-gigpo")
    editor.set_viewport_size({"width": 390, "height": 844})
    editor.screenshot(path=PICTURES / "editor-phone.png", full_page=True)
    assert complaints == []


def test_a_repaired_trajectory_is_found_opened_and_compared_with_what_stood_there(
    web: Web, sample: Sample, tab: Callable[..., Page], complaints: list[str]
) -> None:
    run = launch_experiment(sample.experiment, acting_user=sample.owner)
    story = Story(steps=4, groups=1, group_size=2, begin_at=time.time())
    engine = Engine(web, run, story)
    engine.emit([*story.beginning(), *map(story.stored, (_repaired(story), _masked(story)))])
    page = tab()
    sign_in(page, web, sample.owner)
    page.goto(f"{web.url}/runs/{run.id}/trajectories/")
    page.get_by_label("Change").select_option("repaired")
    rows = page.locator("#trajectories tbody tr[data-step]")
    expect(rows).to_have_count(1, timeout=PATIENCE_MS)
    expect(rows.locator('[data-change="repaired"]')).to_have_text("1 repaired")
    rows.get_by_role("link").click()
    expect(page.locator("#summary")).to_contain_text("1 call repaired", timeout=PATIENCE_MS)
    expect(page.get_by_text("repaired, shallow · 2 attempts · name")).to_be_visible()
    gone = page.locator(".diff del").first
    expect(gone).to_be_hidden()
    page.get_by_text("The call was replaced by its correction").click()
    expect(gone).to_have_text("prnt")
    expect(page.locator(".diff ins").first).to_have_text("print")
    expect(page.locator("mark.experience").first).to_contain_text("use the tool")
    page.screenshot(path=PICTURES / "trajectory-repaired.png", full_page=True)
    page.goto(f"{web.url}/runs/{run.id}/trajectories/train-0-1/")
    expect(page.locator("#summary")).to_contain_text("1 turn masked: error")
    page.screenshot(path=PICTURES / "trajectory-masked.png", full_page=True)
    assert complaints == []


def test_charts_of_parts_appear_when_a_run_has_them_and_others_wait_below(
    web: Web, sample: Sample, tab: Callable[..., Page], complaints: list[str]
) -> None:
    run = launch_experiment(sample.experiment, acting_user=sample.owner)
    engine = Engine(web, run, Story(steps=4, begin_at=time.time()))
    engine.emit([*engine.story.beginning(), _metric(engine, 1, {"train/reward": 0.5, "train/tool_error_rate": 0.1})])
    page = tab()
    sign_in(page, web, sample.owner)
    page.goto(f"{web.url}/runs/{run.id}/")
    expect(page.locator("#link-state")).to_have_text("Live", timeout=PATIENCE_MS)
    judge, errors = page.locator('[data-chart="judge"]'), page.locator('[data-chart="first-attempts"]')
    expect(page.locator('[data-chart="reward"].has-data')).to_be_visible(timeout=PATIENCE_MS)
    expect(judge).to_be_hidden()
    expect(errors).to_be_hidden()
    engine.emit([_metric(engine, 2, {"judge/good": 0.75, "sil/new_one": 2.0})], 2)
    expect(judge).to_be_visible(timeout=PATIENCE_MS)
    judge.scroll_into_view_if_needed()
    expect(judge.locator(".legend")).to_contain_text("75.0%", timeout=PATIENCE_MS)
    expect(errors).to_be_hidden()
    page.get_by_text("other metric").click()
    other = page.locator('[data-chart="sil/new_one"]')
    other.scroll_into_view_if_needed()
    expect(other.locator(".legend")).to_contain_text("2.000", timeout=PATIENCE_MS)
    assert complaints == []


def _metric(engine: Engine, step: int, values: dict[str, float]) -> Event:
    return engine.story.event("metric", step=step, values=values)


def _repaired(story: Story) -> Event:
    """With experience, a repaired call, a replayed turn and verdicts."""
    one = _of_two_turns(story, 0)
    details = {"attempts": 2, "error_class": "name", "similarity": 0.92, "first_output": "NameError: prnt"}
    repair = {"kind": "purified", "turn": 1, "start": 1, "stop": 14, "reason": "shallow", "before": "prnt(12 * 9)",
              "after": "print(12 * 9)", "details": details}  # fmt: skip
    one["segments"][0]["turns"][0] |= {
        "context_text": "<user><EXP>use the tool for products\nthen answer</EXP>\n12 * 9<assistant>",
        "experience_span": (1, 40), "prefilled": True, "imitated": True, "verdict": "good",
    }  # fmt: skip
    one["segments"][0]["turns"][1]["verdict"] = "good"
    start = {"expert": "train-3-1", "prefix": 1, "turns": 3}
    return one | {"changes": [repair], "start": start, "first_attempt_errors": 1}


def _masked(story: Story) -> Event:
    one = _of_two_turns(story, 1)
    one["segments"][0]["turns"][1] |= {"masked_because": "error", "verdict": "bad"}
    return one


def _of_two_turns(story: Story, index: int) -> Event:
    one = story.trajectory("train", 1, 0, index)
    one["task"] |= {"question": "12 * 9", "answer": "108"}
    one["segments"][0]["turns"] = [
        story.turn("<user>12 * 9<assistant>", '<tool>show("a")</tool>', 1, 'show("a")', "12"),
        story.turn("<output>12</output><assistant>", "<tool>print(12 * 9)</tool>", 1, "print(12 * 9)", "108"),
        story.turn("<output>108</output><assistant>", "<answer>108</answer>", 1),
    ]
    return one | {"changes": []}
