"""What the spec editor does for a person who errs or does not know yet: complaints, panels, presets, folded fields."""

import re
from html import unescape
from typing import Any

import pytest
from django.test import Client

from engine.spec.presets import preset_names
from engine.spec.problems import Problem
from engine.spec.run import RunSpec
from tests.webapp.forms import posted_by
from webapp.accounts.models import Team, User
from webapp.editor.complaints import sentence
from webapp.editor.drafts import Draft
from webapp.editor.fields import sections_in
from webapp.editor.presets import Change, preset_changes, preset_families
from webapp.experiments.models import Experiment
from webapp.experiments.services import create_experiment

pytestmark = pytest.mark.django_db


@pytest.fixture
def experiment(team: Team, alice: User, spec: RunSpec) -> Experiment:
    return create_experiment(team, spec, acting_user=alice)


@pytest.fixture
def browser(alice: User) -> Client:
    client = Client()
    client.force_login(alice)
    return client


def refused(browser: Client, address: str, form: dict[str, Any] | None = None, **wrong: Any) -> str:
    """The page after saving with wrong answers."""
    form = form or posted_by(browser.get(address).content.decode())
    answer = browser.post(address, {**form, **wrong, "action": "save"})
    assert answer.status_code == 422
    return str(answer.content.decode())


def summary_of(page: str) -> str:
    return unescape(page.split('id="problems"')[1].split("</ul>")[0])


def control(page: str, id: str) -> str:
    return re.search(rf'<[^<>]* id="{re.escape(id)}"[^<>]*>', page)[0]  # type: ignore[index]


def test_the_summary_names_the_field_and_leads_to_it(browser: Client, experiment: Experiment) -> None:
    page = refused(browser, f"/experiments/{experiment.id}/", **{"schedule.steps": "0", "recipe.reward.wrong": "x"})
    assert "2 things to mend" in page
    phrase = "Steps (schedule.steps): 0 is less than 1; give 1 or more."
    assert phrase in re.sub("<[^>]*>", "", summary_of(page))
    assert 'href="#f-schedule-steps"' in summary_of(page)
    assert 'href="#f-recipe-reward-wrong"' in summary_of(page)
    assert phrase in page.split('id="f-schedule-steps-about"')[1].split("</div>")[0]


@pytest.mark.parametrize(
    ("wrong", "target"),
    [
        ({"schedule.steps": "0"}, "f-schedule-steps"),
        ({"environment.levels": []}, "f-environment-levels"),
        ({"recipe.objective.aggregation": "no"}, "f-recipe-objective-aggregation"),
        ({"environment.response.uploads": "b" * 256}, "f-environment-response-uploads"),
        ({"recipe.self_imitation": "on", "recipe.objective.kind": "tis"}, "s-recipe-self_imitation-on"),
    ],
)
def test_what_is_wrong_is_marked_and_described(
    browser: Client, experiment: Experiment, wrong: dict[str, Any], target: str
) -> None:
    """A number, a list of ticks, a choice, a list of texts, and a table that does not go with another."""
    page = refused(browser, f"/experiments/{experiment.id}/", **wrong)
    assert f'href="#{target}"' in summary_of(page)
    marked = control(page, target)
    assert 'aria-invalid="true"' in marked
    described = re.search('aria-describedby="([^"]*)"', marked)[1]  # type: ignore[index]
    assert 'class="error' in page.split(f'id="{described}"')[1].split("</div>")[0]


def test_every_link_of_the_summary_leads_somewhere_and_nothing_is_marked_without_one(
    browser: Client, experiment: Experiment
) -> None:
    row = {"recipe.experience.pool.0.content": "", "recipe.experience.pool.0.when_to_use": ""}
    rows = {"recipe.experience": "on", **row}
    page = refused(browser, f"/experiments/{experiment.id}/", **rows, **{"seed": "-1", "model.layers": "many"})
    targets = re.findall('href="#([^"]*)"', summary_of(page))
    assert len(targets) >= 4
    assert len(re.findall("<li>", summary_of(page))) == len(targets)
    for target in targets:
        assert page.count(f' id="{target}"') == 1


@pytest.mark.parametrize(
    ("value", "message", "remedy", "phrase"),
    [
        (0, "Input should be greater than or equal to 1", "-", "0 is less than 1; give 1 or more"),
        (0, "Input should be greater than 0", "-", "0 is not more than 0; give more than 0"),
        (2, "Input should be less than or equal to 1", "-", "2 is more than 1; give 1 or less"),
        (1.0, "Input should be less than 1", "-", "1.0 is not less than 1; give less than 1"),
        ("x", "Input should be a valid number, unable to parse", "give a number", "x is not a number; give a number"),
        ("", "String should have at least 1 character", "-", "this is empty; write something"),
        ("xxxx", "String should have at most 3 characters", "-", "this is too long; give at most 3 characters"),
        ("(missing)", "Field required", "add it", "Field required; add it"),
        ("", "too short", "write more", "Too short (you gave nothing); write more"),
        (False, "wrong", "mend it", "Wrong (you gave False); mend it"),
    ],
)
def test_a_sentence_says_value_fault_and_remedy(value: Any, message: str, remedy: str, phrase: str) -> None:
    assert sentence(Problem("a.b", value, message, remedy)) == phrase


@pytest.mark.parametrize("address", ["experiment", "new"])
def test_the_panels_stay_with_the_last_valid_answers(browser: Client, experiment: Experiment, address: str) -> None:
    """Also after a second post with a problem, and in TOML."""
    address = f"/experiments/{experiment.id}/" if address == "experiment" else "/experiments/new"
    form = posted_by(browser.get(address).content.decode()) | {"schedule.steps": "9", "action": "show"}
    page = browser.post(address, form).content.decode()
    page = refused(browser, address, posted_by(page), **{"schedule.group_size": "none at all"})
    for _ in range(2):
        assert "What this amounts to" in page
        assert "The same over REST" in page
        assert "The same without the service" in page
        assert "last answers without a problem" in page
        assert '<dt>RL steps</dt><dd class="num">9</dd>' in page
        page = refused(browser, address, posted_by(page), seed="-1")
    page = refused(browser, address, posted_by(page), **{"as": "toml", "toml": "= no"})
    assert '<dt>RL steps</dt><dd class="num">9</dd>' in page


def test_presets_say_what_they_change_in_the_base_recipe(browser: Client, experiment: Experiment) -> None:
    assert preset_changes("grpo") == ()
    credit, clip = Change("credit.kind", "grpo", "gigpo"), Change("objective.clip_high", "0.28", "0.2")
    assert preset_changes("gigpo") == (credit, clip)
    page = unescape(browser.get(f"/experiments/{experiment.id}/").content.decode())
    item = page.split('value="preset:gigpo"')[1].split("</li>")[0]
    assert "Changes credit.kind, objective.clip_high" in item
    assert '<del>grpo</del> <span class="sr">becomes</span>' in item


@pytest.mark.parametrize("name", preset_names())
def test_the_changes_of_a_preset_are_the_marked_fields_of_its_form(name: str) -> None:
    """The form of the same recipe without the preset's name marks what differs from the base recipe."""
    phrase = {f"recipe.{change.path}": change.after for change in preset_changes(name)}
    with_preset = RunSpec.model_validate({"name": "x", "recipe": {"preset": name}}).model_dump(mode="json")
    with_preset["recipe"]["preset"] = None
    draft = Draft.of(with_preset)
    sections = [section for card in draft.cards for section in sections_in(card.sections)]
    fields = {field.path for section in sections for field in section.fields if field.is_changed}
    tables = {item.path for item in sections if item.switch and item.was_on != (item.switch == "on")}
    lists = {item.path for item in sections if item.rows is not None}
    rows = {f"{path}." for path in lists}
    marked = {path for path in fields | tables if path.startswith("recipe.") and not any(map(path.startswith, rows))}
    assert marked <= set(phrase), "rows of a list are counted"
    assert set(phrase) <= fields | tables | lists


def test_a_search_looks_in_names_ideas_sources_and_changes() -> None:
    words = {choice.preset.name: choice.words for _, choices in preset_families() for choice in choices}
    assert {"spear", "gigpo", "self_imitation"} <= set(re.findall(r"[a-z_]+", words["spear-gigpo"]))
    assert [name for name, text in words.items() if "credit.kind gae" in text] == ["ppo"]
    assert all(text == text.lower() for text in words.values())


def test_folded_fields_are_named(browser: Client, experiment: Experiment) -> None:
    page = unescape(browser.get(f"/experiments/{experiment.id}/").content.decode())
    folded = [item for card in Draft.of(experiment.spec).cards for item in sections_in(card.sections) if item.more]
    assert len(folded) > 3
    for section in folded:
        labels = " · ".join(item.label for item in section.more)
        assert f"{len(section.more)} more" in page
        assert labels in page
    assert "Stall timeout, seconds" in page.split('id="schedule"')[1].split("<summary>")[1].split("</summary>")[0]
