"""Pictures of every page, kept as test output, and what must hold on each of them at every width and in both themes."""

import time
from collections.abc import Callable

import pytest
from playwright.sync_api import Page

from engine.spec.environment import Household
from engine.spec.run import RunSpec
from tests.browser.chat_log import READING, answer_with_a_tool, append
from tests.browser.conftest import ROOT, Engine, Web, sign_in
from tests.browser.story import Overlapping, Story
from tests.webapp.datasets import ROWS, ready_dataset, waiting_dataset
from tests.webapp.models import judged_by, ready_version
from tests.webapp.packages import GOOD, published_package, stored_package
from tests.webapp.task_sets import published_tasks, stored_tasks
from tests.webapp.test_pages_run import EVALUATION
from webapp.catalog.models import Measurement, Model, ModelVersion, PackageVersion, TaskSetVersion
from webapp.catalog.services import publish_environment
from webapp.conversations.models import Conversation, State
from webapp.experiments.sample import Sample
from webapp.experiments.services import create_experiment
from webapp.runs.models import Run
from webapp.runs.services import launch_experiment, submit_run

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.django_db(transaction=True)]
PICTURES = ROOT / "test-output" / "pages"
JUDGED = judged_by(trained="qwen3-4b@1", catalog="qwen3-32b@1")
WIDTHS = {1440: 900, 1280: 800, 390: 844}

# Contrast of a text against what is behind it, by WCAG's formula, for every element that has text of its own.
FAINT_TEXTS = """() => {
  const channels = (colour) => colour.match(/[\\d.]+/g).map(Number);
  const luminance = ([r, g, b]) => {
    const [x, y, z] = [r, g, b].map((v) => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * x + 0.7152 * y + 0.0722 * z;
  };
  const behind = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const colour = channels(getComputedStyle(at).backgroundColor);
      if (colour.length < 4 || colour[3] > 0.99) return colour;
    }
    return [255, 255, 255];
  };
  const faint = [];
  for (const element of document.querySelectorAll("body *")) {
    const own = [...element.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
    if (!own || !element.checkVisibility({ visibilityProperty: true })) continue;
    if (element.closest("svg, [disabled], .sr, .skip, .plot")) continue;
    const text = luminance(channels(getComputedStyle(element).color));
    const [one, other] = [text, luminance(behind(element))].sort((a, b) => b - a);
    const contrast = (one + 0.05) / (other + 0.05);
    const name = `${element.tagName}.${element.className} "${element.textContent.trim().slice(0, 30)}"`;
    if (contrast < 4.5) faint.push(`${name}: ${contrast.toFixed(2)}`);
  }
  return faint;
}"""


@pytest.fixture
def addresses(web: Web, sample: Sample) -> dict[str, str]:
    """Name of the picture -> page, with a run that is over and one that is on its way."""
    done, live, overlapping = (launch_experiment(sample.experiment, acting_user=sample.owner) for _ in range(3))
    launch_experiment(sample.experiment, acting_user=sample.owner)
    story = Story(steps=60, groups=2, begin_at=time.time() - 240)
    engine = Engine(web, done, story)
    for step, events in enumerate(story.whole()):
        engine.emit(events, min(step, 60))
    story = Story(steps=60, groups=2, begin_at=time.time() - 120, seed=8)
    engine = Engine(web, live, story)
    engine.emit(story.beginning())
    for step in range(1, 33):
        engine.emit(story.step(step), step)
    story = Overlapping(steps=60, groups=2, begin_at=time.time() - 90, seed=9)
    engine = Engine(web, overlapping, story)
    engine.emit(story.beginning())
    for step in range(1, 15):
        engine.emit(story.step(step), step)
    run, experiment = f"/runs/{done.id}/", f"/experiments/{sample.experiment.id}/"
    return {
        "overview": "/",
        "run-live": f"/runs/{live.id}/",
        "run-done": run,
        "run-lanes": f"/runs/{overlapping.id}/?tab=timeline",
        "run-timeline": f"{run}?tab=timeline",
        "run-trajectories": f"{run}?tab=trajectories",
        "run-logs": f"{run}?tab=logs",
        "run-checkpoints": f"{run}?tab=checkpoints",
        "run-config": f"{run}?tab=config",
        "run-history": f"{run}?tab=history",
        "trajectories": f"{run}trajectories/?purpose=train&step=18",
        "trajectory-advantage": f"{run}trajectories/train-35-2/",
        "trajectory-logprob": f"{run}trajectories/train-35-2/?colour=logprob",
        "trajectories-repaired": f"{run}trajectories/?change=repaired",
        "experiments": "/experiments/",
        "experiment": experiment,
        "experiment-toml": f"{experiment}?as=toml",
        "experiment-new": "/experiments/new",
        "environments": "/environments/",
        "environment-new": "/environments/new?kind=household",
        "environment": published_environment(sample),
        "models": "/models/",
        "model-new": "/models/new",
        "model": f"/models/versions/{tuned_version(done)}/",
        "model-judge": f"/models/versions/{ModelVersion.objects.get(model__name='qwen3-32b').id}/",
        "model-unused": f"/models/versions/{ready_version(sample.team, 'gemma-3-1b').id}/",
        "experiment-judged": f"/experiments/{create_experiment(sample.team, JUDGED, acting_user=sample.owner).id}/",
        "datasets": "/datasets/",
        "dataset-new": "/datasets/new",
        **dataset_pages(sample),
        "task-sets": "/task-sets/",
        "task-set-new": "/task-sets/new",
        **task_set_pages(sample),
        "packages": "/packages/",
        "package-new": "/packages/new",
        **package_pages(sample),
        "egress": "/egress/",
        "run-measured": f"/runs/{measured_run(web, sample).id}/",
        **conversations_with(done, sample),
        "team": f"/teams/{sample.team.slug}/",
        "password": "/password",
        "not-found": "/runs/00000000-0000-0000-0000-000000000000/",
    }


def published_environment(sample: Sample) -> str:
    """The page of a second version, compared with the first."""
    published = [
        publish_environment(sample.team, "small house", Household(levels=levels, max_turns=turns),
                            acting_user=sample.owner, description="Rooms without doors.")
        for levels, turns in (([1], 9), ([1, 2], 12))
    ]  # fmt: skip
    return f"/environments/{published[1].id}/?before={published[0].id}"


def tuned_version(run: Run) -> int:
    """The id of a version that was made of the run's checkpoint; its model has others, ready, failed and under way."""
    base = ready_version(run.team, "qwen3-4b")
    origin = {"kind": "checkpoint", "run": str(run.id), "number": run.number, "name": run.name, "step": 40,
              "environment": "python-math", "data": run.spec["dataset"], "recipe": "grpo"}  # fmt: skip
    tuned = ready_version(run.team, "qwen3-4b", files={"config.json": b"{}"}, origin=origin, parent=base)
    judge = ready_version(run.team, "qwen3-32b")
    Run.objects.filter(id=run.id).update(model_version=base, judge_version=judge)
    problem = {"field": "folder", "value": "model.safetensors", "remedy": "download the file again",
               "message": "model.safetensors: is damaged: its header describes 8044936192 bytes"}  # fmt: skip
    failed = {"state": "failed", "problem": problem, "origin": base.origin, "created_by": run.created_by}
    ModelVersion.objects.create(model=base.model, **failed)
    moving = Model.objects.create(team=run.team, name="llama-3.2-1b")
    ModelVersion.objects.create(model=moving, origin=base.origin, bytes=2_471_645_608, bytes_done=1_200_000_000)
    return tuned.id


def dataset_pages(sample: Sample) -> dict[str, str]:
    """A ready version with its tabs, one that waits for a mapping, and one with faults."""
    version, earlier = ready_dataset(sample.team, rows=ROWS), ready_dataset(sample.team, rows=ROWS[:20])
    waiting = waiting_dataset(sample.team)
    fault = {"file": "questions.jsonl", "line": 11, "column": "prompt", "value": "7",
             "message": "it is no text but a number", "remedy": "write it as a text"}  # fmt: skip
    problem = {"field": "files", "value": "7", "message": "the files have 7 faults", "remedy": "mend them"}
    report = {"faults": 7, "shown_faults": [fault] * 7, "duplicates": {}}
    faulty = waiting_dataset(sample.team, state="failed", problem=problem, report=report)
    changed = {"id": "a", "split": "train", "before": {"prompt": "old"}, "after": {"prompt": "new"}}
    difference = {"added": 10, "removed": 0, "changed": 1, "moved": 0, "same": 19, "samples_added": [changed],
                  "samples_removed": [], "samples_changed": [changed]}  # fmt: skip
    Measurement.objects.create(version=version, kind="difference", before=earlier, report=difference)
    at = f"/datasets/versions/{version.id}/"
    tabs = {f"dataset-{tab}": f"{at}?tab={tab}" for tab in ("about", "rows", "duplicates", "lengths", "differences")}
    waits = {
        f"dataset-{name}": f"/datasets/versions/{row.id}/" for name, row in (("mapping", waiting), ("faults", faulty))
    }
    return tabs | waits


def task_set_pages(sample: Sample) -> dict[str, str]:
    """A version that is published, one whose check found faults, one that waits, and one that was not taken."""
    published = published_tasks(sample.team, "shell-basics")
    tasks: dict[str, dict[str, list[float | None]]] = {
        "sum-of-column": {"oracle": [1.0, 1.0], "nop": [0.0, 0.0]},
        "restart-the-server": {"oracle": [1.0, 0.0], "nop": [0.0, 0.0]},
        "mend-the-build": {"oracle": [None], "nop": [0.0]},
    }
    note = "the tests print: AssertionError: expected 42, found 41 in /work/total.txt"
    faulty = stored_tasks(sample.team, "shell-basics", tasks, note=note)
    reason = "the image swe-django cannot be pulled: registry.example does not answer"
    begun = {"django-1": {"oracle": [], "nop": []}, "django-2": tasks["mend-the-build"]}
    waiting = stored_tasks(sample.team, "swe", begun, state="checking", waiting_for=reason)
    fault = {"field": "count-words/environment/passwd", "value": "passwd", "remedy": "put a copy in its place",
             "message": "a symbolic link, which may lead out of the task"}  # fmt: skip
    refused = TaskSetVersion.objects.create(
        task_set=published.task_set, origin=published.origin, state="failed", faults=7, problems=[fault] * 7,
        problem=fault | {"field": "files"},
    )  # fmt: skip
    named = {"task-set": published, "task-set-check": faulty, "task-set-waiting": waiting, "task-set-faults": refused}
    return {name: f"/task-sets/versions/{version.id}/" for name, version in named.items()}


def package_pages(sample: Sample) -> dict[str, str]:
    """A version that is published, one whose check found faults, one that is played, and one that was not taken."""
    tools = {
        "tools": ["look", "move", "write_down"],
        "notes": ["the tool move was not called"],
    }
    before = published_package(sample.team, "guessing-game")
    published = published_package(sample.team, "guessing-game", version="1.1")
    faults = ["train: there is no task; give at least one", "heldout-3: RuntimeError: the board has no square 9"]
    report = GOOD.model_copy(update=tools | {"faults": faults})
    faulty = stored_package(sample.team, "chess", report=report, version="0.3")
    good = stored_package(sample.team, "chess", report=GOOD.model_copy(update=tools), version="0.4")
    played = stored_package(sample.team, "chess", version="0.5", state="checking")
    fault = {"field": "src/board.so", "value": "board.so", "remedy": "put a copy in its place",
             "message": "a symbolic link, which may lead out of the package"}  # fmt: skip
    refused = PackageVersion.objects.create(
        package=faulty.package, origin=faulty.origin, state="failed", faults=2, problems=[fault] * 2, problem=fault
    )
    named = {"package-faulty": faulty, "package-good": good, "package-played": played, "package-refused": refused}
    pages = {name: f"/packages/versions/{version.id}/" for name, version in named.items()}
    return pages | {"package": f"/packages/versions/{published.id}/?before={before.id}"}


def measured_run(web: Web, sample: Sample) -> Run:
    """A run that trained nothing, and ended with its table."""
    spec = RunSpec.model_validate({"name": "how good is it", "recipe": {"preset": "evaluate"}})
    run = submit_run(sample.team, spec, acting_user=sample.owner)
    story = Story(begin_at=time.time() - 60)
    begun = story.event("started", from_step=0, total_steps=0)
    evaluated = story.evaluation(0)
    finished = story.event("finished", outcome="succeeded", summary={"steps": 0, "evaluation": EVALUATION})
    Engine(web, run, story).emit([begun, *evaluated, finished])
    return run


def conversations_with(run: Run, sample: Sample) -> dict[str, str]:
    """The list of conversations, and its three: answered with a tool, failed, and not begun."""
    answered, failed, empty = (
        Conversation.objects.create(team=run.team, run=run, step=40, with_tools=True, created_by=sample.owner)
        for _ in range(3)
    )
    asked = ("send", {"messages": [{"role": "user", "content": "What is 1+1?"}]})
    append(answered.id, [asked], handled_seq=1)
    answer_with_a_tool(answered)
    ended = ("ended", {"reason": "the process that samples was ended by SIGKILL", "asked": False})
    append(failed.id, [asked, READING, ended], state=State.FAILED, reason=ended[1]["reason"], handled_seq=1)
    pages = {"conversation": answered, "conversation-failed": failed, "conversation-empty": empty}
    return {"conversations": "/conversations/"} | {name: f"/conversations/{talk.id}/" for name, talk in pages.items()}


@pytest.mark.parametrize("theme", ["light", pytest.param("dark", marks=pytest.mark.soak)])
def test_every_page_fits_every_width_and_can_be_read(
    web: Web, sample: Sample, addresses: dict[str, str], tab: Callable[..., Page], complaints: list[str], theme: str
) -> None:
    page = tab(color_scheme=theme)
    PICTURES.mkdir(parents=True, exist_ok=True)
    page.goto(f"{web.url}/sign-in")
    faults = _pictures_of(page, "sign-in", theme)
    sign_in(page, web, sample.owner)
    for name, address in addresses.items():
        page.set_viewport_size({"width": 1440, "height": 900})
        page.goto(web.url + address)
        if name.startswith("run-"):
            page.wait_for_selector("#run[data-loaded]")
        if name == "run-trajectories":
            page.wait_for_selector("#trajectories tbody tr")
        faults += _pictures_of(page, name, theme)
    assert faults == []
    assert [text for text in complaints if "404" not in text] == []


def _pictures_of(page: Page, name: str, theme: str) -> list[str]:
    """One picture per width; returns what is wrong with them."""
    faults = []
    for width, height in WIDTHS.items():
        page.set_viewport_size({"width": width, "height": height})
        page.wait_for_timeout(700 if name.startswith("run-") else 100)  # charts are drawn after they were measured
        page.screenshot(path=PICTURES / f"{name}-{width}-{theme}.png")
        if page.evaluate("document.documentElement.scrollWidth > innerWidth"):
            faults.append(f"{name} is wider than {width} px")
        faults += [f"{name} {theme} {width}: {fault}" for fault in page.evaluate(FAINT_TEXTS)[:3]]
    return faults
