"""One line says what a run does now and what comes next, for every phase, on its page, in the list and live."""

import json
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any, get_args

import pytest
from asgiref.sync import sync_to_async
from django.db import connection
from django.test import Client

from engine.spec.event import Phase
from webapp.accounts.models import User
from webapp.live.log import read_header
from webapp.live.pool import close_pool
from webapp.runs.models import Run
from webapp.runs.now import GLOSSARY, ColdStart, Facts, cold_starts_of, now_of
from webapp.runs.snapshot import snapshot

LIVE = Facts(state="running", desired="run", attempt=1, phase="collect", step=7, total_steps=40, eta_s=99.0)
COLD = replace(LIVE, phase="cold-start", step=0, eta_s=None, cold_start=ColdStart(600, 530, 20.4))
LAST = replace(LIVE, step=40, eta_s=0.0)

SENTENCES = [
    (replace(COLD, state="queued", phase="", attempt=0),
     "Now: in the queue until a worker launches it. Next: start-up of its workers."),
    (replace(COLD, state="queued", phase=""),
     "Now: in the queue until a worker launches it again. Next: start-up of its workers."),
    (replace(COLD, state="queued", phase="", desired="pause"),
     "Now: paused in the queue. Next: a worker launches it when it is resumed."),
    (replace(COLD, state="launching", phase=""), "Now: attempt 1 is being launched. Next: start-up of its workers."),
    (replace(COLD, phase="start"), "Now: starting up. Next: a supervised cold start of 600 steps."),
    (replace(LIVE, phase="start"), "Now: starting up after step 7 of 40. Next: step 8 of 40."),
    (COLD, "Now: supervised cold start, 530 of 600, about 20 s left. Next: 40 steps of RL."),
    (replace(COLD, cold_start=ColdStart(600)), "Now: supervised cold start, 0 of 600. Next: 40 steps of RL."),
    (replace(COLD, cold_start=ColdStart(9000, 10, 260.0)),
     "Now: supervised cold start, 10 of 9000, about 4 min left. Next: 40 steps of RL."),
    (replace(COLD, total_steps=0),
     "Now: supervised cold start, 530 of 600, about 20 s left. Next: the final evaluation."),
    (replace(LIVE, phase="difficulty", step=0),
     "Now: finding out how hard its tasks are. Next: 40 steps of RL."),
    (replace(LIVE, phase="evaluate", step=0),
     "Now: evaluation on held-out tasks, before step 1. Next: 40 steps of RL."),
    (replace(LIVE, phase="evaluate"), "Now: evaluation on held-out tasks, after step 7. Next: step 8 of 40."),
    (replace(LAST, phase="evaluate"),
     "Now: final evaluation on held-out tasks, all 40 steps of RL are done. Next: the run ends with a summary."),
    (replace(LAST, phase="evaluate", step=0, total_steps=0),
     "Now: final evaluation on held-out tasks. Next: the run ends with a summary."),
    (replace(LIVE, phase="checkpoint"), "Now: writing a checkpoint after step 7 of 40. Next: step 8 of 40."),
    (replace(LAST, phase="checkpoint"),
     "Now: writing a checkpoint after step 40 of 40. Next: the run ends with a summary."),
    (replace(LIVE, phase="sync-weights"),
     "Now: step 7 of 40, copying the newest weights to the generator. Next: collecting rollouts."),
    (LIVE, "Now: step 7 of 40, collecting rollouts, the policy tries tasks in sandboxes."
           " Next: scoring them, then the update."),
    (replace(LIVE, phase="score"), "Now: step 7 of 40, scoring the rollouts. Next: the update of the policy."),
    (replace(LIVE, phase="judge"), "Now: step 7 of 40, judging the turns. Next: the update of the policy."),
    (replace(LIVE, phase="credit"),
     "Now: step 7 of 40, assigning credit to the rollouts. Next: the update of the policy."),
    (replace(LIVE, phase="update"), "Now: step 7 of 40, updating the policy. Next: step 8 of 40."),
    (replace(LAST, phase="update"), "Now: step 40 of 40, updating the policy. Next: the final evaluation."),
    (replace(LIVE, phase="update", desired="pause"),
     "Now: step 7 of 40, updating the policy. Next: a checkpoint, then a pause."),
    (replace(LIVE, phase="update", desired="cancel"),
     "Now: step 7 of 40, updating the policy. Next: it stops, because it was cancelled."),
    (replace(LIVE, state="paused", phase="paused"),
     "Now: paused after step 7 of 40. Next: it goes on from here when it is resumed."),
    (replace(LAST, phase="finish"), "Now: writing the summary. Next: the run ends."),
    (replace(LAST, state="succeeded", phase="finish"), "Succeeded: all 40 steps of RL are done."),
    (replace(LAST, state="succeeded", phase="finish", step=0, total_steps=0),
     "Succeeded: the final evaluation is done."),
    (replace(LIVE, state="failed"), "Failed at 7 of 40 steps, in the phase “Collecting rollouts”."),
    (replace(LIVE, state="cancelled", phase=""), "Cancelled at 7 of 40 steps."),
]  # fmt: skip


@pytest.mark.parametrize(("facts", "sentence"), SENTENCES)
def test_a_line_says_what_happens_now_and_what_comes_next(facts: Facts, sentence: str) -> None:
    assert now_of(facts).sentence == sentence


def test_every_phase_of_the_engine_has_words_and_a_sentence() -> None:
    assert set(GLOSSARY) == set(get_args(Phase)) == {facts.phase for facts, _ in SENTENCES} - {""}
    for phase, (name, meaning) in GLOSSARY.items():
        assert name != phase
        assert len(meaning) > 30


def test_a_cold_start_counts_its_own_steps_and_its_curve_leads() -> None:
    now = now_of(COLD)
    assert (now.unit, now.done, now.of, now.left) == ("Supervised step", 530, 600, "20 s of the cold start")
    assert now.leads == "cold-start"
    assert now_of(replace(COLD, phase="start")).leads == "cold-start"
    assert now_of(replace(LAST, state="succeeded", total_steps=0, step=0)).leads == "cold-start", (
        "it has no other curve"
    )
    assert (now_of(LIVE).unit, now_of(LIVE).done, now_of(LIVE).of, now_of(LIVE).leads) == ("Step", 7, 40, "")


def test_the_time_left_is_never_nothing_while_something_is_left() -> None:
    assert now_of(replace(LAST, phase="evaluate")).left == "after the final evaluation"
    assert now_of(replace(LAST, phase="update")).left == "last step"
    assert now_of(LIVE).left == "1m 39s"
    assert now_of(replace(LIVE, eta_s=None)).left == "–"
    assert now_of(replace(LAST, state="succeeded", phase="finish")).left == "–"


@pytest.fixture
def cold_run(engine: Any, launching_run: Run) -> Run:
    """500 of its supervised steps took 100 s."""
    steps = launching_run.spec["recipe"]["stages"][0]["steps"]
    assert steps == 600
    events = [engine.started(), engine.event("phase", step=0, phase="cold-start") | {"at": 1_790_000_000.0}]
    events += [
        engine.event("metric", step=step, values={"sft/loss": 1.0}) | {"at": 1_790_000_000.0 + step / 5}
        for step in range(10, 501, 10)
    ]
    assert engine.post(*events, heartbeat=engine.heartbeat("cold-start", 0)).status_code == 200
    return Run.objects.get(id=launching_run.id)


@pytest.mark.django_db
def test_the_time_left_of_a_cold_start_is_told_by_what_its_steps_took(cold_run: Run) -> None:
    assert cold_starts_of([cold_run.id]) == {cold_run.id: ColdStart(600, 500, pytest.approx(20.0))}


@pytest.mark.django_db
def test_another_attempt_begins_its_cold_start_anew(cold_run: Run, engine: Any) -> None:
    events = [engine.started(), engine.event("phase", step=0, phase="cold-start")]
    assert engine.post(*events, heartbeat=engine.heartbeat("cold-start", 0)).status_code == 200
    assert cold_starts_of([cold_run.id]) == {cold_run.id: ColdStart(600)}


@pytest.mark.django_db
def test_a_run_in_its_steps_has_no_cold_start_any_more(cold_run: Run, engine: Any) -> None:
    assert engine.post(engine.log("on"), heartbeat=engine.heartbeat("collect", 1)).status_code == 200
    assert cold_starts_of([cold_run.id]) == {cold_run.id: None}


@pytest.mark.django_db
def test_the_page_and_the_list_show_the_cold_start_in_words(cold_run: Run, bob: User) -> None:
    client = Client()
    client.force_login(bob)
    page = client.get(f"/runs/{cold_run.id}/").content.decode()
    assert "Now: supervised cold start, 500 of 600, about 20 s left. Next: 60 steps of RL." in page
    assert '<progress id="progress" value="500" max="600"' in page
    assert page.index('data-chart="cold-start"') < page.index('data-chart="reward"')
    assert 'data-term="cold-start">Supervised cold start</button>' in page
    listed = client.get("/").content.decode()
    assert "Supervised cold start · 500 of 600" in listed
    assert "cold-start" not in listed


@pytest.fixture
async def _connections_are_given_back() -> AsyncIterator[None]:
    yield
    await close_pool()
    await sync_to_async(lambda: connection.close())()  # the one of the thread that async code shares


@pytest.mark.usefixtures("_connections_are_given_back")
@pytest.mark.django_db(transaction=True)
async def test_live_frames_and_the_snapshot_say_the_same(cold_run: Run) -> None:
    reported = json.loads((await read_header(cold_run.id)).text)["now"]
    assert reported == (await sync_to_async(snapshot)(cold_run.id))["run"]["now"]
    assert (reported["sentence"], reported["done"], reported["of"], reported["leads"]) == (
        "Now: supervised cold start, 500 of 600, about 20 s left. Next: 60 steps of RL.",
        500,
        600,
        "cold-start",
    )


@pytest.mark.django_db
def test_the_second_of_two_stages_counts_its_own_steps_and_the_time_since_it_went_on(
    engine: Any, launching_run: Run
) -> None:
    """Its 40 steps follow 600 of the first; 10 were done before this attempt, and 20 more took 4 s."""
    stage = {"stage": 2, "of": 2, "before": 600, "steps": 40, "done": 10}
    started = engine.started()
    phase = engine.event("phase", step=0, phase="cold-start", stage=stage) | {"at": 1_790_000_000.0}
    assert engine.post(started, phase, heartbeat=engine.heartbeat("cold-start", 0)).status_code == 200
    assert cold_starts_of([launching_run.id]) == {launching_run.id: ColdStart(40, 10, stage=2, of=2)}
    metric = engine.event("metric", step=630, values={"sft/loss": 1.0}) | {"at": 1_790_000_004.0}
    assert engine.post(metric, heartbeat=engine.heartbeat("cold-start", 0)).status_code == 200
    [so_far] = cold_starts_of([launching_run.id]).values()
    assert so_far == ColdStart(40, 30, pytest.approx(2.0), stage=2, of=2)
    now = now_of(replace(COLD, cold_start=so_far))
    assert now.happening == "supervised stage 2 of 2, 30 of 40, about 2 s left"
    assert now.left == "2 s of the stage 2 of 2"


@pytest.mark.usefixtures("_connections_are_given_back")
@pytest.mark.django_db(transaction=True)
async def test_live_frames_have_the_heartbeat_without_what_processes_take(cold_run: Run) -> None:
    heartbeat = {"phase_since": 5.5, "usage": {"at": 1.0}}
    await Run.objects.filter(id=cold_run.id).aupdate(heartbeat=heartbeat)
    frame = (await read_header(cold_run.id)).text
    assert json.loads(frame)["phase_since"] == 5.5
    assert "usage" not in frame
