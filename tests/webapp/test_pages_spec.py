"""The spec editor: the same spec as a form and as TOML, errors next to their field, nothing lost."""

import re
import tomllib
from html import unescape
from typing import Any

import pytest
from django.test import Client

from engine.spec.environment import Agent, Terminal
from engine.spec.presets import preset, preset_names
from engine.spec.run import RunSpec
from tests.webapp.forms import posted_by
from tests.webapp.task_sets import published_tasks
from webapp.accounts.models import Team, User
from webapp.accounts.services import create_team
from webapp.editor.drafts import Draft
from webapp.editor.fields import cards_of, fields_in, sections_in
from webapp.experiments.baseline import brief
from webapp.experiments.models import Experiment
from webapp.experiments.services import create_experiment
from webapp.experiments.toml import as_toml
from webapp.runs.models import Run

pytestmark = pytest.mark.django_db


def form_of(browser: Client, experiment: Experiment) -> dict[str, Any]:
    """What a browser posts when nobody typed anything."""
    return posted_by(browser.get(f"/experiments/{experiment.id}/").content.decode())


def shown(browser: Client, experiment: Experiment, form: dict[str, Any], action: str = "show") -> str:
    """The page that answers to a button that saves nothing."""
    answer = browser.post(f"/experiments/{experiment.id}/", form | {"action": action})
    assert answer.status_code == 200
    return answer.content.decode()


def saved(browser: Client, experiment: Experiment, form: dict[str, Any]) -> RunSpec:
    answer = browser.post(f"/experiments/{experiment.id}/", form | {"action": "save"})
    assert answer.status_code == 302, unescape(answer.content.decode()).split('role="alert"')[-1][:1500]
    experiment.refresh_from_db()
    return experiment.run_spec


def about(page: str, path: str) -> str:
    """What stands next to the field."""
    return unescape(page.split(f'id="f-{path.replace(".", "-")}-about"')[1].split("</div>")[0])


JUDGES = ["http://j:1/v1", "http://127.0.0.1:1/v1", "http://127.0.0.1:30000/v1"]


@pytest.fixture(autouse=True)
def _judges(settings: Any) -> None:
    """Whoever runs the service has allowed those that the forms name."""
    settings.PALESTRA_JUDGES = JUDGES


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


@pytest.mark.parametrize("name", preset_names())
def test_toml_and_the_shortest_document_say_the_same_as_each_preset(name: str) -> None:
    spec = RunSpec.model_validate({"name": "x", "recipe": {"preset": name}})
    assert RunSpec.model_validate(tomllib.loads(as_toml(spec.model_dump(mode="json")))) == spec
    assert brief(spec) == {"name": "x", "recipe": {"preset": name}}


CHANGES: list[dict[str, Any]] = [
    {"preset": "spear-grpo", "self_imitation": None, "stages": []},
    {"preset": "dr-grpo", "objective": {"clip_high": 0.28, "dual_clip": 3.0}},
    {"preset": "ppo", "credit": {"value_clip": None}},
    {"preset": "grpo", "credit": {"kind": "gigpo", "gamma": 0.5}, "selection": {"masks": ["overlong"]}},
    {"selection": {"resampling": {"repeated_errors": None}, "dynamic_sampling": {}}, "kl": {"beta": 0.0}},
    {"experience": {"pool": [{"when_to_use": 'a "quote"', "content": "two\nlines"}], "top_k": 1}},
    {"expert_starts": {"how": {"kind": "sequential", "threshold": 0.25}, "demonstrations": False}},
    {"credit": {"kind": "attribution", "judge": {"kind": "llm", "endpoint": "http://j:1/v1", "model": "m"}}},
    {"self_imitation": {"covariance": None}, "objective": {"covariance": {"kind": "kl"}}},
]


@pytest.mark.parametrize("recipe", CHANGES)
def test_what_was_changed_from_a_preset_survives_toml_and_the_shortest_document(recipe: dict[str, Any]) -> None:
    spec = RunSpec.model_validate({"name": "x", "recipe": recipe})
    assert RunSpec.model_validate(tomllib.loads(as_toml(spec.model_dump(mode="json")))) == spec
    assert RunSpec.model_validate(brief(spec)) == spec


def test_the_form_asks_for_every_field_that_has_a_choice() -> None:
    """Also for those of tables that are off."""
    cards = cards_of(RunSpec(name="x").model_dump(mode="json"), [])
    paths = {field.path for card in cards for field in fields_in(card.sections)}
    tables = {section.path for card in cards for section in sections_in(card.sections)}
    assert {"schedule.stall_timeout_s", "environment.sandbox.memory_mib", "environment.id"} <= paths
    assert {"recipe.purification.similarity", "recipe.expert_starts.how.anchors", "recipe.selection.masks"} <= paths
    assert {"recipe.self_imitation.covariance", "recipe.experience.pool", "recipe.kl"} <= tables
    assert "other" not in {card.name for card in cards}


@pytest.mark.parametrize("recipe", [{"preset": name} for name in preset_names()] + CHANGES)
def test_saving_the_form_as_it_came_changes_nothing(browser: Client, experiment: Experiment, recipe: Any) -> None:
    before = RunSpec.model_validate({"name": "x", "recipe": recipe})
    Experiment.objects.filter(id=experiment.id).update(spec=before.model_dump(mode="json"))
    assert saved(browser, experiment, form_of(browser, experiment)) == before


VERIFIERS: list[dict[str, Any]] = [
    {"kind": "math-verify", "digits": 3},
    {"kind": "python-function", "source": "def verify(result, row):\n    return 0.5", "partial_credit": True},
    {
        "kind": "rubric",
        "rubric": "Ten points for courtesy.",
        "judge": {"endpoint": "http://127.0.0.1:30000/v1", "model": "m", "api_key_variable": "PALESTRA_JUDGE_KEY"},
    },
]
EVERYTHING_OF_QA: dict[str, Any] = {
    "id": "qa",
    "tools": ["python", "shell", "files"],
    "search": {"split": "books", "results": 7},
    "verifier": VERIFIERS[0],
    "components": [{"name": f"own-{n}", "reward": 0.25, "verifier": verifier} for n, verifier in enumerate(VERIFIERS)],
    "mcp": [{"name": "calc", "command": ["python3", "calc.py"]}],
    "files": [{"path": "calc.py", "content": "import sys\nsys.exit(1)"}],
    "sandbox": {"terminal": True, "network": "watched"},
}
AN_AGENT = {
    "id": "agent",
    "tasks": {"id": "python-math", "levels": [2], "sandbox": {"network": "watched", "memory_mib": 512}},
    "agent": {
        "command": ["python3", "/tmp/agent/agent.py", "{task}"],
        "files": [{"path": "agent.py", "content": "import os\n\nprint('é <b>')"}],
        "variables": [{"name": "MODE", "value": "x y"}],
        "timeout_s": 20.0,
    },
}


@pytest.mark.parametrize(
    ("environment", "dataset"),
    [
        ({"id": "python-math", "levels": [3], "reasoning": True}, {}),
        ({"id": "sokoban"}, {}),
        ({"id": "webshop", "partial_credit": False}, {}),
        ({"id": "search-qa", "evidence_reward": 0.2}, {}),
        ({"id": "apps"}, {}),
        (AN_AGENT, {}),
        (EVERYTHING_OF_QA, {"catalog": "sums@1"}),
        *[({"id": "qa", "verifier": verifier}, {"catalog": "sums@1"}) for verifier in VERIFIERS],
    ],
)
def test_an_environment_is_saved_as_it_came(
    browser: Client, team: Team, alice: User, environment: Any, dataset: Any
) -> None:
    room = {"context_tokens": 2048}
    document = {"name": "x", "environment": environment, "model": room, "dataset": dataset}
    before = RunSpec.model_validate(document)
    experiment = create_experiment(team, before, acting_user=alice)
    assert saved(browser, experiment, form_of(browser, experiment)) == before


def test_code_to_be_imported_is_neither_offered_nor_saved(browser: Client, experiment: Experiment) -> None:
    page = browser.get(f"/experiments/{experiment.id}/").content.decode()
    assert ">household<" in page
    assert ">import<" not in page
    toml = 'name = "x"\n[environment]\nid = "import"\npath = "os:system"\n'
    form = form_of(browser, experiment) | {"as": "toml", "toml": toml, "action": "save"}
    answer = browser.post(f"/experiments/{experiment.id}/", form)
    assert answer.status_code != 302
    assert "would run its author&#x27;s code" in answer.content.decode()
    before = experiment.spec
    experiment.refresh_from_db()
    assert experiment.spec == before


def test_an_agent_is_chosen_in_the_form_with_its_tasks_and_its_program(browser: Client, experiment: Experiment) -> None:
    form = posted_by(shown(browser, experiment, form_of(browser, experiment) | {"environment.id": "agent"}))
    answer = browser.post(f"/experiments/{experiment.id}/", form | {"action": "save"})
    assert answer.status_code != 302
    assert "environment.agent.command" in answer.content.decode()
    agent = saved(browser, experiment, form | {"environment.agent.command": "python3\n/work/it.py"}).environment
    assert isinstance(agent, Agent)
    assert (agent.agent.command, agent.sandbox.network) == (["python3", "/work/it.py"], "watched")


def test_the_form_offers_the_teams_task_sets_for_an_agents_terminal_tasks(
    browser: Client, experiment: Experiment, team: Team
) -> None:
    published_tasks(team)
    published_tasks(create_team("Others", acting_user=User.objects.create(email="dora@example.org")), "theirs")
    form = posted_by(shown(browser, experiment, form_of(browser, experiment) | {"environment.id": "agent"}))
    page = shown(browser, experiment, form | {"environment.tasks.id": "terminal"})
    [field] = re.findall(r'<input[^>]* name="environment\.tasks\.catalog"[^>]*>', page)
    assert 'list="ready-tasks"' in field
    [offered] = re.findall(r'<datalist id="ready-tasks">.*?</datalist>', page)
    assert re.findall(r'value="([^"]*)"', offered) == ["shell@1"]
    chosen = posted_by(page) | {"environment.tasks.catalog": "shell@1", "environment.agent.command": "true"}
    agent = saved(browser, experiment, chosen).environment
    assert isinstance(agent, Agent)
    assert isinstance(agent.tasks, Terminal)
    assert agent.tasks == Terminal(catalog="shell@1"), "the kind begins with its own defaults"


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"tasks": {"id": "terminal", "tasks": "/srv/tasks"}}, "environment.tasks.tasks"),
        ({"agent": {"command": ["true"], "folder": {"path": "/etc"}}}, "environment.agent.folder.path"),
    ],
)
def test_an_agent_takes_no_folder_of_the_server(
    browser: Client, experiment: Experiment, change: Any, field: str
) -> None:
    spec = RunSpec.model_validate({"name": "x", "environment": {**AN_AGENT, **change}})
    toml = as_toml(spec.model_dump(mode="json"))
    form = form_of(browser, experiment) | {"as": "toml", "toml": toml, "action": "save"}
    answer = browser.post(f"/experiments/{experiment.id}/", form)
    assert answer.status_code != 302
    assert "of the server&#x27;s own choosing is not read here" in answer.content.decode()
    assert field in answer.content.decode()


def test_another_environment_brings_its_own_words_unless_they_are_named_afterwards(
    browser: Client, experiment: Experiment
) -> None:
    page = shown(browser, experiment, form_of(browser, experiment) | {"environment.id": "sokoban"})
    form = posted_by(page)
    assert form["model.vocabulary"] == ["sokoban"]
    assert saved(browser, experiment, form | {"model.vocabulary": "characters"}).model.vocabulary == "characters"


def test_another_kind_shows_its_fields_and_keeps_what_was_typed_elsewhere(
    browser: Client, experiment: Experiment
) -> None:
    form = form_of(browser, experiment) | {"seed": "77", "recipe.credit.kind": "gae", "recipe.reward.wrong": "-0.5"}
    page = shown(browser, experiment, form)
    assert 'name="recipe.credit.lam" value="1.0"' in page
    assert 'name="seed" value="77"' in page
    assert 'name="recipe.reward.wrong" value="-0.5"' in page
    form = posted_by(page) | {"recipe.credit.gamma": "0.9", "recipe.credit.value_clip": ""}
    del form["recipe.credit.whiten"]
    credit = saved(browser, experiment, form).recipe.credit.model_dump()
    assert (credit["kind"], credit["gamma"], credit["value_clip"], credit["whiten"]) == ("gae", 0.9, None, False)


def test_a_kind_that_was_just_chosen_begins_with_its_own_defaults(browser: Client, experiment: Experiment) -> None:
    page = shown(browser, experiment, form_of(browser, experiment) | {"recipe.credit.kind": "gae"})
    page = shown(browser, experiment, posted_by(page) | {"recipe.credit.gamma": "0.5", "recipe.credit.kind": "gigpo"})
    assert 'name="recipe.credit.gamma" value="0.95"' in page


def test_a_kind_inside_a_kind_can_be_switched(browser: Client, experiment: Experiment) -> None:
    page = shown(browser, experiment, form_of(browser, experiment) | {"recipe.credit.kind": "attribution"})
    page = shown(browser, experiment, posted_by(page) | {"recipe.credit.judge.kind": "llm"})
    assert "Field required" in about(page, "recipe.credit.judge.endpoint")
    form = posted_by(page) | {"recipe.credit.judge.endpoint": "http://127.0.0.1:1/v1", "recipe.credit.judge.model": "m"}
    judge = saved(browser, experiment, form).recipe.credit.model_dump()["judge"]
    assert (judge["kind"], judge["model"], judge["api_key_variable"]) == ("llm", "m", None)


def test_a_table_that_is_switched_on_and_off_comes_and_goes(browser: Client, experiment: Experiment) -> None:
    form = form_of(browser, experiment) | {"recipe.purification": "on", "recipe.purification.retries": "2"}
    spec = saved(browser, experiment, form)
    assert spec.recipe.purification is not None
    assert spec.recipe.purification.retries == 2
    form = form_of(browser, experiment)
    del form["recipe.purification"]
    spec = saved(browser, experiment, form)
    assert spec.recipe.purification is None
    assert saved(browser, experiment, form_of(browser, experiment)) == spec


def test_rows_are_added_and_removed_and_keep_what_was_typed(browser: Client, experiment: Experiment) -> None:
    pool, form = "recipe.experience.pool", form_of(browser, experiment) | {"recipe.experience": "on"}
    for number, word in enumerate(("one", "two", "three")):
        form = posted_by(shown(browser, experiment, form, f"add:{pool}"))
        form |= {f"{pool}.{number}.when_to_use": f"when {word}", f"{pool}.{number}.content": f"{word}\r\nlines"}
    form = posted_by(shown(browser, experiment, form, f"remove:{pool}.1"))
    experience = saved(browser, experiment, form).recipe.experience
    assert experience is not None
    assert [(item.when_to_use, item.content) for item in experience.pool] == [
        ("when one", "one\nlines"),
        ("when three", "three\nlines"),
    ]


def test_an_empty_row_and_an_empty_list_are_complained_about_where_they_are(
    browser: Client, experiment: Experiment
) -> None:
    form = form_of(browser, experiment) | {"recipe.experience": "on"}
    page = shown(browser, experiment, form)
    assert "at least 1 item" in page.split('id="s-recipe-experience-pool-about"')[1].split("</div>")[0]
    page = shown(browser, experiment, form, "add:recipe.experience.pool")
    page = shown(browser, experiment, posted_by(page))
    assert "Field required" in about(page, "recipe.experience.pool.0.content")


def test_a_row_that_was_just_added_is_not_complained_about(browser: Client, experiment: Experiment) -> None:
    form = form_of(browser, experiment) | {"recipe.experience": "on"}
    page = shown(browser, experiment, form, "add:recipe.experience.pool")
    assert "Field required" not in page
    assert "to mend before" not in page
    page = shown(browser, experiment, posted_by(page) | {"schedule.steps": "many"}, "add:recipe.experience.pool")
    assert "Field required" in about(page, "recipe.experience.pool.0.content")
    assert "Field required" not in about(page, "recipe.experience.pool.1.content")
    assert "a whole number" in about(page, "schedule.steps")


@pytest.mark.parametrize("action", ["remove:recipe.experience.pool.x", "remove:seed.0", "add:seed", "add:no.such", "x"])
def test_a_button_that_nobody_drew_changes_nothing(browser: Client, experiment: Experiment, action: str) -> None:
    form = form_of(browser, experiment) | {"action": action}
    assert browser.post(f"/experiments/{experiment.id}/", form).status_code in (200, 302)
    before = experiment.run_spec
    experiment.refresh_from_db()
    assert experiment.run_spec == before


def test_help_breaks_its_lines_at_paragraphs_only() -> None:
    cards = cards_of(RunSpec(name="x").model_dump(mode="json"), [])
    helps = {field.path: field.help for card in cards for field in fields_in(card.sections)}
    assert "until a reviewer has decided" in helps["environment.response.quarantine"]
    assert helps["environment.id"].count("\n") == 1


def test_a_list_of_texts_is_typed_one_per_line(browser: Client, experiment: Experiment) -> None:
    uploads = "environment.response.uploads"
    typed = form_of(browser, experiment) | {uploads: "a.example.org\r\n\r\n  b.example.org  "}
    assert saved(browser, experiment, typed).environment.response.uploads == ["a.example.org", "b.example.org"]
    assert form_of(browser, experiment)[uploads] == ["a.example.org\nb.example.org"]
    page = shown(browser, experiment, typed | {uploads: f"a.example.org\n{'b' * 256}"})
    assert "at most 255 characters" in about(page, uploads)
    assert saved(browser, experiment, typed | {uploads: ""}).environment.response.uploads == []


def test_an_egress_policy_is_made_rule_by_rule(browser: Client, experiment: Experiment) -> None:
    egress = "environment.sandbox.egress"
    form = form_of(browser, experiment) | {"environment.sandbox.network": "watched", egress: "on"}
    form = posted_by(shown(browser, experiment, form, f"add:{egress}.rules"))
    form |= {
        f"{egress}.rules.0.name": "mirror",
        f"{egress}.rules.0.hosts": "mirror.example.org\n*.mirror.example.org",
        f"{egress}.rules.0.ports": "443\n8000-8100",
    }
    policy = saved(browser, experiment, form).environment.sandbox.egress
    (rule,) = policy.rules
    assert (rule.action, rule.ports, rule.protocols) == ("allow", (443, "8000-8100"), ("tcp",))
    assert rule.hosts == ("mirror.example.org", "*.mirror.example.org")
    before = experiment.run_spec
    assert saved(browser, experiment, form_of(browser, experiment)) == before
    page = shown(browser, experiment, form_of(browser, experiment) | {f"{egress}.rules.0.ports": "99999"})
    assert "99999" in about(page, f"{egress}.rules.0.ports")


def test_only_what_differs_from_the_preset_is_marked() -> None:
    plain = Draft.of({"name": "x", "recipe": {"preset": "dr-grpo"}})
    assert plain.changed == 0
    changed = Draft.of({"name": "x", "recipe": {"preset": "dr-grpo", "objective": {"clip_high": 0.28}, "kl": {}}})
    marked = [section.path for card in changed.cards for section in fields_in(card.sections) if section.is_changed]
    assert marked == ["recipe.objective.clip_high"]
    assert changed.changed == 2


def test_a_wrong_combination_is_reported_at_the_table_that_it_is_about(browser: Client, experiment: Experiment) -> None:
    form = form_of(browser, experiment) | {"recipe.self_imitation": "on", "recipe.objective.kind": "tis"}
    page = shown(browser, experiment, form)
    assert "remove self_imitation" in page.split('id="s-recipe-self_imitation-about"')[1].split("</div>")[0]


def test_a_changed_knob_is_saved_and_launched(browser: Client, experiment: Experiment) -> None:
    form = form_of(browser, experiment) | {"schedule.steps": "7", "environment.levels": ["1", "3"], "action": "launch"}
    answer = browser.post(f"/experiments/{experiment.id}/", form)
    run = Run.objects.get()
    assert answer["Location"] == f"/runs/{run.id}/"
    assert run.run_spec.schedule.steps == 7
    assert run.run_spec.environment.levels == [1, 3]


@pytest.mark.parametrize(
    ("field", "value", "phrase"),
    [
        ("schedule.steps", "many", "a whole number"),
        ("schedule.group_size", "1", "use at least 2"),
        ("schedule.minibatch_trajectories", "100", "divisor of 256"),
        ("recipe.objective.clip_low", "-1", "-1 is less than 0; give 0 or more"),
        ("name", "", "this is empty; write something"),
    ],
)
def test_an_error_stands_next_to_its_field_and_nothing_is_lost_or_made(
    browser: Client, experiment: Experiment, field: str, value: str, phrase: str
) -> None:
    form = form_of(browser, experiment) | {
        "schedule.prompts_per_step": "32",
        field: value,
        "seed": "77",
        "action": "launch",
    }
    answer = browser.post(f"/experiments/{experiment.id}/", form)
    page = unescape(answer.content.decode())
    assert answer.status_code == 422
    about = page.split(f'id="f-{field.replace(".", "-")}-about"')[1].split("</div>")[0]
    assert phrase in about
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


@pytest.mark.parametrize("toml", [
    "name = 1979-05-27", "name = 07:32:00", r'name = "a\u0000b"', "a = " + "9" * 5000, "a = " + "[" * 5000 + "]" * 5000,
    "[" + "a." * 3000 + "b]", 'name = "x"\n[model]\nhidden_size = ' + "9" * 400,
])  # fmt: skip
@pytest.mark.parametrize("action", ["save", "show-form", "preset:grpo", "remove:a." + "9" * 5000])
def test_toml_that_no_spec_could_hold_stays_with_the_reason(
    browser: Client, experiment: Experiment, toml: str, action: str
) -> None:
    answer = browser.post(f"/experiments/{experiment.id}/", {"as": "toml", "toml": toml, "action": action})
    assert answer.status_code == (422 if action == "save" else 200)
    assert toml in unescape(answer.content.decode())
    experiment.refresh_from_db()
    assert experiment.spec["name"] == experiment.name


@pytest.mark.parametrize(
    ("toml", "why"),
    [
        ('name = "x"\n' + "a." * 30000 + "a = 1", "line 2: a key of 30001 parts, of which there may be 16"),
        ("# " + "x" * 2**18, "more than 262144 characters"),
    ],
)
@pytest.mark.parametrize("path", ["/experiments/new", None])
def test_toml_that_would_keep_the_web_busy_is_not_read(
    browser: Client, experiment: Experiment, toml: str, why: str, path: str | None
) -> None:
    form = {"as": "toml", "toml": toml, "action": "show", "base": "{}"}
    answer = browser.post(path or f"/experiments/{experiment.id}/", form)
    assert why in unescape(answer.content.decode()).replace("More", "more").replace("Line", "line")


def test_who_may_launch_nothing_has_no_text_read(victor: User, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[Any] = []
    monkeypatch.setattr(Draft, "of_post", read.append)
    looking = Client()
    looking.force_login(victor)
    assert looking.get("/experiments/new").status_code == 200
    assert looking.post("/experiments/new", {"as": "toml", "toml": "x", "action": "show"}).status_code == 403
    assert read == []


@pytest.mark.parametrize("base", ["[" * 9000, '{"a": ' * 300 + "1" + "}" * 300, "9" * 5000, '{"name": "\\u0000"}'])
def test_a_form_that_was_made_for_nothing_readable_is_read_all_the_same(
    browser: Client, experiment: Experiment, base: str
) -> None:
    answer = browser.post(f"/experiments/{experiment.id}/", {"base": base, "action": "show", "name": "x"})
    assert answer.status_code == 200


def test_a_number_beyond_64_bits_is_reported_next_to_its_field(browser: Client, experiment: Experiment) -> None:
    form = {
        "base": '{"name": "x"}',
        "action": "save",
        "name": "x",
        "model.kind": "builtin",
        "model.hidden_size": "9" * 400,
    }
    answer = browser.post(f"/experiments/{experiment.id}/", form)
    assert answer.status_code == 422
    assert "does not fit into 64 bits" in answer.content.decode()


def test_switching_to_toml_and_back_keeps_what_was_typed(browser: Client, experiment: Experiment) -> None:
    form = form_of(browser, experiment) | {"schedule.steps": "9"}
    toml = browser.post(
        f"/experiments/{experiment.id}/", form | {"action": "show-toml"}, headers={"hx-request": "true"}
    )
    text = unescape(toml.content.decode().split('name="toml"')[1].split(">", 1)[1].split("</textarea>")[0])
    assert tomllib.loads(text)["schedule"]["steps"] == 9
    back = browser.post(f"/experiments/{experiment.id}/", {"as": "toml", "toml": text, "action": "show-form"})
    assert 'name="schedule.steps" value="9"' in back.content.decode()
    assert not Run.objects.exists()


def test_numbers_of_a_form_with_errors_are_numbers_in_toml(browser: Client, experiment: Experiment) -> None:
    form = form_of(browser, experiment) | {"schedule.group_size": "1", "schedule.steps": "many", "action": "show-toml"}
    page = unescape(browser.post(f"/experiments/{experiment.id}/", form).content.decode())
    assert "group_size = 1\n" in page
    assert "temperature = 1.0\n" in page
    assert 'steps = "many"' in page


def test_a_preset_replaces_the_recipe_and_nothing_else(browser: Client, experiment: Experiment) -> None:
    form = form_of(browser, experiment) | {"seed": "5", "recipe.kl": "on"}
    page = shown(browser, experiment, form, "preset:rloo")
    assert 'name="seed" value="5"' in page
    spec = saved(browser, experiment, posted_by(page))
    assert spec.recipe == RunSpec.model_validate({"name": "x", "recipe": {"preset": "rloo"}}).recipe


def test_every_preset_can_be_chosen_with_its_source_beside_it(browser: Client, experiment: Experiment) -> None:
    page = unescape(browser.get(f"/experiments/{experiment.id}/").content.decode())
    for name in preset_names():
        button = page.split(f'value="preset:{name}"')[1].split("</button>")[0]
        assert preset(name).source in button
        assert preset(name).about in button


def test_a_new_experiment_can_be_made_and_launched_as_it_is(browser: Client, team: Team) -> None:
    page = browser.get("/experiments/new").content.decode()
    assert 'value="first-experiment"' in page
    form = posted_by(page) | {"action": "launch"}
    assert browser.post("/experiments/new", form)["Location"].startswith("/runs/")
    assert Experiment.objects.get().name == "first-experiment"


@pytest.mark.parametrize(("action", "seed"), [("preset:rloo", "5"), ("show", "5"), ("show-toml", "5"), ("save", "x")])
def test_a_new_experiment_stays_with_the_team_that_was_chosen(
    browser: Client, team: Team, alice: User, action: str, seed: str
) -> None:
    create_team("Another Team", acting_user=alice)  # the first by name
    form = posted_by(browser.get("/experiments/new").content.decode()) | {"team": team.slug, "seed": seed}
    answer = browser.post("/experiments/new", form | {"action": action})
    again = posted_by(answer.content.decode())
    assert again["team"] == [team.slug]
    mended = form | {"team": again["team"], "seed": "5", "action": "save"}
    assert browser.post("/experiments/new", mended).status_code == 302
    assert Experiment.objects.get().team == team


def test_a_stage_is_added_filled_and_taken_away_in_the_form(browser: Client, experiment: Experiment) -> None:
    form = posted_by(shown(browser, experiment, form_of(browser, experiment), "add:recipe.stages"))
    page = shown(browser, experiment, form | {"recipe.stages.1.data.kind": "chat"})
    assert "Field required" in about(page, "recipe.stages.1.data.file")
    form = posted_by(page) | {
        "recipe.stages.1.data.file": "chat.jsonl", "recipe.stages.1.steps": "7",
        "recipe.stages.1.revisiting": "on", "recipe.stages.1.revisiting.stage": "1",
    }  # fmt: skip
    first, second = saved(browser, experiment, form).recipe.stages
    assert (second.data.kind, second.steps) == ("chat", 7)
    assert second.revisiting is not None
    assert second.revisiting.stage == 1
    assert first.revisiting is None
    for _ in range(2):
        form = posted_by(shown(browser, experiment, form, "remove:recipe.stages.0"))
    assert saved(browser, experiment, form).recipe.stages == ()


MIXED = {
    "name": "mixed",
    "environment": {
        "id": "mixture",
        "parts": [
            {"name": "sums", "weight": 2, "environment": {"id": "python-math", "levels": [1]}},
            {"name": "house", "environment": {"id": "household", "levels": [1, 3], "max_turns": 9}},
        ],
    },
}


@pytest.fixture
def mixed(team: Team, alice: User) -> Experiment:
    return create_experiment(team, RunSpec.model_validate(MIXED), acting_user=alice)


def test_parts_of_an_environment_are_saved_as_they_were(browser: Client, mixed: Experiment) -> None:
    assert saved(browser, mixed, form_of(browser, mixed)) == RunSpec.model_validate(MIXED)


def test_a_part_is_added_given_another_kind_and_removed(browser: Client, mixed: Experiment) -> None:
    added = posted_by(shown(browser, mixed, form_of(browser, mixed), "add:environment.parts"))
    added |= {"environment.parts.2.name": "box", "environment.parts.2.environment.id": "sokoban"}
    form = posted_by(shown(browser, mixed, added))
    assert form["environment.parts.2.environment.max_turns"] == ["8"]  # Sokoban's own
    parts = saved(browser, mixed, form | {"environment.parts.2.weight": "0.5"}).environment.parts
    assert [(part.name, part.weight, part.environment.id) for part in parts][2:] == [("box", 0.5, "sokoban")]
    fewer = posted_by(shown(browser, mixed, form_of(browser, mixed), "remove:environment.parts.0"))
    assert [part.name for part in saved(browser, mixed, fewer).environment.parts] == ["house", "box"]


def test_an_environment_becomes_one_of_parts(browser: Client, experiment: Experiment) -> None:
    form = posted_by(shown(browser, experiment, form_of(browser, experiment) | {"environment.id": "mixture"}))
    for number, name in enumerate(("first", "second")):
        form = posted_by(shown(browser, experiment, form, "add:environment.parts"))
        form[f"environment.parts.{number}.name"] = name
    assert [part.name for part in saved(browser, experiment, form).environment.parts] == ["first", "second"]


def test_a_row_within_a_part_is_added(browser: Client, mixed: Experiment) -> None:
    form = form_of(browser, mixed) | {"environment.parts.1.environment.id": "qa"}
    page = shown(browser, mixed, posted_by(shown(browser, mixed, form)), "add:environment.parts.1.environment.mcp")
    assert "environment.parts.1.environment.mcp.0.name" in posted_by(page)


def test_what_is_wrong_with_a_part_stands_at_its_field(browser: Client, mixed: Experiment) -> None:
    form = form_of(browser, mixed) | {"environment.parts.1.weight": "0", "environment.parts.0.name": "A b"}
    page = shown(browser, mixed, form)
    assert "give more than 0" in about(page, "environment.parts.1.weight")
    assert "small letters" in about(page, "environment.parts.0.name")
