"""The spec editor: the same spec as a form and as TOML, errors next to their field, nothing lost."""

import tomllib
from html import unescape
from typing import Any

import pytest
from django.test import Client

from engine.spec.run import RunSpec
from webapp.accounts.models import Team, User
from webapp.experiments.drafts import Draft
from webapp.experiments.fields import GROUPS, groups_of
from webapp.experiments.models import Experiment
from webapp.experiments.services import create_experiment
from webapp.experiments.toml import as_toml
from webapp.runs.models import Run

pytestmark = pytest.mark.django_db


def form_of(spec: RunSpec) -> dict[str, Any]:
    """What a browser posts for this spec."""
    fields = [one for group in groups_of(spec.model_dump(mode="json"), []) for one in (*group.main, *group.more)]
    return {one.path: one.chosen if one.kind == "many" else one.text for one in fields} | {"as": "form"}


@pytest.fixture
def experiment(team: Team, alice: User, spec: RunSpec) -> Experiment:
    return create_experiment(team, spec, acting_user=alice)


@pytest.fixture
def browser(alice: User) -> Client:
    client = Client()
    client.force_login(alice)
    return client


def test_toml_says_the_same_as_the_spec() -> None:
    spec = RunSpec.model_validate(
        {"name": "a b", "environment": {"levels": [3]}, "recipe": {"objective": {"dual_clip": 3.0}}}
    )
    assert RunSpec.model_validate(tomllib.loads(as_toml(spec.model_dump(mode="json")))) == spec


@pytest.mark.parametrize("text", ['q"uote', "back\\slash", "line\nbreak", "tab\t", "del\x7f", "ünï", "\x01"])
def test_any_text_survives_toml(text: str) -> None:
    assert tomllib.loads(as_toml({"a": {"b": text}})) == {"a": {"b": text}}


def test_the_form_asks_for_every_field_that_has_a_choice() -> None:
    spec = RunSpec.model_validate({"name": "x", "schedule": {"steps": 7}, "environment": {"levels": [2]}})
    draft = Draft.of({"name": "x"})
    assert {group.name for group in draft.groups} == set(GROUPS)
    assert "schedule.stall_timeout_s" in form_of(spec)
    assert "environment.sandbox.memory_mib" in form_of(spec)


def test_saving_the_form_as_it_came_changes_nothing(browser: Client, experiment: Experiment) -> None:
    before = experiment.run_spec
    answer = browser.post(f"/experiments/{experiment.id}/", form_of(before) | {"action": "save"})
    assert answer.status_code == 302
    experiment.refresh_from_db()
    assert experiment.run_spec == before


def test_a_changed_knob_is_saved_and_launched(browser: Client, experiment: Experiment) -> None:
    form = form_of(experiment.run_spec) | {"schedule.steps": "7", "environment.levels": ["1", "3"], "action": "launch"}
    answer = browser.post(f"/experiments/{experiment.id}/", form)
    run = Run.objects.get()
    assert answer["Location"] == f"/runs/{run.id}/"
    assert run.run_spec.schedule.steps == 7
    assert run.run_spec.environment.levels == [1, 3]


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("schedule.steps", "many", "a whole number"),
        ("schedule.group_size", "1", "use at least 2"),
        ("schedule.minibatch_trajectories", "100", "divisor of 256"),
        ("recipe.objective.clip_low", "-1", "at least 0"),
        ("name", "", "at least"),
    ],
)
def test_an_error_stands_next_to_its_field_and_nothing_is_lost_or_made(
    browser: Client, experiment: Experiment, field: str, value: str, said: str
) -> None:
    form = form_of(experiment.run_spec) | {
        "schedule.prompts_per_step": "32",
        field: value,
        "seed": "77",
        "action": "launch",
    }
    answer = browser.post(f"/experiments/{experiment.id}/", form)
    page = unescape(answer.content.decode())
    assert answer.status_code == 422
    about = page.split(f'id="f-{field.replace(".", "-")}-about"')[1].split("</div>")[0]
    assert said in about
    assert 'name="seed" value="77"' in page
    assert f'name="{field}" value="{value}"' in page
    assert not Run.objects.exists()
    experiment.refresh_from_db()
    assert experiment.run_spec.seed == 0


def test_toml_with_an_unknown_field_names_it_and_keeps_the_text(browser: Client, experiment: Experiment) -> None:
    text = 'name = "x"\n# my comment\n[schedule]\nstepz = 3\n'
    answer = browser.post(f"/experiments/{experiment.id}/", {"as": "toml", "toml": text, "action": "save"})
    page = unescape(answer.content.decode())
    assert answer.status_code == 422
    assert "schedule.stepz" in page
    assert "did you mean 'steps'" in page
    assert "# my comment" in page


def test_toml_that_cannot_be_read_names_the_line_and_stays(browser: Client, experiment: Experiment) -> None:
    form = {"as": "toml", "toml": 'name = "x"\nseed = = 3', "action": "show-form"}
    page = unescape(browser.post(f"/experiments/{experiment.id}/", form).content.decode())
    assert "line 2" in page
    assert "seed = = 3" in page


def test_switching_to_toml_and_back_keeps_what_was_typed(browser: Client, experiment: Experiment) -> None:
    form = form_of(experiment.run_spec) | {"schedule.steps": "9"}
    toml = browser.post(
        f"/experiments/{experiment.id}/", form | {"action": "show-toml"}, headers={"hx-request": "true"}
    )
    text = unescape(toml.content.decode().split('name="toml"')[1].split(">", 1)[1].split("</textarea>")[0])
    assert tomllib.loads(text)["schedule"]["steps"] == 9
    back = browser.post(f"/experiments/{experiment.id}/", {"as": "toml", "toml": text, "action": "show-form"})
    assert 'name="schedule.steps" value="9"' in back.content.decode()
    assert not Run.objects.exists()


def test_numbers_of_a_form_with_errors_are_numbers_in_toml(browser: Client, experiment: Experiment) -> None:
    form = form_of(experiment.run_spec) | {"schedule.group_size": "1", "schedule.steps": "many", "action": "show-toml"}
    page = unescape(browser.post(f"/experiments/{experiment.id}/", form).content.decode())
    assert "group_size = 1\n" in page
    assert "temperature = 1.0\n" in page
    assert 'steps = "many"' in page


def test_a_preset_replaces_the_recipe_and_nothing_else(browser: Client, experiment: Experiment) -> None:
    form = form_of(experiment.run_spec) | {"seed": "5", "action": "preset", "preset": "rloo"}
    page = browser.post(f"/experiments/{experiment.id}/", form).content.decode()
    assert "<option selected>rloo</option>" in page
    assert 'name="seed" value="5"' in page


def test_a_new_experiment_can_be_made_and_launched_as_it_is(browser: Client, team: Team) -> None:
    page = browser.get("/experiments/new").content.decode()
    assert 'value="first-experiment"' in page
    form = form_of(RunSpec(name="first-experiment")) | {"action": "launch"}
    assert browser.post("/experiments/new", form)["Location"].startswith("/runs/")
    assert Experiment.objects.get().name == "first-experiment"
