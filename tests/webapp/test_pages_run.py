"""What the parts of a run's page say about its trajectories, its checkpoints and the environment's questions."""

import re
from itertools import chain
from typing import Any

import pytest
from django.test import Client

from engine.spec.environment import Household
from engine.spec.examples import EXAMPLE_QUESTIONS
from engine.spec.run import RunSpec
from tests.webapp.runs.conftest import Engine
from webapp.accounts.models import Team, User
from webapp.catalog.services import publish_environment
from webapp.environments.views import BUILT_IN
from webapp.runs.models import Event, Run
from webapp.runs.services import submit_run
from webapp.trajectories.models import Trajectory, filtered


@pytest.fixture
def client(bob: User) -> Client:
    client = Client()
    client.force_login(bob)
    return client


def page(client: Client, address: str, target: str = "trajectories") -> str:
    return client.get(address, headers={"HX-Request": "true", "HX-Target": target}).content.decode()


@pytest.fixture
def rewarded_run(run: Run) -> Run:
    """Step 1: rewards 0, 0, 0, 1; step 3: 0, 0.5, 1, 1 and a greedy 1."""
    rewards = [(1, "train", 0.0)] * 3 + [(1, "train", 1.0), (3, "train", 0.0), (3, "train", 0.5)]
    rewards += [(3, "train", 1.0)] * 2 + [(3, "eval-greedy", 1.0)]
    for seq, (step, purpose, reward) in enumerate(rewards):
        Trajectory.objects.create(
            run=run, trajectory_id=f"{purpose}-{step}-{seq}", seq=seq, purpose=purpose, prompt=step, member=seq,
            sampled_at_version=step - (purpose == "train"), trained_at_step=step if purpose == "train" else None,
            level=1, success=reward == 1, reward=reward, tool_calls=0, tool_errors=0, turns=1, tokens=4,
            stop_reason="answered",
        )  # fmt: skip
    return run


def bins_in(html: str) -> dict[str, int]:
    return {label: int(count) for label, count in re.findall(r"<span>([^<]*)</span> <b>(\d+)</b>", html)}


def test_the_histogram_is_of_the_newest_step_and_can_be_of_another(client: Client, rewarded_run: Run) -> None:
    here = f"/runs/{rewarded_run.id}/trajectories/"
    newest = page(client, here)
    assert "Rewards of step 3" in newest
    assert bins_in(newest) == {"0": 1, "0.5": 1, "1": 3}
    assert "1 with reward 0, 1 with reward 0.5, 3 with reward 1" in newest
    assert bins_in(page(client, here + "?purpose=train")) == {"0": 1, "0.5": 1, "1": 2}
    earlier = re.search(r'id="rewards-previous"[^>]* href="([^"]*)"', newest)[1]
    assert bins_in(page(client, earlier.replace("&amp;", "&"))) == {"0": 3, "1": 1}


def test_a_step_has_the_trajectories_that_were_sampled_for_it_also_those_of_no_policy(run: Run) -> None:
    """Oracle, nop and script play at version -1."""
    sampled = [("eval-greedy", -1), ("demonstration", -1), ("eval-greedy", 0), ("train", 0), ("eval-greedy", 1)]
    for seq, (purpose, version) in enumerate(sampled):
        Trajectory.objects.create(
            run=run, trajectory_id=f"{purpose}-{seq}", seq=seq, purpose=purpose, prompt=0, member=seq,
            sampled_at_version=version, level=1, success=True, reward=1, tool_calls=0, tool_errors=0, turns=1,
            tokens=4, stop_reason="answered",
        )  # fmt: skip
    for step, own in {0: [0, 1, 2], 1: [3, 4], 2: []}.items():
        found = list(filtered(run, step=step))
        assert sorted(row.seq for row in found) == own
        assert {row.sampled_for_step for row in found} <= {step}


def test_a_bin_is_a_link_that_filters_the_table_and_again_one_that_does_not(client: Client, rewarded_run: Run) -> None:
    links = [
        link.replace("&amp;", "&")
        for link in re.findall(
            r'class="bin"[^>]* href="([^"]*)"', page(client, f"/runs/{rewarded_run.id}/trajectories/")
        )
    ]
    filtered = page(client, links[1])
    assert re.findall(r'<tr class="row-link" data-step="(\d)">', filtered) == ["3"]
    assert bins_in(filtered) == {"0": 1, "0.5": 1, "1": 3}
    chosen = re.search(r'id="bin-2" aria-current="true" href="([^"]*)"', filtered)[1]
    assert len(re.findall(r'data-step="3"', page(client, chosen.replace("&amp;", "&")))) == 5


def test_a_live_page_asks_for_the_histogram_alone(client: Client, rewarded_run: Run) -> None:
    answer = page(client, f"/runs/{rewarded_run.id}/trajectories/?step=1", "rewards")
    assert bins_in(answer) == {"0": 3, "1": 1}
    assert "<table" not in answer


def test_a_run_that_a_younger_rule_would_refuse_is_shown_as_it_was_taken(client: Client, run: Run) -> None:
    run.spec["schedule"]["minibatch_trajectories"] = 7
    run.save(update_fields=["spec"])
    assert run.run_spec.schedule.minibatch_trajectories == 7
    assert client.get(f"/runs/{run.id}/").status_code == 200


def checkpoint(engine: Any, step: int) -> dict[str, Any]:
    event: dict[str, Any] = engine.event("checkpoint", step=step, path=f"/ck/step-{step}/", size_bytes=1, seconds=0.1)
    return event


def test_a_checkpoint_beyond_those_kept_is_shown_as_removed(
    client: Client, engine: Any, launching_run: Run, api_of: Any, bob: User
) -> None:
    run = launching_run
    assert run.run_spec.schedule.keep_checkpoints == 3
    engine.post(engine.started(), *(checkpoint(engine, step) for step in range(0, 50, 10)))
    html = page(client, f"/runs/{run.id}/parts/checkpoints", "")
    assert re.findall(r"/ck/step-(\d+)/", html) == ["40", "30", "20"]
    assert len(re.findall("removed by", html)) == 2
    rows = api_of(bob).get(f"/runs/{run.id}/checkpoints").json()["items"]
    assert {row["step"]: row["on_disk"] for row in rows} == {
        0: False,
        10: False,
        20: True,
        30: True,
        40: True,
    }


def test_what_was_removed_is_not_on_the_disk_again_when_a_later_one_was_damaged(
    client: Client, engine: Any, launching_run: Run, api_of: Any, bob: User
) -> None:
    """The disk holds steps 20 to 40; 40 is damaged, and the next attempt goes on from 30."""
    engine.post(engine.started(), *(checkpoint(engine, step) for step in range(0, 50, 10)))
    engine.post(engine.started(from_step=30))
    path = f"/runs/{launching_run.id}/checkpoints"

    def on_disk() -> dict[int, bool]:
        return {row["step"]: row["on_disk"] for row in api_of(bob).get(path).json()["items"]}

    assert on_disk() == {0: False, 10: False, 20: True, 30: True}
    html = page(client, f"/runs/{launching_run.id}/parts/checkpoints", "")
    assert re.findall(r"/ck/step-(\d+)/", html) == ["30", "20"]
    engine.post(checkpoint(engine, 40), checkpoint(engine, 45))
    assert on_disk() == {0: False, 10: False, 20: False, 30: True, 40: True, 45: True}
    engine.post(engine.started(from_step=0), checkpoint(engine, 0))
    assert on_disk() == {0: True}


OTHERS: dict[str, Any] = {"oracle": None, "nop": None, "script": None}
EVALUATION = {
    "step": 0, "samples": 4, "tasks": 2, "levels_left_out": 0,
    "greedy": {"success": 0.5, "low": 0.0945, "high": 0.9055, "episodes": 2},
    "sampled": {"success": 0.25, "low": 0.0346, "high": 0.7609, "episodes": 8}, "purified": None, **OTHERS,
    "pass_at": {"1": 0.25, "2": 0.45, "4": 0.75},
    "levels": [{"level": 3, "tasks": 2, "greedy": None, "purified": None, **OTHERS, "pass_at": {"1": 0.25},
                "sampled": {"success": 0.25, "low": 0.0346, "high": 0.7609, "episodes": 8}}],
    "parts": [{"part": "short-sums", "tasks": 1, "greedy": None, "purified": None, **OTHERS, "pass_at": {"1": 0.5},
               "sampled": {"success": 0.5, "low": 0.0346, "high": 0.7609, "episodes": 4}}],
    "tools": [{"tool": "<b>python</b>", "calls": 9, "failed": 2,
               "callers": {"success": 0.25, "low": 0.0346, "high": 0.7609, "episodes": 8}}],
}  # fmt: skip


def test_an_evaluation_ends_with_its_table_on_the_page_and_over_rest(
    client: Client, launching_run: Run, api_of: Any, bob: User
) -> None:
    assert 'id="evaluation"' not in client.get(f"/runs/{launching_run.id}/").content.decode()
    engine = Engine(launching_run)
    engine.post(engine.started(), engine.finished(summary={"evaluation": EVALUATION}))
    html = page(client, f"/runs/{launching_run.id}/parts/evaluation", "")
    assert "2 held-out tasks, 4 sampled tries each" in " ".join(html.split())
    assert re.findall(r'scope="col" class="num">(pass@\d)', html) == ["pass@1", "pass@2", "pass@4"]
    assert re.findall(r"([\d.]+%) <span[^>]*>([\d.]+%) to ([\d.]+%)", html)[0] == ("50.0%", "9.4%", "90.5%")
    assert "&lt;b&gt;python&lt;/b&gt;" in html
    assert '<th scope="row" class="mono">short-sums</th>' in html
    assert api_of(bob).get(f"/runs/{launching_run.id}").json()["summary"]["evaluation"] == EVALUATION


def test_a_run_that_trains_nothing_says_why_it_has_no_checkpoint(client: Client, team: Team, alice: User) -> None:
    spec = RunSpec.model_validate({"name": "e", "recipe": {"preset": "evaluate"}})
    run = submit_run(team, spec, acting_user=alice)
    assert "trains nothing, so there is nothing to save" in page(client, f"/runs/{run.id}/parts/checkpoints", "")


def test_a_fresh_install_shows_example_questions_of_every_level(client: Client, team: Team) -> None:
    html = client.get("/environments/").content.decode()
    for levels in EXAMPLE_QUESTIONS.values():
        for question in chain.from_iterable(levels.values()):
            assert f'<span class="mono">{question}</span>' in html


@pytest.mark.parametrize("name", ["python-math", "household", "sokoban", "webshop", "search-qa", "apps"])
def test_every_built_in_environment_is_shown_with_all_its_levels(client: Client, team: Team, name: str) -> None:
    card = client.get("/environments/").content.decode().split(f'aria-labelledby="{name}"')[1].split("</section>")[0]
    levels = RunSpec.model_json_schema()["$defs"][BUILT_IN[name].__name__]["properties"]["levels"]["items"]["maximum"]
    assert re.findall(r"Level (\d)<", card) == [str(number) for number in range(1, levels + 1)]


def test_a_published_environment_without_a_sandbox_is_shown(client: Client, team: Team, alice: User) -> None:
    publish_environment(team, "house", Household(max_turns=9), acting_user=alice)
    html = client.get("/environments/").content.decode()
    card = html.split('aria-label="house v1 ')[1].split("</section>")[0]
    assert "at most 9" in card
    assert "without a sandbox" in card


def test_example_questions_are_those_of_a_run_in_that_environment(client: Client, run: Run) -> None:
    Trajectory.objects.create(
        run=run, trajectory_id="train-1-0", seq=1, purpose="train", prompt=1, member=0, level=1, success=True,
        sampled_at_version=0, trained_at_step=1, reward=1, tool_calls=0, tool_errors=0, turns=1,
        tokens=1, stop_reason="done",
    )  # fmt: skip
    Event.objects.create(
        run=run, seq=1, attempt=1, step=1, kind="trajectory", at=run.created_at,
        body={"trajectory": {"task": {"question": "a box and a goal"}}},
    )  # fmt: skip
    Run.objects.filter(id=run.id).update(spec=run.spec | {"environment": {"id": "sokoban", "levels": [1]}})
    math, _, rest = client.get("/environments/").content.decode().partition('aria-labelledby="household"')
    assert "a box and a goal" not in math
    assert "a box and a goal" in rest.partition('aria-labelledby="sokoban"')[2]


def test_the_form_offers_the_stages_of_a_recipe_with_their_data(client: Client, team: Team) -> None:
    html = client.get("/experiments/new").content.decode()
    hint = re.search(r'id="f-recipe-stages-0-epochs-about".*?</p>', html, re.DOTALL)[0]
    assert "Passes over the data" in hint
    assert "At least 0" in hint
    assert 'name="recipe.stages.0.data.kind"' in html
    assert 'name="recipe.stages.0.data.wrong_fraction"' in html
    assert 'name="recipe.stages.0.revisiting"' in html
