"""What the parts of a run's page say about its trajectories, its checkpoints and the environment's questions."""

import re
from typing import Any

import pytest
from django.test import Client

from engine.spec.run import EXAMPLE_QUESTIONS
from webapp.accounts.models import Team, User
from webapp.runs.models import Checkpoint, Run
from webapp.trajectories.models import Trajectory


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
            run=run, trajectory_id=f"{purpose}-{step}-0-{seq}", seq=seq, purpose=purpose, step=step, group=0, index=seq,
            level=1, success=reward == 1, reward=reward, tool_calls=0, tool_errors=0, turns=1, tokens=4,
            stop_reason="answered",
        )  # fmt: skip
    return run


def bins_in(html: str) -> dict[str, int]:
    return {label: int(count) for label, count in re.findall(r"<span>([^<]*)</span><b>(\d+)</b>", html)}


def test_the_histogram_is_of_the_newest_step_and_can_be_of_another(client: Client, rewarded_run: Run) -> None:
    here = f"/runs/{rewarded_run.id}/trajectories/"
    newest = page(client, here)
    assert "Rewards of step 3" in newest
    assert bins_in(newest) == {"0": 1, "0.5": 1, "1": 3}
    assert "1 with reward 0, 1 with reward 0.5, 3 with reward 1" in newest
    assert bins_in(page(client, here + "?purpose=train")) == {"0": 1, "0.5": 1, "1": 2}
    earlier = re.search(r'id="rewards-previous"[^>]* href="([^"]*)"', newest)[1]
    assert bins_in(page(client, earlier.replace("&amp;", "&"))) == {"0": 3, "1": 1}


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


def checkpoints_of(run: Run, steps: range) -> None:
    Checkpoint.objects.bulk_create(
        Checkpoint(run=run, step=step, path=f"/ck/step-{step}/", size_bytes=1, seconds=0.1, at=run.created_at)
        for step in steps
    )


def test_a_checkpoint_beyond_those_kept_is_shown_as_removed(client: Client, run: Run, api_of: Any, bob: User) -> None:
    assert run.run_spec.schedule.keep_checkpoints == 3
    checkpoints_of(run, range(0, 50, 10))
    html = page(client, f"/runs/{run.id}/parts/checkpoints", "")
    assert re.findall(r"/ck/step-(\d+)/", html) == ["40", "30", "20"]
    assert len(re.findall("removed by", html)) == 2
    answer = api_of(bob).get(f"/runs/{run.id}/checkpoints").json()
    assert {one["step"]: one["on_disk"] for one in answer} == {0: False, 10: False, 20: True, 30: True, 40: True}


def test_a_fresh_install_shows_example_questions_of_every_level(client: Client, team: Team) -> None:
    html = client.get("/environments/").content.decode()
    for questions in EXAMPLE_QUESTIONS.values():
        for question in questions:
            assert f'<span class="mono">{question}</span>' in html


def test_the_form_offers_a_cold_start_of_0_steps(client: Client, team: Team) -> None:
    html = client.get("/experiments/new").content.decode()
    hint = re.search(r'id="f-recipe-cold_start-steps-about".*?</p>', html, re.DOTALL)[0]
    assert "0 leaves the cold start out" in hint
    assert "At least 0" in hint
