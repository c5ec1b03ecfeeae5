"""axe-core finds nothing to complain about on any page, in both themes, wide and narrow."""

import time
from collections.abc import Callable, Sequence

import pytest
from axe_playwright_python.base import AXE_SCRIPT
from playwright.sync_api import Page

from tests.browser.conftest import Engine, Web, sign_in
from tests.browser.test_pictures import addresses  # noqa: F401 - a fixture
from tests.browser.test_security import Trouble
from webapp.experiments.sample import Sample
from webapp.runs.services import launch_experiment
from webapp.security.models import Alert

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.django_db(transaction=True)]
WIDTHS = {1440: 900, 390: 844}
LOOKS = tuple((theme, width) for theme in ("light", "dark") for width in WIDTHS)
DARK_AND_NARROW = ("dark", 390)
COLORS = ["color-contrast", "link-in-text-block"]
"""The rules that are about colors, and that hold by default."""
RULE_AND_NODES = """async ({ rules }) =>
  (await axe.run({
    resultTypes: ["violations"], preload: false, iframes: false, ...(rules ? { runOnly: rules } : {})
  })).violations
  .map(({ id, nodes }) => `${id}: ${nodes.length} times, first ${nodes[0].html.slice(0, 200)}`)"""


@pytest.fixture
def alerts(web: Web, sample: Sample) -> dict[str, str]:
    """Pages of a run whose sandboxes misbehave."""
    run = launch_experiment(sample.experiment, acting_user=sample.owner)
    story = Trouble(steps=30, groups=2, group_size=4, begin_at=time.time() - 60)
    engine = Engine(web, run, story)
    engine.emit(story.beginning())
    engine.emit(story.step(1), 1)
    origin = "train-2-0"
    engine.emit([*story.trouble(origin), story.alarm(0, origin), story.alarm(2, origin), *story.alike(9, rule=3)], 2)
    alert = Alert.objects.filter(run=run).first()
    assert alert is not None
    return {
        "alerts": "/alerts/",
        "alert": f"/alerts/{alert.id}/",
        "run-security": f"/runs/{run.id}/?tab=security",
    }


@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    "looks",
    [
        tuple(look for look in LOOKS if look != DARK_AND_NARROW),
        pytest.param((DARK_AND_NARROW,), marks=pytest.mark.soak),
    ],
    ids=["others", "dark and narrow"],
)
def test_axe_finds_no_violation_on_any_page_in_either_theme_at_either_width(
    web: Web,
    sample: Sample,
    addresses: dict[str, str],  # noqa: F811
    alerts: dict[str, str],
    tab: Callable[..., Page],
    looks: Sequence[tuple[str, int]],
) -> None:
    page = tab(reduced_motion="reduce")  # a colour on its way to another one has no contrast of its own
    page.goto(f"{web.url}/sign-in")
    faults = faults_of(page, "sign-in", looks)
    sign_in(page, web, sample.owner)
    pages = addresses | alerts | {"audit": f"/teams/{sample.team.slug}/audit/"}
    for name, address in pages.items():
        page.set_viewport_size({"width": 1440, "height": 900})
        page.goto(web.url + address)
        if name.startswith("run-"):
            page.wait_for_selector("#run[data-loaded]")
        if name == "run-trajectories":
            page.wait_for_selector("#trajectories tbody tr")
        faults += faults_of(page, name, looks)
    page.goto(f"{web.url}/experiments/{sample.experiment.id}/")
    page.get_by_text("Choose a preset").click()
    page.locator("#f-schedule-steps").fill("0")
    page.get_by_role("button", name="Save").click()
    page.wait_for_selector(".problems")
    page.get_by_text("Choose a preset").click()
    faults += faults_of(page, "experiment with a problem and the list of presets", looks)
    assert not faults, "\n".join(faults)


def faults_of(page: Page, name: str, looks: Sequence[tuple[str, int]] = LOOKS) -> list[str]:
    """The page is loaded once; theme and width change under it.  The dark theme differs in nothing but colors."""
    page.evaluate(AXE_SCRIPT)
    faults = []
    for theme, width in looks:
        page.emulate_media(color_scheme=theme)
        page.set_viewport_size({"width": width, "height": WIDTHS[width]})
        found = page.evaluate(RULE_AND_NODES, {"rules": COLORS if theme == "dark" else None})
        faults += [f"{name} {theme} {width}: {fault}" for fault in found]
    return faults
